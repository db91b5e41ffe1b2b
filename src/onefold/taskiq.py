"""taskiq: a task whose messages are handled once."""

from onefold._worker.taskiq import handled_once

__all__ = [
    "handled_once",
]
