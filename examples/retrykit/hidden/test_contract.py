"""The contract where it matters: in the path that runs jobs."""

import unittest

from retrykit.config import normalize_attempts
from retrykit.worker import effective_attempts


class WorkerContract(unittest.TestCase):
    def test_a_job_with_zero_attempts_is_not_retried(self):
        self.assertEqual(effective_attempts({"attempts": 0}), 0)

    def test_a_job_that_says_nothing_gets_the_default(self):
        self.assertEqual(effective_attempts({}), 3)
        self.assertEqual(effective_attempts({"attempts": None}), 3)

    def test_a_positive_setting_is_kept(self):
        # More values than a repair could list, and the default among them.
        for attempts in range(1, 101):
            with self.subTest(attempts=attempts):
                self.assertEqual(effective_attempts({"attempts": attempts}), attempts)
                self.assertEqual(normalize_attempts(attempts), attempts)
