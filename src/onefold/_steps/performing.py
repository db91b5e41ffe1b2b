"""What the steps of a work do: a phase in its transaction, a call and its record, the end.

Theory of operation. A phase locks the work's row where it is ours, runs the user's function in that transaction, and
commits its rows, its events, its record and a new lease together. The lock keeps others from taking the work over for
as long as the phase lasts. A call runs without a connection; its result is recorded in a short transaction afterwards.
The transaction of `finish` is begun like that of a phase; who ends it depends on what the work is (`WorkEnd`).

Failure windows. A crash in a phase is a rollback, a crash after its COMMIT finds the record. A crash between a call and
its record makes the call again, under the same key; a call that must not be made again is marked before, and parks the
work instead. A COMMIT whose answer was lost is looked for: a phase that is not known to be recorded ends this attempt.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from onefold._kernel.checkout import checkout, rollback_and_release, with_connection
from onefold._kernel.current_transaction import call_in
from onefold._kernel.effects import (
    Acquire,
    Batch,
    Boundary,
    Call,
    Discard,
    Fetch,
    Flow,
    Isolation,
    Now,
    Release,
    ReleaseCommitted,
    Sleep,
    Statement,
    Step,
    begin_at,
)
from onefold._kernel.handler_errors import rethrow
from onefold._kernel.lost_commits import look_until_known
from onefold._kernel.owned_transaction import OwnedTransaction, close_sessions, commit, undo
from onefold._steps.model import Done, Held, StepKind
from onefold._steps.model import Step as RecordedStep
from onefold._steps.points import Next, Points, RecordedResult, RunPoint, StepOptions, Unknown
from onefold._steps.ports import LeaseRenewals, NewTransaction, WorkEnd
from onefold._steps.sealing import Sealing
from onefold._steps.step_results import StepResults
from onefold._steps.works import CLAIMS_MAX, Works, read_steps, taken_over
from onefold.errors import (
    ConnectionLost,
    OutcomeUnknown,
    RequiredValueMissing,
    SerializationFailed,
    StoreBusy,
    StoreUnavailable,
    WorkMisused,
    WorkParked,
)

T = TypeVar("T")

_log = logging.getLogger("onefold.steps")


#: Between the attempts to record a call that was made, for as long as its lease lasts.
_RECORD_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)


class Performing:
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
        beats: LeaseRenewals,
    ) -> None:
        self._works = works
        self._held = claim if isinstance(claim, Held) else None
        self._done = claim if isinstance(claim, Done) else None
        self.digest = claim.digest
        self._end = end
        self._operation = operation
        self._isolation = isolation
        self._results = StepResults(self.digest, operation, sealing)
        self._beats = beats
        self._points = Points(claim.steps, what=operation)
        #: Steps that were asked for and not begun: coroutines that were not awaited.
        self.unbegun = 0
        #: Names that keys were derived from.
        self.derived: set[str] = set()
        #: The step whose COMMIT was interrupted: it may be recorded or not, and nothing may be built on either.
        self._unsure: str | None = None
        #: Whether the request or the block has ended.
        self._is_left = False
        self._parked: WorkParked | None = None
        #: The transaction of `finish`, from its function's return on.
        self.finishing: OwnedTransaction[Any] | None = None

    # --- what users call -----------------------------------------------------------------------------------

    async def phase(
        self, options: StepOptions, function: Callable[[Any], Any], returns: object, new_transaction: NewTransaction
    ) -> Any:
        step = self._ask("phase", options)
        if not isinstance(step, RunPoint):
            return self._results.read(step.recorded, returns)
        held, tx = self._mine(), new_transaction()

        async def run() -> tuple[RecordedStep, Any]:
            what = f"phase {step.name!r}"
            await self._enter(held, ())
            close = functools.partial(self._results.close, step, "phase", returns)
            record, value = await self._perform(tx, function, close, what=what)
            self._unsure = what
            await commit(tx, functools.partial(self._commit_phase, held, record))
            self._unsure = None
            return record, value

        return await self._run(held, run)

    async def call(self, options: StepOptions, function: Callable[[], Any], returns: object) -> Any:
        step = self._ask("call", options)
        if isinstance(step, Unknown):
            raise await self._park(step.recorded.name)
        if isinstance(step, RecordedResult):
            return self._results.read(step.recorded, returns)
        held = self._mine()

        async def run() -> tuple[RecordedStep, Any]:
            if step.marked:
                await self._record(held, RecordedStep(step.position, step.name, "call", "started", None))
                self._points.started()
            record, value = self._results.close(step, "call", returns, await Call(function))
            await self._record(held, record)
            return record, value

        return await self._run(held, run)

    async def _run(self, held: Held, step: Callable[[], Flow[tuple[RecordedStep, Any]]]) -> Any:
        """Run a step that gives its record, once that is committed, and what its user gets."""
        try:
            record, value = await step()
        except Exception:
            self._points.failed()
            await self._end_step(held)
            raise
        except BaseException:
            self._points.failed()
            self._beat_again(held)
            raise
        self._points.done(record.result)
        await self._end_step(held)
        return value

    async def finish(self, function: Callable[[Any], Any], returns: object, new_transaction: NewTransaction) -> Any:
        self._check_going_on("finish")
        self._points.finish()
        if self._done is not None:
            self._points.finish_done()
            return self._results.read_end(self._done.result, returns)
        held, tx = self._mine(), new_transaction()
        try:
            await self._enter(held, self._end.before)
            closes = functools.partial(self._close_end, returns)
            stored, value = await self._perform(tx, function, closes, what="finish")
            if self._is_left:
                await undo(tx, rollback_and_release)
                raise self._too_late("finish")
            self.finishing = tx
            self._unsure = "finish"
            await self._end.finish(tx, held, stored)
            self._unsure = None
        except Exception as error:
            if not isinstance(error, OutcomeUnknown):
                self._unsure = None
            self.finishing = None
            self._points.finish_failed()
            await self._end_step(held)
            raise
        except BaseException:
            self._points.finish_failed()
            self._beat_again(held)
            raise
        self._points.finish_done()
        return value

    def check_end(self) -> None:
        """Called before the work is ended. No step is begun after it. Raises WorkMisused, WorkChanged."""
        if self.unbegun:
            raise WorkMisused(
                f"{self._operation} asked for a step and did not await it, so that it did not happen: write `await "
                "work.phase(...)`, `await work.call(...)`, `await work.finish(...)`. Nothing was stored"
            )
        if self._points.is_running:
            raise WorkMisused(
                f"{self._operation} ended while one of its steps was under way: wait for each. Nothing was stored"
            )
        self._check_sure()
        if self._parked is not None:
            raise self._parked
        self._points.check_end()
        self._is_left = True

    @property
    def has_begun(self) -> bool:
        """Whether a step was asked for."""
        return self._points.has_begun

    def leave(self) -> bool:
        """The attempt ends, and no step is begun after it. False: one is still under way, in a task or on a thread of
        its own. It is recorded when it is done, if the work was not taken over by then, and gives the work back."""
        self._is_left = True
        return not self._points.is_running

    # --- a phase ---------------------------------------------------------------------------------------------

    async def _enter(self, held: Held, before: tuple[Step, ...]) -> None:
        """Begin a transaction that has the work's row locked. Raises WorkTakenOver."""
        self._beats.drop(held)
        begin: tuple[Step, ...] = (
            begin_at(self._isolation), *self._works.sql.opening(held.lease_s), *before, self._works.sql.lock(held),
        )  # fmt: skip
        for left in reversed(range(CLAIMS_MAX)):
            try:
                ours = await checkout(functools.partial(_batch, begin))
                break
            except SerializationFailed:  # the lease was renewed after the snapshot was taken
                if not left:
                    raise
        if not ours:
            await rollback_and_release()
            raise taken_over(held)

    async def _perform(
        self, tx: OwnedTransaction[Any], function: Callable[[Any], Any], close: Callable[[Any], T], *, what: str
    ) -> T:
        """Run the user's function in the transaction, which is rolled back where that fails, or `close` refuses what it
        returned."""
        tx.open(self._operation)
        try:
            closed = close(await Call(functools.partial(call_in, tx, function)))
            tx.check_end()
            await close_sessions(tx, True)
            tx.check_executed(f"{what} of {self._operation} ended")
        except Exception:
            await undo(tx, rollback_and_release)
            raise
        return closed

    async def _commit_phase(self, held: Held, record: RecordedStep, events: tuple[Statement, ...]) -> None:
        sql = self._works.sql
        try:
            await Batch((*sql.proof, *events, sql.renew(held), sql.record(held, record), Boundary.COMMIT))
        except ConnectionLost as error:
            await Discard()
            await self._look_for(held, record, error)
        except RequiredValueMissing as error:
            await Discard()
            raise taken_over(held) from error
        except Exception as error:
            await Discard()
            self._unsure = None
            rethrow(error)
        else:
            await ReleaseCommitted()

    async def _look_for(self, held: Held, record: RecordedStep, error: ConnectionLost) -> None:
        """COMMIT was sent and its answer lost. Returns where it took place."""
        found, asked = await look_until_known(
            lambda: with_connection(functools.partial(self._find, held, record.position))
        )
        what = f"the connection of phase {record.name!r} of {self._operation} was lost during COMMIT"
        if found is None:
            raise OutcomeUnknown(f"{what} and {'it is not decided yet' if asked else 'the store cannot be asked'}")
        if not found:
            self._unsure = None
            raise StoreUnavailable(f"{what}, and nothing of it was committed; a retry runs it again") from error

    async def _find(self, held: Held, position: int) -> bool | None:
        """Whether the step is recorded. None: its transaction still has the row."""
        await Batch((Boundary.BEGIN,))
        seen = await Fetch(self._works.sql.look(held))
        steps = read_steps(await Fetch(self._works.sql.steps(held.digest)))
        await Batch((Boundary.ROLLBACK,))
        if not seen:
            return None
        if seen[0][0] != held.fence:
            raise taken_over(held)
        return any(step.position == position for step in steps)

    def _close_end(self, returns: object, value: object) -> tuple[bytes | None, Any]:
        return self._results.close_end(returns, value) if self._end.records_result else (None, value)

    # --- a call ----------------------------------------------------------------------------------------------

    async def _record(self, held: Held, record: RecordedStep) -> None:
        """Commit a record of a call. It is tried for as long as the lease lasts: what is not recorded happens again."""
        sql, until = self._works.sql, await Now() + held.lease_s
        self._unsure = f"call {record.name!r}"
        steps: tuple[Step, ...] = (Boundary.BEGIN, sql.renew(held), sql.record(held, record), Boundary.COMMIT)
        for turn in range(1_000_000):
            try:
                await Acquire()
                await Batch(steps)
            except RequiredValueMissing as error:
                await Discard()
                self._unsure = None
                raise taken_over(held) from error
            except (StoreUnavailable, StoreBusy) as error:
                await Discard()
                pause_s = _RECORD_PAUSES_S[min(turn, len(_RECORD_PAUSES_S) - 1)]
                if held.taken_over or await Now() + pause_s >= until:
                    raise StoreUnavailable(
                        f"{record.state} of call {record.name!r} of {self._operation} could not be recorded: {error}"
                    ) from error
                await Sleep(pause_s)
            except Exception:
                await Discard()
                self._unsure = None
                raise
            else:
                self._unsure = None
                await Release()
                return

    async def _park(self, name: str) -> WorkParked:
        held, reason = self._mine(), f"outcome unknown: {name}"
        await self._works.park(held, reason)
        _log.error(
            "%s is parked (work %s): call %r was begun by an earlier attempt, its outcome is not known, and it must "
            "not be made again (replayable=False). Find out what became of it, then `onefold keys resume` or `release`",
            self._operation, held.digest.hex(), name,
        )  # fmt: skip
        self._beats.drop(held)
        self._parked = WorkParked(
            f"The outcome of {name!r}, a part of this request, is not known. A person looks into it."
        )
        return self._parked

    # --- what they share -------------------------------------------------------------------------------------

    def _ask(self, kind: StepKind, options: StepOptions) -> Next:
        self._check_going_on(f"{kind} {options.name!r}")
        step = self._points.ask(kind, options)
        if isinstance(step, RunPoint) and self._done is not None:
            self._points.failed()
            raise WorkMisused(
                f"{self._operation} is finished, and {kind} {options.name!r} is not among the steps that it recorded: "
                "what is to be done after the end of a work is another work"
            )
        return step

    def _mine(self) -> Held:
        assert self._held is not None
        if self._held.taken_over:
            raise taken_over(self._held)
        return self._held

    def _check_going_on(self, asked: str) -> None:
        """This attempt goes on with another step. Raises WorkMisused, OutcomeUnknown, WorkParked, WorkTakenOver."""
        self.unbegun -= 1
        if self._is_left:
            raise self._too_late(asked)
        self._check_sure()
        if self._parked is not None:
            raise self._parked
        if self._held is not None:
            _ = self._mine()

    def _too_late(self, asked: str) -> WorkMisused:
        return WorkMisused(
            f"{asked} of {self._operation} was asked for when that had ended, by a task, a thread or a background task "
            "that outlived it: nothing of it is kept. Wait for each step before the end"
        )

    def _check_sure(self) -> None:
        if self._unsure is not None:
            raise OutcomeUnknown(
                f"the end of {self._unsure} of {self._operation} was interrupted, and it is not known whether it is "
                "recorded: this attempt ends, and the next one finds out"
            )

    async def _end_step(self, held: Held) -> None:
        """A step is over: the lease is renewed again, or given back where it was the last thing that was under way."""
        self._beat_again(held)
        if self._is_left and not held.taken_over:
            await self._works.give_back(held)

    def _beat_again(self, held: Held) -> None:
        if held.taken_over or self._is_left:
            self._beats.drop(held)
        else:
            self._beats.hold(held)


async def _batch(steps: tuple[Step, ...]) -> int:
    return await Batch(steps)
