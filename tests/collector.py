"""What a piece of work leaves behind that only the garbage collector can free: whatever lies in a cycle.

It stays, with all it holds, until the next collection; under load those come often and stop everything.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def left_to_collector() -> Iterator[list[str]]:
    """The kinds of what the block leaves, known when it is over."""
    gc.collect()
    gc.disable()
    left: list[str] = []
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        left += sorted({type(each).__qualname__ for each in gc.garbage})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
