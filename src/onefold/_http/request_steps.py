"""The steps of a request, as its handler gets them: in the handler's own colour, over the request's own executor."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, cast

from onefold._http.request import pick_carried_headers
from onefold._http.scope_keys import TRANSACTION
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.loop_bridge import LoopBridge
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._steps.performing import Performing
from onefold._steps.steps import Steps, on_loop, on_thread

if TYPE_CHECKING:
    from onefold._http.guarded_request import GuardedRequest

BETWEEN_STEPS: Final = (
    "this handler works in steps, and tx is open inside of them only: write rows and publish events in the functions "
    "of work.phase(...) and work.finish(...), which get their transaction as the first argument"
)


class RequestSteps:
    """Gives a handler its steps."""

    performing: Performing

    def __init__(self, guarded: GuardedRequest[Any]) -> None:
        self._guarded = guarded
        guarded.tx.explain(BETWEEN_STEPS)
        self._loop = asyncio.get_running_loop() if isinstance(guarded.executor, TaskExecutor) else None

    def of(self, *, asynchronous: bool) -> Steps:
        """For a handler that awaits, or does not."""
        return Steps(self.performing, self._runner(asynchronous), asynchronous=asynchronous)

    def check_end(self) -> None:
        self.performing.check_end()

    def _runner(self, asynchronous: bool) -> Callable[[Callable[[], Flow[Any]]], Any]:
        executor = self._guarded.executor
        if isinstance(executor, ThreadExecutor):
            return functools.partial(on_thread, executor)
        if asynchronous:
            return functools.partial(on_loop, executor)
        assert self._loop is not None
        return functools.partial(on_thread, LoopBridge(executor, self._loop))

    def new_transaction(self) -> OwnedTransaction[Any]:
        """The transaction of the next phase, or of `finish`: also for what looks for that of the request."""
        guarded = self._guarded
        shared = guarded.shared
        tx: OwnedTransaction[Any] = OwnedTransaction(
            guarded.executor, shared.outbox, shared.sessions, development=shared.development
        )
        tx.carry(functools.partial(pick_carried_headers, guarded.request.headers))
        guarded.tx = cast("MutableMapping[str, Any]", guarded.request.source)[TRANSACTION] = tx
        return tx
