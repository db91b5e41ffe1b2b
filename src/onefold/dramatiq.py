"""Dramatiq: an actor whose messages are handled once."""

from onefold._worker.dramatiq_actors import handled_once

__all__ = [
    "handled_once",
]
