"""FastStream: a subscriber whose messages are handled once."""

from onefold._worker.faststream_subscribers import handled_once

__all__ = [
    "handled_once",
]
