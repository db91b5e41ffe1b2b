"""Claim and settle where the database has transaction-scoped locks (Postgres): one transaction, one row.

Theory of operation. The request's transaction is opened by the claim and closed by the settle; business rows and
the record are written in between and commit together. Two advisory locks are taken in a fixed order, (key,
payload) first, then (key). Whoever is refused the first meets the same request in flight; whoever holds the first
and is refused the second meets another payload under the same key. (In the reverse order two equal requests that
cross would call each other a mismatch.) The locks are courtesy: what guarantees one execution is the record's
primary key, on which the loser's settle breaks, inside its batch, before COMMIT. The savepoint that the handler works
on dies with the transaction that claimed, so a settle whose first step cannot end it knows that the handler has
committed by itself. (A row count, checked after a merged COMMIT, would come too late.)

Failure windows. A crash before COMMIT is a rollback: locks and rows vanish together. A crash after COMMIT finds
the record. A connection lost during COMMIT is neither, so the outcome is looked up on a fresh connection.
"""

from __future__ import annotations

from typing import Protocol

from onefold._kernel.borrow import borrowing, guarding, undoing
from onefold._kernel.effects import Acquire, Batch, Boundary, Discard, Fetch, Now, Release, Sleep, Statement
from onefold._kernel.misuse import COMMITTED_BY_HANDLER, translated
from onefold.errors import (
    ConnectionLost,
    OnefoldError,
    OutcomeUnknown,
    SerializationFailed,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TransactionEnded,
    TransactionMisused,
    UniqueViolated,
)
from onefold.idempotency.model import Answer, Ask, Claim, Expired, InFlight, Mismatch, Replay, Run, Status
from onefold.idempotency.recent import Recent
from onefold.idempotency.sql import postgres
from onefold.idempotency.store import ask_for, in_batch, recorded, status_of

#: A lost COMMIT is looked for after these pauses, because the server may still be working on it; and not for longer in
#: all, because a server that cannot be reached makes every look wait.
LOOKUP_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5)
LOOKUP_S_MAX = 5.0

#: Its claim is its transaction: no fence, and so nothing that would differ from request to request.
_RUN = Run()


class LockedStatements(Protocol):
    """The statement set a database with transaction-scoped locks provides (see `sql/postgres.py`)."""

    SAME_IN_FLIGHT: str
    OTHER_IN_FLIGHT: str

    def lock(self, ask: Ask) -> Statement: ...
    def look(self, ask: Ask) -> Statement: ...
    def see(self, ask: Ask) -> Statement: ...
    def find(self, digest: bytes) -> Statement: ...
    def forget(self, digest: bytes) -> Statement: ...
    def settle(self, ask: Ask, answer: Answer) -> Statement: ...
    def status(self, digest: bytes) -> Statement: ...
    def reap(self, limit: int) -> Statement: ...


