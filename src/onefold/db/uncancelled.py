"""Work that cancellation must not stop half-way: taking a connection from a pool, and giving it back.

Whoever awaits it is cancelled at once; the work itself goes on to its end, and what it brings, which nobody waits
for any more, is disposed of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: The loop keeps only weak references to tasks.
_under_way: set[asyncio.Task[Any]] = set()


async def to_the_end(
    work: Coroutine[Any, Any, T], *, unclaimed: Callable[[T], Coroutine[Any, Any, None]] | None = None
) -> T:
    """The result of the work; `unclaimed` disposes of it if the wait was cancelled."""
    task = _started(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if unclaimed is not None:
            _ = _started(_dispose(task, unclaimed))
        raise


async def _dispose(task: asyncio.Task[T], unclaimed: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    await unclaimed(await task)


def _started(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # seen: if nobody waits any more, nobody can act on it
