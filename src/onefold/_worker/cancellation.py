"""Cancels tasks and waits for them, and distinguishes our own cancellation from any other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from onefold._kernel.foreign_cancellations import cancel_until_ended

#: Tasks that `cancel_task` has cancelled.
_cancelled_by_us: WeakSet[asyncio.Task[Any]] = WeakSet()


async def either(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until one of the events is set, for `timeout_s` at most."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cancel_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task, so that `may_go_on` distinguishes it from a cancellation inside the task."""
    _cancelled_by_us.add(task)
    task.cancel()


def may_go_on() -> bool:
    """Whether a CancelledError that was caught just now was not `cancel_task`, so that its task may go on.

    It came out of something awaited, or the handler has cancelled the task it runs in. A loop that cancels all its
    tasks before it is closed looks the same; then the tasks that started this one are cancelled, too, and cancel it so.
    """
    task = asyncio.current_task()
    if task is None or task in _cancelled_by_us:
        return False
    while task.uncancel():
        pass
    return True


async def join_tasks(running: Iterable[asyncio.Task[None]], grace_s: float) -> None:
    """Wait for tasks to end by themselves; those that do not in time, or until we are cancelled, are cancelled
    until they do."""
    tasks = list(running)
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, timeout=grace_s)
    finally:
        _cancelled_by_us.update(tasks)
        await cancel_until_ended(*tasks)