class LockedStore:
    """Keys claimed by locks that end with their transaction."""

    leases = False

    def __init__(self, sql: LockedStatements = postgres, *, recent: Recent | None = None) -> None:
        self._sql = sql
        self._recent = Recent() if recent is None else recent

    async def claim(self, ask: Ask) -> Claim:
        await Acquire()
        try:  # `holding`, written out: two coroutines fewer for every request
            claim = await self._claim(ask)
        except Exception:
            await Discard()
            raise
        if not isinstance(claim, Run):
            await Release()
        if isinstance(claim, Replay):
            self._recent.add(ask.digest)
        return claim

    async def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Claim | None:
        # First what finds out whether the transaction is still ours: nothing may be written outside of it.
        proof = Boundary.RELEASE_SAVEPOINT if keep_rows else Boundary.ROLLBACK_TO_SAVEPOINT
        try:
            await Batch((proof, self._sql.settle(ask, answer), *also, Boundary.COMMIT))
        except (UniqueViolated, SerializationFailed) as error:
            return await self._after_lost_race(ask, error)
        except ConnectionLost:
            await Discard()
            return await self._after_lost_commit(ask)
        except Exception as error:
            await Discard()
            raise translated(error) from error
        self._recent.add(ask.digest)
        await Release()
        return None

    async def release(self, ask: Ask, run: Run, *, touched: bool = False) -> None:
        found: OnefoldError | None = None
        if touched:
            try:
                await Batch((Boundary.RELEASE_SAVEPOINT,))
            except TransactionEnded:
                found = TransactionMisused(COMMITTED_BY_HANDLER)
            except ConnectionLost:
                found = ConnectionLost(_lost(ask))
            except OnefoldError:
                pass  # aborted: the server undoes it now
        await undoing()
        if found is not None:
            raise found

    async def forsake(self, ask: Ask, run: Run) -> None:
        """Nothing to release: the claim went with its connection."""

    async def renew(self, ask: Ask, run: Run) -> None:
        """Nothing to extend: the claim lives as long as its transaction."""

    async def status(self, digest: bytes) -> Status:
        [row] = await borrowing(lambda: ask_for(self._sql.status(digest)))
        return status_of(*row)

    async def reap(self, limit: int) -> tuple[int, int]:
        return await borrowing(lambda: in_batch(self._sql.reap(limit))), 0

    async def _found(self, ask: Ask) -> Claim | None:
        rows = await Fetch(self._sql.find(ask.digest))
        if not rows or rows[0][-1]:
            return None
        return recorded(ask, *rows[0][:-1])

    async def _claim(self, ask: Ask) -> Claim:
        if ask.digest in self._recent:
            # Most likely a replay: one plain read, no transaction.
            found = await self._found(ask)
            if found is not None:
                return found
        begin = (Boundary.BEGIN, self._sql.lock(ask), Boundary.SAVEPOINT, self._sql.look(ask))
        if await Batch(begin) == 0:
            return _RUN
        claim = await self._judge(ask)
        if claim is None:
            # Another payload holds the key, or someone only passed by while looking at it. Once more, then believe it.
            if await Batch((Boundary.ROLLBACK, *begin)) == 0:
                return _RUN
            claim = await self._judge(ask) or Mismatch()
        if not isinstance(claim, Run):
            await Batch((Boundary.ROLLBACK,))
        return claim

    async def _judge(self, ask: Ask) -> Claim | None:
        """Look closer, now that the first look was not empty. None: another payload seems to be in flight."""
        [row] = await Fetch(self._sql.see(ask))
        verdict, late, *record, expired = row
        kept = record[0] is not None
        if kept and not expired:
            return recorded(ask, *record)
        if late or (kept and ask.refuses_late):
            return Expired()
        if verdict == self._sql.SAME_IN_FLIGHT:
            return InFlight()
        if verdict == self._sql.OTHER_IN_FLIGHT:
            return None
        # Ours to run. A record past its retention leaves first, beneath a new savepoint: a stored 4xx rolls back
        # to it and must not bring the old record back.
        await Batch((self._sql.forget(ask.digest), Boundary.SAVEPOINT))
        return _RUN

    async def _after_lost_race(self, ask: Ask, error: UniqueViolated | SerializationFailed) -> Claim:
        async def look_again() -> Claim | None:
            await Batch((Boundary.ROLLBACK,))
            return await self._found(ask)

        claim = await guarding(look_again)
        await Release()
        if claim is not None:
            return claim
        # Not our record: the business rows clashed, only at COMMIT (a deferred constraint, a stricter isolation).
        if isinstance(error, SerializationFailed):
            raise StoreBusy(f"the transaction of {ask.operation} could not be serialised: {error}") from error
        raise error

    async def _after_lost_commit(self, ask: Ask) -> Claim:
        """COMMIT was sent and its answer lost. Whoever gets the locks knows: visibility precedes their release."""
        asked = False
        give_up_at = await Now() + LOOKUP_S_MAX
        for pause_s in LOOKUP_PAUSES_S:
            await Sleep(pause_s)
            if await Now() >= give_up_at:
                break
            try:
                claim = await self.claim(ask)
            except StoreError:
                continue
            asked = True
            if isinstance(claim, Run):
                await undoing()
                raise StoreUnavailable(f"{_lost(ask)} and nothing was committed")
            if not isinstance(claim, InFlight):
                return claim
        if asked:
            return InFlight()
        raise OutcomeUnknown(f"the connection of {ask.operation} was lost during COMMIT and the store cannot be asked")


def _lost(ask: Ask) -> str:
    return (
        f"the connection of {ask.operation} was lost (Postgres cuts off a handler that takes longer than its lease, "
        f"lease_s={ask.lease_s:g})"
    )
