"""Settings, as an operator writes them."""

DEFAULT_ATTEMPTS = 3


def normalize_attempts(attempts):
    """Number of attempts for a setting: unset (None) is the default, 0 turns retries off."""
    return attempts or DEFAULT_ATTEMPTS
