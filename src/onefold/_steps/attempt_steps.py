"""Performs the steps of a work: a phase in its transaction, a call and its record, the end.

Theory of operation. A phase locks the work's row, if its fence is still ours, runs the user's function in that
transaction, and commits its rows, its events, its record and a new lease together. The lock keeps others from taking
the work over for as long as the phase lasts. A call runs without a connection; its result is recorded in a short
transaction afterwards. The transaction of `finish` is begun like that of a phase; who ends it depends on what the work
is (`WorkEnd`).

Failure windows. A crash in a phase is a rollback, a crash after its COMMIT finds the record. A crash between a call and
its record makes the call again, under the same key; a call that must not be made again is marked before, and parks the
work instead. A COMMIT whose answer was lost is looked for: a phase that is not known to be recorded ends this attempt.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from onefold._kernel.checkout import checkout, rollback_and_release, run_batch
from onefold._kernel.current_transaction import call_in
from onefold._kernel.effects import BatchItem, Call, Flow, Isolation, begin_at
from onefold._kernel.owned_transaction import OwnedTransaction, close_sessions, commit, undo
from onefold._kernel.telemetry import request_events as telemetry
from onefold._kernel.tracing import Tracer
from onefold._steps.attempt_guard import AttemptGuard
from onefold._steps.model import Done, Held, RecordedStep, StepKind
from onefold._steps.sealing import Sealing
from onefold._steps.step_order import NewStep, Next, RecordedResult, StepOptions, StepOrder, Unknown
from onefold._steps.step_records import StepRecords
from onefold._steps.step_results import StepResults
from onefold._steps.step_telemetry import StepReporter
from onefold._steps.step_trace import trace_recorded, trace_step
from onefold._steps.work_ports import LeaseRenewals, NewTransaction, WorkEnd
from onefold._steps.works import CLAIMS_MAX, Works, note_taken_over
from onefold.errors import OutcomeUnknown, ResultUnreadable, SerializationFailed, StoreError, WorkMisused

T = TypeVar("T")


class AttemptSteps:
    """The steps of one attempt at a work."""

    def __init__(
        self,
        works: Works,
        claim: Held | Done,
        *,
        end: WorkEnd,
        operation: str,
        isolation: Isolation | None,
        sealing: Sealing,
        renewals: LeaseRenewals,
        reporter: StepReporter,
        tracer: Tracer | None = None,
    ) -> None:
        held = claim if isinstance(claim, Held) else None
        self._works = works
        self._done = claim if isinstance(claim, Done) else None
        self.digest = claim.digest
        self._end = end
        self.operation = operation
        self._isolation = isolation
        self._results = StepResults(self.digest, operation, sealing)
        self._renewals = renewals
        self._tracer = tracer
        self._order = StepOrder(claim.steps, what=operation, ended=reporter.report_end)
        self.guard = AttemptGuard(works, held, operation, renewals, reporter, end.describe_parked)
        self._records = StepRecords(works, operation, self.guard)
        #: Names that keys were derived from.
        self.derived: set[str] = set()
        #: The transaction of `finish`, from its function's return on.
        self.finishing: OwnedTransaction[Any] | None = None

    # --- what users call -----------------------------------------------------------------------------------

    async def phase(
        self, options: StepOptions, function: Callable[[Any], Any], returns: object, new_transaction: NewTransaction
    ) -> Any:
        step = self._advance("phase", options)
        if not isinstance(step, NewStep):
            self._note_recorded("phase", options.name)
            return self._results.read(step.recorded, returns)
        held, tx = self.guard.held, new_transaction()

        async def run() -> tuple[RecordedStep, Any]:
            what = f"phase {step.name!r}"
            await self._enter(held, ())
            close = functools.partial(self._results.record, step, "phase", returns)
            record, value = await self._perform(tx, function, close, what=what)
            self.guard.unsure = what
            await commit(tx, functools.partial(self._records.commit_phase, held, record))
            self.guard.unsure = None
            return record, value

        return await self._trace("phase", step.name, self._run(held, run))

    async def call(self, options: StepOptions, function: Callable[[], Any], returns: object) -> Any:
        step = self._advance("call", options)
        if isinstance(step, Unknown):
            raise await self.guard.park(step.recorded.name)
        if isinstance(step, RecordedResult):
            self._note_recorded("call", options.name)
            return await self._read_call(step.recorded, returns)
        held = self.guard.held

        async def run() -> tuple[RecordedStep, Any]:
            if step.marked:
                await self._records.commit_call(held, RecordedStep(step.position, step.name, "call", "started", None))
                self._order.mark_started()
            held.may_have_called = True
            record, value = self._results.record(step, "call", returns, await Call(function))
            await self._records.commit_call(held, record)
            return record, value

        return await self._trace("call", step.name, self._run(held, run))

    async def _read_call(self, recorded: RecordedStep, returns: object) -> Any:
        try:
            return self._results.read(recorded, returns)
        except (ResultUnreadable, StoreError) as error:  # of another form, or not sealed as this application seals
            if recorded.state != "told" or self._done is not None or self._may_have_used(recorded):
                raise
            raise await self.guard.park_told(recorded, error) from error

    def _may_have_used(self, entered: RecordedStep) -> bool:
        """Whether an attempt may have used the outcome that an operator entered: there was one before, or a later
        record."""
        held = self.guard.held
        return held.attempts > 1 or held.steps[-1].position > entered.position

    async def _run(self, held: Held, step: Callable[[], Flow[tuple[RecordedStep, Any]]]) -> Any:
        """Run a step, which returns its record, committed, and its value for the user."""
        try:
            record, value = await step()
        except Exception:
            self._order.mark_failed()
            await self.guard.end_step(held)
            raise
        except BaseException:
            self._order.mark_failed()
            self.guard.renew_again(held)
            raise
        self._order.mark_done(record.result)
        await self.guard.end_step(held)
        return value

    async def finish(self, function: Callable[[Any], Any], returns: object, new_transaction: NewTransaction) -> Any:
        self.guard.check_next("finish")
        self._order.finish()
        if self._done is not None:
            self._order.finish_done()
            self._note_recorded("finish", "finish")
            return self._results.read_end(self._done.result, returns)
        return await self._trace("finish", "finish", self._finish(function, returns, new_transaction()))

    async def _finish(self, function: Callable[[Any], Any], returns: object, tx: OwnedTransaction[Any]) -> Any:
        held = self.guard.held
        try:
            await self._enter(held, self._end.before)
            closes = functools.partial(self._close_end, returns)
            stored, value = await self._perform(tx, function, closes, what="finish")
            if self.guard.is_left:
                await undo(tx, rollback_and_release)
                raise self.guard.too_late("finish")
            self.finishing = tx
            self.guard.unsure = "finish"
            await self._end.finish(tx, held, stored)
            self.guard.unsure = None
        except Exception as error:
            if not isinstance(error, OutcomeUnknown):
                self.guard.unsure = None
            self.finishing = None
            self._order.finish_failed()
            await self.guard.end_step(held)
            raise
        except BaseException:
            self._order.finish_failed()
            self.guard.renew_again(held)
            raise
        self._order.finish_done()
        return value

    def check_end(self) -> None:
        """Called before the work is ended. No step is begun after it. Raises WorkMisused, OutcomeUnknown, WorkParked,
        WorkChanged."""
        self.guard.check_end(is_running=self._order.is_running)
        self._order.check_end()
        self.guard.is_left = True

    @property
    def has_begun(self) -> bool:
        """Whether a step was called."""
        return self._order.has_begun

    def leave(self) -> bool:
        """The attempt ends, and no step is begun after it. False: one is still under way, in a task or on a thread of
        its own. It is recorded when it is done, if the work was not taken over by then, and gives the work back."""
        self.guard.is_left = True
        return not self._order.is_running

    # --- a phase ---------------------------------------------------------------------------------------------

    async def _enter(self, held: Held, before: tuple[BatchItem, ...]) -> None:
        """Begin a transaction that has the work's row locked. Raises WorkTakenOver."""
        self._renewals.drop(held)
        begin: tuple[BatchItem, ...] = (
            begin_at(self._isolation), *self._works.sql.opening(held.phase_s), *before, self._works.sql.lock(held),
        )  # fmt: skip
        for remaining in reversed(range(CLAIMS_MAX)):
            try:
                is_ours = await checkout(functools.partial(run_batch, *begin))
                break
            except SerializationFailed:  # the lease was renewed after the snapshot was taken
                if not remaining:
                    raise
        if not is_ours:
            await rollback_and_release()
            raise note_taken_over(held)

    async def _perform(
        self, tx: OwnedTransaction[Any], function: Callable[[Any], Any], close: Callable[[Any], T], *, what: str
    ) -> T:
        """Run the user's function in the transaction, which is rolled back where that fails, or `close` refuses what it
        returned."""
        tx.open(self.operation)
        try:
            closed = close(await Call(functools.partial(call_in, tx, function)))
            tx.check_end()
            await close_sessions(tx, True)
            tx.check_executed(f"{what} of {self.operation} ended")
        except Exception:
            await undo(tx, rollback_and_release)
            raise
        return closed

    def _close_end(self, returns: object, value: object) -> tuple[bytes | None, Any]:
        return self._results.record_end(returns, value) if self._end.records_result else (None, value)

    # --- spans -----------------------------------------------------------------------------------------------

    def _trace(self, kind: telemetry.StepKind, name: str, step: Flow[Any]) -> Flow[Any]:
        return step if self._tracer is None else trace_step(self._tracer, kind, name, step)

    def _note_recorded(self, kind: telemetry.StepKind, name: str) -> None:
        if self._tracer is not None:
            trace_recorded(self._tracer, kind, name)

    # --- shared ----------------------------------------------------------------------------------------------

    def _advance(self, kind: StepKind, options: StepOptions) -> Next:
        self.guard.check_next(f"{kind} {options.name!r}")
        step = self._order.advance(kind, options)
        if isinstance(step, NewStep) and self._done is not None:
            self._order.mark_failed()
            raise WorkMisused(
                f"{self.operation} is finished, and {kind} {options.name!r} is not among the steps that it recorded: "
                "what is to be done after the end of a work is another work"
            )
        return step
