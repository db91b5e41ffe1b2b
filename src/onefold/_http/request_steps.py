"""The steps of a request, as its handler gets them: in the handler's own colour, over the request's own executor."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, cast

from onefold._http.request import pick_carried_headers
from onefold._http.scope_keys import TRANSACTION
from onefold._kernel.effects import Isolation
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.loop_bridge import LoopBridge
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.runners import run
from onefold._steps.attempt_steps import AttemptSteps
from onefold._steps.model import Held
from onefold._steps.step_telemetry import StepReporter
from onefold._steps.steps import MakeStep, Steps, on_loop, on_thread

if TYPE_CHECKING:
    from onefold._http.guarded_request import GuardedRequest
    from onefold._http.stepped_store import SteppedStore

BETWEEN_STEPS: Final = (
    "this handler works in steps, and tx is open inside of them only: write rows and publish events in the functions "
    "of work.phase(...) and work.finish(...), which get their transaction as the first argument"
)

#: For the caller of a request that is parked. Not why: the reason names parts of the application or repeats what an
#: exception said, and is the operator's (`onefold keys`).
PARKED: Final = (
    "This request was begun and could not be completed. The operator of this service must act first, and a retry gets "
    "this answer until then. Do not send it under another Idempotency-Key, or it may happen twice."
)


class RequestSteps:
    """Gives a handler its steps. The last of them leaves its transaction to the request's own end (`WorkEnd`)."""

    records_result = False

    def __init__(
        self, shared: SteppedStore, guarded: GuardedRequest[Any], held: Held, isolation: Isolation | None
    ) -> None:
        self._guarded = guarded
        self.before = shared.keys.sql.BEFORE_HANDLER
        self._steps = AttemptSteps(
            shared.works,
            held,
            end=self,
            operation=guarded.operation,
            isolation=isolation,
            sealing=shared.sealing,
            renewals=shared.renewals,
            reporter=StepReporter(guarded.shared.listener, guarded.operation),
            tracer=guarded.shared.tracer,
        )
        guarded.tx.refuse_with(BETWEEN_STEPS)
        self._loop = asyncio.get_running_loop() if isinstance(guarded.executor, TaskExecutor) else None

    def of(self, *, asynchronous: bool) -> Steps:
        """For a handler that awaits, or does not."""
        perform = self._find_runner(asynchronous)
        return Steps(self._steps, self._guarded.executor, perform, asynchronous=asynchronous)

    def describe_parked(self, reason: str) -> str:
        return PARKED

    def check_end(self) -> None:
        self._steps.check_end()

    @property
    def has_begun(self) -> bool:
        """Whether a step was begun."""
        return self._steps.has_begun

    @property
    def is_finishing(self) -> bool:
        """Whether the transaction of `finish` is open."""
        return self._steps.finishing is not None

    def leave(self) -> bool:
        """The handler has ended, and begins no more steps. False: one is still under way."""
        return self._steps.leave()

    async def finish(self, tx: OwnedTransaction[Any], held: Held, result: bytes | None) -> None:
        """The transaction stays open: it is committed with the answer."""
        self._guarded.adopt(tx)

    def _find_runner(self, asynchronous: bool) -> Callable[[MakeStep], Any]:
        executor = self._guarded.executor
        if isinstance(executor, ThreadExecutor):
            return functools.partial(on_thread, executor, self._new_transaction)
        if asynchronous:
            return functools.partial(on_loop, executor, self._new_transaction)
        return functools.partial(self._on_bridge, executor)

    def _on_bridge(self, database: TaskExecutor[Any], make: MakeStep) -> Any:
        """Performs a step on this thread, with a connection that the loop has."""
        assert self._loop is not None
        executor = database.anew()
        return run(make(functools.partial(self._new_transaction, executor)), LoopBridge(executor, self._loop))

    def _new_transaction(self, executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> OwnedTransaction[Any]:
        """The transaction of the next phase, or of `finish`. The framework's way to a transaction (`Tx`,
        `current_transaction()`, a session) leads to it from now on; the request's own stays closed."""
        guarded = self._guarded
        shared = guarded.shared
        tx: OwnedTransaction[Any] = OwnedTransaction(executor, shared.outbox, shared.sessions, shared.natural)
        tx.development = shared.development
        tx.carry(functools.partial(pick_carried_headers, guarded.request.headers), guarded.record_name)
        cast("MutableMapping[str, Any]", guarded.request.source)[TRANSACTION] = tx
        return tx
