"""Dramatiq: an actor whose messages are handled once."""

from onefold._worker.dramatiq import handled_once

__all__ = [
    "handled_once",
]
