"""What worked before, and has to go on working."""

import unittest

from retrykit import normalize_attempts


class Regression(unittest.TestCase):
    def test_a_positive_setting_is_kept(self):
        for attempts in (1, 5, 40):
            self.assertEqual(normalize_attempts(attempts), attempts)
