"""Celery: a task whose messages are handled once."""

from onefold._worker.celery import handled_once

__all__ = [
    "handled_once",
]
