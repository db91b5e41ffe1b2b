"""What a piece of work leaves behind that only the garbage collector can free: whatever lies in a cycle.

It stays, with all it holds, until the next collection; under load those come often and stop everything.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def left_to_collector() -> Iterator[list[str]]:
    """The kinds of what the block leaves, known when it is over.

    What was there before is set aside: some C types cannot be cleared, so a cycle of theirs that another test left is
    found by every collection of this process.
    """
    gc.collect()
    gc.disable()
    gc.freeze()
    left: list[str] = []
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        left += sorted({type(each).__qualname__ for each in gc.garbage})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
