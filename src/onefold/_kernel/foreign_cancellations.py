"""Telling a cancellation that is meant for a task from one that only passes through it.

A future that was cancelled elsewhere (a driver's, a broker client's) raises CancelledError in whatever awaits it. Taken
for a stop, it would silently end a task that works in the background, and that nothing starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from onefold.errors import OnefoldError

T = TypeVar("T")


class Interrupted(OnefoldError):
    """Something that was waited for was cancelled, and not because of a stop."""


def is_foreign() -> bool:
    """Whether a CancelledError that was caught just now is not meant for the task that caught it."""
    task = asyncio.current_task()
    return task is None or not task.cancelling()


async def resist(work: Awaitable[T]) -> T:
    """Await it. A cancellation that is not meant for this task is an error like any other."""
    try:
        return await work
    except asyncio.CancelledError as error:
        if not is_foreign():
            raise
        raise Interrupted("something that was waited for was cancelled elsewhere") from error
