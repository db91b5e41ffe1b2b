"""arq: a job that runs once."""

from onefold._worker.arq_jobs import handled_once

__all__ = [
    "handled_once",
]
