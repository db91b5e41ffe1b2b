"""A work that is not a request, and one attempt at it: its claim, its steps, and its end with `finish` or without.

Theory of operation. An attempt is made of a claim: the work is held now, or it was done before; either way its code
runs. An exception keeps what is recorded and gives the lease back: the next attempt goes on. What ends a work depends
on its kind: `once.work` remembers the end with the steps, a message has its ledger row and forgets the work. The end is
committed with what the function of `finish` wrote, or in a transaction of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Final

from onefold._kernel.checkout import run_batch, with_connection
from onefold._kernel.effects import (
    BatchItem,
    Boundary,
    Isolation,
    ReleaseCommitted,
    Statement,
    begin_at,
)
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction, commit
from onefold._kernel.tracing import Tracer
from onefold._steps.attempt_steps import AttemptSteps
from onefold._steps.fenced_commit import commit_fenced, find_lost_commit
from onefold._steps.model import Busy, Differs, Done, Held, WaitsForPerson, WorkAsk
from onefold._steps.sealing import Sealing
from onefold._steps.step_telemetry import StepReporter
from onefold._steps.steps import Steps, on_loop, on_thread
from onefold._steps.work_ports import LeaseRenewals
from onefold._steps.works import Works, note_taken_over
from onefold.errors import (
    ConnectionLost,
    OutcomeUnknown,
    RequiredValueMissing,
    WorkInProgress,
    WorkMismatch,
    WorkParked,
)

_NEXT_ENDS: Final = "the next attempt ends it"


class Work:
    """The part of a work that depends on its kind: its claim, and the statements that end it."""

    records_result: ClassVar[bool] = False
    """Whether a later attempt may ask for the result of `finish`."""

    def __init__(
        self,
        works: Works,
        ask: WorkAsk,
        *,
        what: str,
        isolation: Isolation | None,
        sealing: Sealing,
        renewals: LeaseRenewals,
        reporter: StepReporter,
        tracer: Tracer | None = None,
        before: tuple[BatchItem, ...] = (),
        unless: tuple[Statement, ...] = (),
    ) -> None:
        """`what` names the work in errors. `before` precedes the lock of the work in the transaction that ends it;
        `unless` refuses the claim of a work that was done (RequiredValueMissing)."""
        self.works = works
        self.ask = ask
        self.what = what
        self.isolation = isolation
        self.sealing = sealing
        self.renewals = renewals
        self.reporter = reporter
        self.tracer = tracer
        self.before = before
        self.unless = unless

    async def claim(self) -> Held | Done:
        """Claim the work, and renew its lease from now on. Raises WorkInProgress, WorkMismatch, WorkParked."""
        claim = await self.works.claim(self.ask, self.unless)
        match claim:
            case Busy():
                raise WorkInProgress(
                    f"{self.what} is being done elsewhere, and nothing was run. If the process that had it has died or "
                    f"was interrupted, it is free again within {self.ask.lease_s:g} s"
                )
            case Differs():
                raise WorkMismatch(f"{self.what} was begun with other data: another work needs another name")
            case WaitsForPerson(reason):
                raise WorkParked(self.describe_parked(reason))
            case Held():
                self.renewals.hold(claim)
                return claim
            case Done():
                return claim

    async def begin(self) -> WorkAttempt:
        """Raises WorkInProgress, WorkMismatch, WorkParked."""
        return WorkAttempt(self, await self.claim())

    def describe_parked(self, reason: str) -> str:
        return f"{self.what} waits for a person: {reason}. See `onefold keys show {self.ask.digest.hex()}`"

    def end(self, held: Held, result: bytes | None) -> tuple[Statement, ...]:
        """The statements that end the work. Refused (RequiredValueMissing) if another process has it."""
        raise NotImplementedError

    async def is_ended(self, held: Held) -> bool | None:
        """Whether its end is committed, after a COMMIT without an answer. None: not decided yet. Raises
        WorkTakenOver."""
        raise NotImplementedError


class WorkAttempt:
    """One attempt, and how its work ends (`WorkEnd`)."""

    def __init__(self, work: Work, claim: Held | Done) -> None:
        self._work = work
        self._held = claim if isinstance(claim, Held) else None
        self.was_done = self._held is None
        #: Whether its end is committed.
        self.is_over = self.was_done
        self._steps = AttemptSteps(
            work.works,
            claim,
            end=self,
            operation=work.what,
            isolation=work.isolation,
            sealing=work.sealing,
            renewals=work.renewals,
            reporter=work.reporter,
            tracer=work.tracer,
        )

    @property
    def before(self) -> tuple[BatchItem, ...]:
        return self._work.before

    @property
    def records_result(self) -> bool:
        return self._work.records_result

    def describe_parked(self, reason: str) -> str:
        return self._work.describe_parked(reason)

    def make_steps(
        self, executor: ThreadExecutor[Any] | TaskExecutor[Any], new_transaction: Callable[[Any], OwnedTransaction[Any]]
    ) -> Steps:
        """Its steps, in the colour of the executor."""
        if isinstance(executor, ThreadExecutor):
            on_its_thread = functools.partial(on_thread, executor, new_transaction)
            return Steps(self._steps, executor, on_its_thread, asynchronous=False)
        on_its_loop = functools.partial(on_loop, executor, new_transaction)
        return Steps(self._steps, executor, on_its_loop, asynchronous=True)

    @property
    def is_taken_over(self) -> bool:
        """Whether another process has taken over the work."""
        return self._held is not None and self._held.taken_over

    @property
    def parked(self) -> WorkParked | None:
        """The error with which this attempt parked the work, if it did."""
        reason = self._steps.guard.parked
        return None if reason is None else WorkParked(self._work.describe_parked(reason))

    async def end(self) -> None:
        """Its code has returned. Raises WorkTakenOver, WorkChanged, WorkMisused."""
        try:
            self._steps.check_end()
        except Exception:
            await self.fail()
            raise
        if self._held is not None and not self.is_over:
            self._work.renewals.drop(self._held)
            try:
                await self._finish_alone(self._held)
            except OutcomeUnknown:
                raise
            except Exception:
                await self.fail()
                raise

    async def fail(self) -> None:
        """Its code raised: what is recorded stays, and the next attempt goes on."""
        held = self.abandon()
        if held is not None:
            await self._work.works.give_back(held)

    def abandon(self) -> Held | None:
        """Stop renewing the lease. Returns the work if it is to be given back now: a step that still runs gives it back
        itself."""
        held = self._held
        if held is None:
            return None
        self._work.renewals.drop(held)
        return held if self._steps.leave() and not held.taken_over and not self.is_over else None

    async def finish(self, tx: OwnedTransaction[Any], held: Held, result: bytes | None) -> None:
        """Commit what the function of `finish` wrote together with the end of the work."""
        await commit(tx, functools.partial(self._commit, held, result))
        self.is_over = True

    async def _commit(self, held: Held, result: bytes | None, events: tuple[Statement, ...]) -> None:
        batch = (*self._work.works.sql.proof, *events, *self._work.end(held, result), Boundary.COMMIT)
        look = functools.partial(self._work.is_ended, held)
        if await commit_fenced(held, batch, look, lost=self._lost, way_out=_NEXT_ENDS):
            await ReleaseCommitted()

    async def _finish_alone(self, held: Held) -> None:
        begin = begin_at("read committed")  # each statement must see what was committed before it
        lock, end = self._work.works.sql.lock(held), self._work.end(held, None)
        batch = (begin, *self.before, lock, *end, Boundary.COMMIT)
        try:
            await with_connection(functools.partial(run_batch, *batch))
        except RequiredValueMissing as error:
            raise note_taken_over(held) from error
        except ConnectionLost as error:
            look = functools.partial(self._work.is_ended, held)
            await find_lost_commit(look, error, lost=self._lost, way_out=_NEXT_ENDS)
        self.is_over = True

    @property
    def _lost(self) -> str:
        return f"the connection of {self._work.what} was lost during its last COMMIT"
