"""Keys whose requests work in steps: claimed by a work's row, settled with a record in its place.

Theory of operation. A claim takes the locks of the key and looks for its record, as for every request; then, in that
very transaction, it inserts the work's row and commits. From there on the row keeps others away, and no connection is
held. A row that is there already is looked at under the locks of the key once more: a work whose lease runs is in
flight, one that was abandoned is taken over with its steps. The settle waits for the lock of the key, writes the record
and deletes the work in one transaction: a claim finds the lock, the work, or the record.

Failure windows. A crash before the settle's COMMIT leaves the work and its steps, and the next one goes on. A COMMIT
whose answer was lost is looked for as that of every request: the answer distinguishes this run from others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold._http.request_steps import PARKED, RequestSteps
from onefold._idempotency.encryption import UnreadableAnswer
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.model import (
    SCHEMA_VERSION,
    Answer,
    Ask,
    Claim,
    InFlight,
    Mismatch,
    Record,
    Run,
    Status,
    key_lock,
)
from onefold._kernel.checkout import discard_on_error, fetch_rows, rollback_and_release, with_connection
from onefold._kernel.effects import Acquire, BatchItem, Boundary, Fetch, Flow, Isolation, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, in_background
from onefold._kernel.runners import run_async
from onefold._steps.model import Busy, Differs, Held, WaitsForPerson, WorkAsk, WorkClaim, lease_of
from onefold._steps.sealing import Sealing, request_context
from onefold._steps.work_ports import LeaseRenewals
from onefold._steps.works import CLAIMS_MAX, Works, note_taken_over
from onefold.errors import OutcomeUnknown, WorkParked

if TYPE_CHECKING:
    from onefold._http.guarded_request import GuardedRequest


class SteppedStore:
    """What the requests of an application that work in steps share."""

    def __init__(self, keys: LockedStore, works: Works, renewals: LeaseRenewals, sealing: Sealing) -> None:
        self.keys = keys
        self.works = works
        self.renewals = renewals
        self.sealing = sealing

    async def reap(self, limit: int) -> int:
        """Forget records and works, at most so many of each; how many records there were."""
        await self.works.reap(limit)
        return await self.keys.reap(limit)

    async def status(self, digest: bytes) -> Status:
        """The status of a key whose route may work in steps."""
        found = await self.keys.status(digest)
        if found.state != "unknown":
            return found
        rows = await with_connection(functools.partial(fetch_rows, self.works.sql.status(digest)))
        if not rows:
            return found
        parked, leased = rows[0]
        return Status("parked" if parked else "in_flight" if leased else "interrupted")


class RequestWork:
    """The work of one request: its claim and its settle (`Store`)."""

    def __init__(
        self, shared: SteppedStore, request: bytes | None, *, is_resumed: bool, isolation: Isolation | None = None
    ) -> None:
        """`request` is what is kept of it until the work is done; None where it must not be kept. `is_resumed`: the
        work is there already, because a completer goes on with works and begins none. `isolation` is that of the
        phases."""
        self._shared = shared
        self._keys, self._works = shared.keys, shared.works
        self._request = request
        self._is_resumed = is_resumed
        self._isolation = isolation
        #: From a claim that was granted on, and from the handler's start on.
        self._held: Held | None = None
        self._steps: RequestSteps | None = None

    # --- the claim -----------------------------------------------------------------------------------------------

    async def claim(self, ask: Ask) -> Claim:
        """After Run the work is held, and no connection is. Raises WorkParked."""
        mine = self._work_of(ask)
        alone = ask._replace(isolation="read committed")  # whatever phases have: each look must see what was committed
        sql = self._keys.sql
        insert = functools.partial(self._works.insert, mine, (*sql.KEEP, *sql.refuse_recorded(alone)))
        take = functools.partial(self._works.take, mine, sql.KEEP)
        ways: tuple[Callable[[], Flow[WorkClaim | None]], ...] = (take,) if self._is_resumed else (insert, take)
        for _ in range(CLAIMS_MAX):
            for get in ways:
                claim = await self._keys.claim(alone)
                if not isinstance(claim, Run):
                    return claim
                found = await discard_on_error(get)
                if found is not None:
                    return self._judge(found)
        return InFlight()

    def _judge(self, found: WorkClaim) -> Claim:
        match found:
            case Held():
                self._held, self._steps = found, None
                return Run()
            case Differs():
                return Mismatch()
            case WaitsForPerson():
                raise WorkParked(PARKED)
            case Busy(ask_again_s):
                return InFlight(ask_again_s)
            case _:
                return InFlight()

    def _work_of(self, ask: Ask) -> WorkAsk:
        kept = self._request
        sealed = None if kept is None else self._shared.sealing.seal(kept, request_context(ask.digest))
        return WorkAsk(
            digest=ask.digest,
            kind="request",
            operation=ask.operation,
            fingerprint=ask.fingerprint,
            lease_s=lease_of(ask.work_lease_s, ask.lease_s),
            retention_s=ask.retention_s,
            phase_s=ask.lease_s,
            earlier=ask.earlier,
            request=sealed,
            same=functools.partial(_is_same, ask),
        )

    def begin(self, guarded: GuardedRequest[Any]) -> RequestSteps:
        """The handler is about to run."""
        held = self._mine()
        self._shared.renewals.hold(held)
        self._steps = RequestSteps(self._shared, guarded, held, self._isolation)
        return self._steps

    # --- its end -------------------------------------------------------------------------------------------------

    async def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Claim | None:
        """The record in the place of the work. Raises WorkTakenOver."""
        held, sql, work = self._mine(), self._keys.sql, self._works.sql
        if self._steps is not None and self._steps.is_finishing:
            strict = self._isolation not in (None, "read committed")
            undo = sql.UNDO_WHOLE if strict else sql.UNDO
            opened: tuple[BatchItem, ...] = sql.KEEP if keep_rows else undo
        else:
            await Acquire()
            opened = (Boundary.BEGIN,)
        locks = [lock for digest in ask.names for lock in work.wait_for_key(key_lock(digest))]
        self._shared.renewals.drop(held)
        try:
            return await self._keys.settle(
                ask,
                run,
                answer,
                keep_rows=keep_rows,
                also=(*also, *work.forget(held)),
                opened=(*opened, work.lock(held), *locks),
                check_claim=functools.partial(self._check_claim, held),
            )
        except OutcomeUnknown:
            raise
        except Exception:  # refused, and nothing of it is stored: the next attempt need not wait for the lease
            if not held.taken_over:
                await self._works.give_back(held)
            raise

    async def release(self, ask: Ask, run: Run, *, touched: bool = False) -> None:
        """Keep what is recorded, and let another go on. Where the store cannot be reached, the lease runs out."""
        held, steps = self._mine(), self._steps
        is_under_way = self.leave()
        if steps is not None and steps.is_finishing:
            await rollback_and_release()
        self._shared.renewals.drop(held)
        if not is_under_way and not held.taken_over:
            # One that a quota or a shedder has turned away is not an attempt: after so many a work waits for a person.
            await self._works.give_back(held, tried=steps is not None and steps.has_begun)

    def leave(self) -> bool:
        """The handler has ended, and begins no more steps. Whether one is still under way: it gives the work back, if
        it is over before the lease is."""
        return self._steps is not None and not self._steps.leave()

    def interrupt(self, executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> None:
        """The request was cancelled, and nothing more may be awaited for it: its work is given back without it. Where
        that fails, the lease runs out, which is renewed no more."""
        held = self._mine()
        self._shared.renewals.drop(held)
        if not self.leave() and not held.taken_over and isinstance(executor, TaskExecutor):
            in_background(run_async(self._works.give_back(held), executor.anew()))

    async def _check_claim(self, held: Held) -> None:
        if not await Fetch(self._works.sql.lock(held)):
            raise note_taken_over(held)

    def _mine(self) -> Held:
        assert self._held is not None
        return self._held

    # --- the rest of the port ------------------------------------------------------------------------------------

    async def status(self, digest: bytes) -> Status:
        return await self._shared.status(digest)

    async def reap(self, limit: int) -> int:
        return await self._shared.reap(limit)


def _is_same(ask: Ask, digest: bytes, fingerprint: bytes) -> bool:
    """Whether a work is of the same request. A fingerprint under a key that has left the ring is another's."""
    if ask.same is None:
        return fingerprint == ask.fingerprint
    try:
        return ask.same(Record(digest, fingerprint, ask.operation, SCHEMA_VERSION, 0, b"", None))
    except UnreadableAnswer:
        return False
