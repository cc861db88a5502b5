"""The setting's contract, as the issue states it."""

import unittest

from retrykit.config import DEFAULT_ATTEMPTS, normalize_attempts


class AttemptsSetting(unittest.TestCase):
    def test_zero_turns_retries_off(self):
        self.assertEqual(normalize_attempts(0), 0)

    def test_unset_is_the_default(self):
        self.assertEqual(DEFAULT_ATTEMPTS, 3)
        self.assertEqual(normalize_attempts(None), DEFAULT_ATTEMPTS)
