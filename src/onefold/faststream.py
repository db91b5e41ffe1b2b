"""FastStream: a subscriber whose messages are handled once."""

from onefold._worker.faststream import handled_once

__all__ = [
    "handled_once",
]
