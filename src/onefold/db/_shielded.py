"""Work that cancellation must not stop half-way: taking a connection from a pool, and giving it back.

The task that awaits it is cancelled at once; the work itself goes on to its end, and its result, which no task waits
for any more, is disposed of.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from onefold._kernel.executors import begin_in_background

T = TypeVar("T")


class Shielded:
    """The work under way for one database."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()  # the loop keeps only weak references to tasks

    async def run(
        self, work: Coroutine[Any, Any, T], *, on_abandoned: Callable[[T], Coroutine[Any, Any, None]] | None = None
    ) -> T:
        """The result of the work; `on_abandoned` disposes of it if the wait was cancelled."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if on_abandoned is not None:
                _ = self._start(_dispose(task, on_abandoned))
            raise

    async def finish(self, timeout_s: float) -> None:
        """Wait for the abandoned ones, but not for ever."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._under_way and loop.time() < deadline:
            await asyncio.wait(self._under_way, timeout=deadline - loop.time())

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: of an abandoned task no other code would, and asyncio would complain


async def _dispose(task: asyncio.Task[T], on_abandoned: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    await on_abandoned(await task)


async def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Await short work to its end, also if this task is cancelled. Only work that has to wait costs a task, which is
    why it is driven by hand: a task for each connection that is given back would cost 15 us. The work begins in one
    task and context and may end in another, so it must not use what belongs to these, such as `asyncio.timeout` or a
    context variable: nothing that calls code of the application's."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return
    await asyncio.shield(begin_in_background(_go_on(work, waits_for)))


async def _go_on(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    """The rest of a coroutine that has begun, for another task."""
    try:
        while True:
            try:
                answer = await _hand_on(waits_for)
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(answer)
    except StopIteration:
        return


@types.coroutine
def _hand_on(waits_for: Any) -> Generator[Any, Any, Any]:
    """Give the loop what a coroutine waits for."""
    return (yield waits_for)
