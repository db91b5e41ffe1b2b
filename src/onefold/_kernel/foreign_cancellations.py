"""Cancellations that come out of third-party code, though not meant for a task, and those that get lost in it.

A future that was cancelled elsewhere (a driver's, a broker client's) raises CancelledError in whatever awaits it. Taken
for a stop, it would silently end a task that works in the background, and that nothing starts again.

And `asyncio.wait_for`, by which pools and broker clients wait, loses a cancellation on Python 3.11 if it comes in the
moment in which what is waited for is there: a task that was cancelled once would go on for ever. psycopg loses one to
the error of the statement that it interrupts, where the server was quicker to refuse that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar

from onefold.errors import OnefoldError

T = TypeVar("T")

#: How long a cancelled task may clean up before it is cancelled again. psycopg gives a dead server 5 s to end a query,
#: and some tasks have two of them to end.
AGAIN_S: Final = 20.0


class Interrupted(OnefoldError):
    """Something that was waited for was cancelled, and not because of a stop."""


def is_foreign() -> bool:
    """Whether a CancelledError that was caught just now is not meant for the task that caught it."""
    task = asyncio.current_task()
    return task is None or not task.cancelling()


def cancellations() -> int:
    """How often this task was cancelled until now."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def check_lost(before: int, error: Exception | None = None) -> None:
    """Raises the cancellation that what was awaited has lost since there were that many: `error` came in its place."""
    if cancellations() > before:
        raise asyncio.CancelledError from error


async def resist(work: Awaitable[T]) -> T:
    """Await it. A cancellation that is not meant for this task is an error like any other."""
    try:
        return await work
    except asyncio.CancelledError as error:
        if not is_foreign():
            raise
        raise Interrupted("something that was waited for was cancelled elsewhere") from error


async def finish(work: Coroutine[Any, Any, None], within_s: float) -> bool:
    """Await a clean-up to its end, also if this task is cancelled meanwhile. What takes longer is cut off: False."""
    task = asyncio.create_task(work)
    ours: asyncio.CancelledError | None = None
    now_s = asyncio.get_running_loop().time
    until = now_s() + within_s
    while not task.done() and (left_s := until - now_s()) > 0:
        try:
            await asyncio.wait([task], timeout=left_s)
        except asyncio.CancelledError as error:
            ours = error
    in_time = task.done()
    if not in_time:
        await cancel_until_ended(task)
    failure = None if task.cancelled() else task.exception()
    if ours is not None:
        raise ours
    if failure is not None:
        raise failure
    return in_time


async def cancel_until_ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their ends, whichever these are. One that goes on for too long is cancelled again: it
    may have lost its cancellation. If the caller is cancelled meanwhile, they are ended all the same, and undisturbed,
    before CancelledError is raised."""
    running = set(tasks)
    ours: asyncio.CancelledError | None = None
    now_s = asyncio.get_running_loop().time
    again_at = now_s()
    while running:
        if (left_s := again_at - now_s()) <= 0:
            for task in running:
                task.cancel()
            left_s, again_at = AGAIN_S, now_s() + AGAIN_S
        try:
            _, running = await asyncio.wait(running, timeout=left_s)
        except asyncio.CancelledError as error:
            ours = error
            running = {task for task in running if not task.done()}
    await asyncio.gather(*tasks, return_exceptions=True)  # their errors are known: none is logged as never retrieved
    if ours is not None:
        raise ours
