"""Running a call on a thread or on a loop, and freeing the answer in hand where it is broken off.

A cancellation ends a flow at once, wherever it is. An answer that was not handed on yet, as while the journal notes how
the call ended, would keep its connection: nobody else knows of it.
"""

from __future__ import annotations

from typing import Any

from onefold._client.journal_store import JournalStore
from onefold._client.retry_flow import RetryFlow
from onefold._client.sleeping import AsyncCallExecutor, CallExecutor
from onefold._client.wire import Wire
from onefold._kernel.effects import Flow
from onefold._kernel.runners import run, run_async


def drive(retry_flow: RetryFlow, flow: Flow[Any], wire: Wire[Any], store: JournalStore) -> Any:
    """Run the flow of this course on this thread."""
    try:
        return run(flow, CallExecutor(store.threads, retry_flow.deadline_at))
    except BaseException:
        if retry_flow.held is not None:
            wire.discard(retry_flow.held)
        raise


async def drive_async(retry_flow: RetryFlow, flow: Flow[Any], wire: Wire[Any], store: JournalStore) -> Any:
    """The same on the running loop."""
    try:
        return await run_async(flow, AsyncCallExecutor(store.tasks, retry_flow.deadline_at))
    except BaseException:
        if retry_flow.held is not None:
            await wire.discard(retry_flow.held)
        raise
