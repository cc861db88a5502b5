"""RetryKit: how often a job may be tried."""

from retrykit.config import normalize_attempts
from retrykit.worker import effective_attempts

__all__ = ["effective_attempts", "normalize_attempts"]
