"""Celery: a task whose messages are handled once."""

from onefold._worker.celery_tasks import handled_once

__all__ = [
    "handled_once",
]
