"""Making an HTTP call on a thread or on a loop, and freeing the answer in hand where it is broken off.

A cancellation ends a flow at once, wherever it is. An answer that was not handed on yet, as while the journal notes how
the call ended, would keep its connection: nothing else refers to it.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from onefold._client.call_executors import AsyncCallExecutor, CallExecutor
from onefold._client.http_call import HttpCall
from onefold._client.journal_store import JournalStore
from onefold._client.retry_loop import Raised, unwrap
from onefold._kernel.effects import Flow
from onefold._kernel.runners import run, run_async


def make_call(call: HttpCall, store: JournalStore) -> Any:
    """Make the call on this thread: the response, or the error of its last attempt."""
    if call.trace is not None:
        return _drive(call, call.trace.follow(call.run()), store)
    left_s = call.begin_first()
    if left_s is None:
        return _drive(call, call.run(), store)
    try:
        response = call.request.send(left_s)
    except Exception as error:
        flow = call.finish(Raised(error))
    except BaseException:
        call.release_without_verdict()
        raise
    else:
        if call.succeeds(response, monotonic()):
            return response
        flow = call.finish(response)
    return _drive(call, flow, store)


async def make_call_async(call: HttpCall, store: JournalStore) -> Any:
    """`make_call` on the running loop."""
    if call.trace is not None:
        return await _drive_async(call, call.trace.follow(call.run()), store)
    left_s = call.begin_first()
    if left_s is None:
        return await _drive_async(call, call.run(), store)
    try:
        response = await call.request.send(left_s)
    except Exception as error:
        flow = call.finish(Raised(error))
    except BaseException:
        call.release_without_verdict()
        raise
    else:
        if call.succeeds(response, monotonic()):
            return response
        flow = call.finish(response)
    return await _drive_async(call, flow, store)


def _drive(call: HttpCall, flow: Flow[Any], store: JournalStore) -> Any:
    try:
        return unwrap(run(flow, CallExecutor(store.threads, call.deadline_at)))
    except BaseException:
        if call.held is not None:
            call.request.discard(call.held)
        raise


async def _drive_async(call: HttpCall, flow: Flow[Any], store: JournalStore) -> Any:
    try:
        return unwrap(await run_async(flow, AsyncCallExecutor(store.tasks, call.deadline_at)))
    except BaseException:
        if call.held is not None:
            await call.request.discard(call.held)
        raise
