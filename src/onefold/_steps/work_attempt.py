"""One attempt at a work that is no request: its claim, its steps, and its end with `finish` or without.

Theory of operation. An attempt claims the work, or finds it done; each way its code runs. An exception keeps what is
recorded and gives the lease back: the next attempt goes on. What ends the work says a subclass: `once.work` remembers
the end with the steps, a message has its ledger row and forgets the work. The end is committed with what the function
of `finish` wrote, or in a transaction of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from onefold._kernel.checkout import run_batch, with_connection
from onefold._kernel.effects import (
    BatchItem,
    Boundary,
    Isolation,
    ReleaseCommitted,
    Statement,
    begin_at,
)
from onefold._kernel.owned_transaction import OwnedTransaction, commit
from onefold._kernel.tracing import Tracer
from onefold._steps.fenced_commit import commit_fenced, find_lost_commit
from onefold._steps.model import Busy, Differs, Done, Held, WaitsForPerson, WorkAsk
from onefold._steps.performing import Performing
from onefold._steps.sealing import Sealing
from onefold._steps.step_telemetry import StepEnds, ignore
from onefold._steps.steps import MakeStep, Steps
from onefold._steps.work_ports import LeaseRenewals
from onefold._steps.works import Works, taken_over
from onefold.errors import (
    ConnectionLost,
    OutcomeUnknown,
    RequiredValueMissing,
    WorkInProgress,
    WorkMismatch,
    WorkParked,
)

_NEXT_ENDS: Final = "the next attempt ends it"


class WorkAttempt:
    """One attempt, and how its work ends (`WorkEnd`)."""

    records_result = False

    def __init__(
        self,
        works: Works,
        ask: WorkAsk,
        *,
        what: str,
        isolation: Isolation | None,
        sealing: Sealing,
        renewals: LeaseRenewals,
        ended: StepEnds = ignore,
        tracer: Tracer | None = None,
        before: tuple[BatchItem, ...] = (),
        unless: tuple[Statement, ...] = (),
    ) -> None:
        """`what` names the work in errors. `before` stands before the lock of the work in the transaction that ends it;
        `unless` refuses the claim of a work that was done (RequiredValueMissing)."""
        self.before = before
        self._works = works
        self._ask = ask
        self._what = what
        self._isolation = isolation
        self._sealing = sealing
        self._renewals = renewals
        self._ended = ended
        self._tracer = tracer
        self._unless = unless
        self._held: Held | None = None
        self._performing: Performing | None = None
        #: Whether its end is committed, and whether that was so before this attempt.
        self.is_over = self.was_done = False

    async def begin(self) -> None:
        """Raises WorkInProgress, WorkMismatch, WorkParked."""
        claim = await self._works.claim(self._ask, self._unless)
        match claim:
            case Busy():
                raise WorkInProgress(f"{self._what} is being done elsewhere")
            case Differs():
                raise WorkMismatch(f"{self._what} was begun with other data: another work needs another name")
            case WaitsForPerson(reason):
                raise WorkParked(self._tell_parked(reason))
            case Held():
                self._held = claim
                self._renewals.hold(claim)
            case Done():
                self.is_over = self.was_done = True
        self._performing = Performing(
            self._works,
            claim,
            end=self,
            operation=self._what,
            isolation=self._isolation,
            sealing=self._sealing,
            beats=self._renewals,
            ended=self._ended,
            tracer=self._tracer,
        )

    def make_steps(self, perform: Callable[[MakeStep], Any], *, asynchronous: bool) -> Steps:
        assert self._performing is not None
        return Steps(self._performing, perform, asynchronous=asynchronous)

    @property
    def is_taken_over(self) -> bool:
        """Whether another process was found to have it."""
        return self._held is not None and self._held.taken_over

    @property
    def parked(self) -> WorkParked | None:
        """Why this attempt left it to a person, if it did."""
        reason = None if self._performing is None else self._performing.guard.parked
        return None if reason is None else WorkParked(self._tell_parked(reason))

    async def end(self) -> None:
        """Its code has returned. Raises WorkTakenOver, WorkChanged, WorkMisused."""
        assert self._performing is not None
        try:
            self._performing.check_end()
        except Exception:
            await self.fail()
            raise
        if self._held is not None and not self.is_over:
            self._renewals.drop(self._held)
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
            await self._works.give_back(held)

    def abandon(self) -> Held | None:
        """Its lease is renewed no more. The work, if it is to be given back now: a step that is still under way does so
        itself."""
        held, performing = self._held, self._performing
        if held is None or performing is None:
            return None
        self._renewals.drop(held)
        return held if performing.leave() and not held.taken_over and not self.is_over else None

    async def finish(self, tx: OwnedTransaction[Any], held: Held, result: bytes | None) -> None:
        """Commit what the function of `finish` wrote together with the end of the work."""
        await commit(tx, functools.partial(self._commit, held, result))
        self.is_over = True

    def _tell_parked(self, reason: str) -> str:
        return f"{self._what} waits for a person: {reason}. See `onefold keys show {self._ask.digest.hex()}`"

    def _end(self, held: Held, result: bytes | None) -> tuple[Statement, ...]:
        """What ends the work. Refused (RequiredValueMissing) where it is not ours."""
        raise NotImplementedError

    async def _is_ended(self, held: Held) -> bool | None:
        """Whether its end is committed, whose COMMIT was not answered. None: not decided yet. Raises WorkTakenOver."""
        raise NotImplementedError

    async def _commit(self, held: Held, result: bytes | None, events: tuple[Statement, ...]) -> None:
        batch = (*self._works.sql.proof, *events, *self._end(held, result), Boundary.COMMIT)
        look = functools.partial(self._is_ended, held)
        if await commit_fenced(held, batch, look, lost=self._lost, way_out=_NEXT_ENDS):
            await ReleaseCommitted()

    async def _finish_alone(self, held: Held) -> None:
        begin = begin_at("read committed")  # each statement must see what was committed before it
        batch = (begin, *self.before, self._works.sql.lock(held), *self._end(held, None), Boundary.COMMIT)
        try:
            await with_connection(functools.partial(run_batch, *batch))
        except RequiredValueMissing as error:
            raise taken_over(held) from error
        except ConnectionLost as error:
            look = functools.partial(self._is_ended, held)
            await find_lost_commit(look, error, lost=self._lost, way_out=_NEXT_ENDS)
        self.is_over = True

    @property
    def _lost(self) -> str:
        return f"the connection of {self._what} was lost during its last COMMIT"
