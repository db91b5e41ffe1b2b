"""Running a call on a thread or on a loop, and freeing the answer in hand where it is broken off.

A cancellation ends a flow at once, wherever it is. An answer that was not handed on yet, as while the journal notes how
the call ended, would keep its connection: nobody else knows of it.
"""

from __future__ import annotations

from typing import Any

from onefold._kernel.effects import Flow
from onefold._kernel.runners import run, run_async
from onefold.client.course import Course
from onefold.client.store import JournalStore
from onefold.client.waiting import AsyncCallLane, CallLane
from onefold.client.wire import Wire


def drive(course: Course, flow: Flow[Any], wire: Wire[Any], store: JournalStore) -> Any:
    """Run the flow of this course on this thread."""
    try:
        return run(flow, CallLane(store.threads, course.deadline_at))
    except BaseException:
        if course.held is not None:
            wire.discard(course.held)
        raise


async def drive_async(course: Course, flow: Flow[Any], wire: Wire[Any], store: JournalStore) -> Any:
    """The same on the running loop."""
    try:
        return await run_async(flow, AsyncCallLane(store.tasks, course.deadline_at))
    except BaseException:
        if course.held is not None:
            await wire.discard(course.held)
        raise
