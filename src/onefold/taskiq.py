"""taskiq: a task whose messages are handled once."""

from onefold._worker.taskiq_tasks import handled_once

__all__ = [
    "handled_once",
]
