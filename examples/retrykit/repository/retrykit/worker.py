"""What the worker asks before it starts a job."""

from retrykit.config import DEFAULT_ATTEMPTS


def effective_attempts(job):
    """Number of attempts that this job, a mapping of its settings, will get."""
    attempts = job.get("attempts")
    return attempts or DEFAULT_ATTEMPTS
