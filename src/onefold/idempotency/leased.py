"""Claim and settle where locks outlive no statement (SQLite, and later MySQL): a lease, a fence, one row.

Theory of operation. A short transaction commits a claim: whose payload it is, until when it is leased, and a
fence no other claim has. The handler's transaction starts later, when the handler first touches it. Settling
writes the record through the claim: if the claim is no longer ours, the INSERT gets NULL for its digest and
breaks, so a late loser's rows are rolled back with it. A lease that ran out is taken over by the same payload only.

Failure windows. A crash after the claim leaves a lease that runs out by itself. A crash after COMMIT finds the
record. Looking needs no lock, so duplicates of a request that this process runs are answered while it holds the write
lock; a duplicate of another process's finds out when it waits for that lock in vain, a tenth of a second later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from onefold._kernel.borrow import borrowing, guarding, holding, undoing
from onefold._kernel.effects import Batch, Boundary, Discard, Fetch, Now, Release, Statement
from onefold._kernel.misuse import translated
from onefold.errors import RequiredValueMissing, StoreBusy, StoreError
from onefold.idempotency.model import Answer, Ask, Claim, Expired, InFlight, Mismatch, Run, Status
from onefold.idempotency.recent import Recent
from onefold.idempotency.sql import sqlite
from onefold.idempotency.store import ask_for, in_batch, recorded, status_of

#: How long a claim waits for the write lock, in all.
BUSY_S_MAX = 5.0


class LeasedStatements(Protocol):
    """The statement set of a database with leases (see `sql/sqlite.py`)."""

    def peek(self, ask: Ask) -> Statement: ...
    def take(self, ask: Ask, fence: int) -> Statement: ...
    def settle(self, ask: Ask, fence: int, answer: Answer) -> Statement: ...
    def renew(self, ask: Ask, fence: int) -> Statement: ...
    def drop(self, digest: bytes, fence: int) -> Statement: ...
    def status(self, digest: bytes) -> Statement: ...
    def reap_records(self, limit: int) -> Statement: ...
    def reap_claims(self, limit: int) -> Statement: ...


class LeasedStore:
    """Keys claimed by a committed row with a lease and a fence."""

    leases = True

    def __init__(self, fences: Callable[[], int], sql: LeasedStatements = sqlite) -> None:
        self._fences = fences
        self._sql = sql
        self._recent = Recent()

    async def claim(self, ask: Ask) -> Claim:
        claim = await holding(lambda: self._claim(ask))
        if not isinstance(claim, Run):
            self._recent.add(ask.digest)
            await Release()
        return claim

    async def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Claim | None:
        store = (self._sql.settle(ask, run.fence, answer), self._sql.drop(ask.digest, run.fence))
        undo = () if keep_rows else (Boundary.ROLLBACK,)
        try:
            await Batch((*undo, Boundary.BEGIN, *store, *also, Boundary.COMMIT))
        except RequiredValueMissing:
            claim = await guarding(lambda: self._look_again(ask))
            await Release()
            return claim
        except Exception as error:
            await Discard()
            with suppress(StoreError):  # should this fail too, the lease runs out by itself
                await self.forsake(ask, run)
            raise translated(error) from error
        await Release()
        return None

    async def release(self, ask: Ask, run: Run, *, touched: bool = False) -> None:
        # Should this fail, the lease runs out by itself.
        await undoing(Boundary.BEGIN, self._sql.drop(ask.digest, run.fence), Boundary.COMMIT)

    async def forsake(self, ask: Ask, run: Run) -> None:
        steps = (Boundary.BEGIN, self._sql.drop(ask.digest, run.fence), Boundary.COMMIT)
        await borrowing(lambda: in_batch(*steps))

    async def renew(self, ask: Ask, run: Run) -> None:
        steps = (Boundary.BEGIN, self._sql.renew(ask, run.fence), Boundary.COMMIT)
        await borrowing(lambda: in_batch(*steps))

    async def status(self, digest: bytes) -> Status:
        [row] = await borrowing(lambda: ask_for(self._sql.status(digest)))
        return status_of(*row)

    async def reap(self, limit: int) -> tuple[int, int]:
        records = await borrowing(lambda: in_batch(self._sql.reap_records(limit)))
        claims = await borrowing(lambda: in_batch(self._sql.reap_claims(limit)))
        return records, claims

    async def _claim(self, ask: Ask) -> Claim:
        fence = self._fences()
        take = (Boundary.BEGIN_LIGHT, self._sql.take(ask, fence), Boundary.COMMIT)
        give_up_at: float | None = None
        # Most keys are new: what is not known to be otherwise is taken without a look. Who comes late must not take.
        looks = ask.refuses_late or ask.digest in self._recent
        while True:
            known = await self._judge(ask) if looks else None
            if known is not None:
                return known
            looks = True
            try:
                await Batch(take)
            except RequiredValueMissing:
                # Held or done already: we did not look, or someone was quicker.
                return await self._look_again(ask)
            except StoreBusy:
                # Whoever holds the write lock may be running this very key, claimed since we looked: so look again,
                # and only then wait on.
                await Batch((Boundary.ROLLBACK,))
                now = await Now()
                give_up_at = now + BUSY_S_MAX if give_up_at is None else give_up_at
                if now >= give_up_at:
                    raise
            else:
                self._recent.add(ask.digest)
                return Run(fence)

    async def _judge(self, ask: Ask) -> Claim | None:
        """What the key's rows say. None: it may be taken."""
        [row] = await Fetch(self._sql.peek(ask))
        late, claimed_by, lease_left_ms, *record, expired = row
        kept = record[0] is not None
        if kept and not expired:
            return recorded(ask, *record)
        if late or (kept and ask.refuses_late):
            return Expired()
        if claimed_by is not None and bytes(claimed_by) != ask.fingerprint:
            return Mismatch()
        if claimed_by is not None and lease_left_ms > 0:
            return InFlight(lease_left_ms / 1000)
        return None

    async def _look_again(self, ask: Ask) -> Claim:
        """After a refused batch: what the winner's rows say."""
        await Batch((Boundary.ROLLBACK,))
        return await self._judge(ask) or InFlight()
