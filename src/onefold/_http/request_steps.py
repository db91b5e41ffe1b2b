"""The steps of a request, as its handler gets them: in the handler's own colour, over the request's own executor."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, cast

from onefold._http.request import pick_carried_headers
from onefold._http.scope_keys import GUARDED, TRANSACTION
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, in_background
from onefold._kernel.loop_bridge import LoopBridge
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.runners import run_async
from onefold._steps.steps import Steps, on_loop, on_thread

if TYPE_CHECKING:
    from onefold._http.guarded_request import GuardedRequest

BETWEEN_STEPS: Final = (
    "this handler works in steps, and tx is open inside of them only: write rows and publish events in the functions "
    "of work.phase(...) and work.finish(...), which get their transaction as the first argument"
)


class RequestSteps:
    """Gives a handler its steps."""

    def __init__(self, guarded: GuardedRequest[Any]) -> None:
        self._guarded = guarded
        assert guarded.work is not None
        guarded.tx.explain(BETWEEN_STEPS)
        executor = guarded.executor
        self._loop = asyncio.get_running_loop() if isinstance(executor, TaskExecutor) else None
        self._performing = guarded.work.begin(guarded.operation, self._new_transaction)

    def of(self, *, asynchronous: bool) -> Steps:
        """For a handler that awaits, or does not."""
        return Steps(self._performing, self._runner(asynchronous), asynchronous=asynchronous)

    def check_end(self) -> None:
        self._performing.check_end()

    def _runner(self, asynchronous: bool) -> Callable[[Callable[[], Flow[Any]]], Any]:
        executor = self._guarded.executor
        if isinstance(executor, ThreadExecutor):
            return functools.partial(on_thread, executor)
        if asynchronous:
            return functools.partial(on_loop, executor)
        assert self._loop is not None
        return functools.partial(on_thread, LoopBridge(executor, self._loop))

    def _new_transaction(self) -> OwnedTransaction[Any]:
        """The transaction of the next phase, or of `finish`: also for what looks for that of the request."""
        guarded = self._guarded
        shared = guarded.shared
        tx: OwnedTransaction[Any] = OwnedTransaction(
            guarded.executor, shared.outbox, shared.sessions, development=shared.development
        )
        tx.carry(functools.partial(pick_carried_headers, guarded.request.headers))
        guarded.tx = cast("MutableMapping[str, Any]", guarded.request.source)[TRANSACTION] = tx
        return tx


def is_between_steps(source: Mapping[str, Any]) -> bool:
    """Whether the handler of a request works in steps and is in none now: it has no transaction then."""
    guarded = source.get(GUARDED)
    return guarded is not None and guarded.work is not None and not guarded.tx.is_open


def give_back_interrupted(guarded: GuardedRequest[Any]) -> None:
    """The request was cancelled, and nothing more may be awaited for it: its work is given back without it. Where that
    fails, the lease runs out."""
    work = guarded.work
    held = None if work is None else work.abandon()
    if work is not None and held is not None and isinstance(guarded.executor, TaskExecutor):
        in_background(run_async(work.give_back(held), guarded.executor.anew()))
