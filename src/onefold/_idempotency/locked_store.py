"""Claim and settle: two locks, one transaction, one row, on every database.

Theory of operation. The claim opens the request's transaction (on SQLite the handler's first statement does), and the
settle closes it: business rows and the record commit together. Two advisory locks are taken in a fixed order, first
(key, payload), then (key): the first shows the same request in flight, the second another payload under the same key.
They decide how a duplicate is answered. That a key runs once rests on the record's primary key, on which the loser's
settle breaks inside its batch, before COMMIT. The settle's first step is refused where the transaction is not the one
that claimed, because the handler has committed by itself. Reasons: docs/why/two-locks.md, docs/why/one-transaction.md.

Isolation. A transaction that is stricter than READ COMMITTED has one snapshot, taken before the lock is had, and would
not see what was committed in between. There the claim inserts the record's row, on the unique index, which knows no
snapshots, and the settle completes it. A refusal (4xx) is not stored there if the handler has swallowed an error that
aborted its transaction: it may have been a serialisation failure, which must run again. The first look finds out that
the level is strict, and the store remembers it for all its transactions.

Failure windows. A crash before COMMIT is a rollback: locks and rows vanish together. A crash after COMMIT finds
the record. A connection lost during COMMIT is neither, so the outcome is looked up on a fresh connection.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

from onefold._idempotency.model import Answer, Ask, Claim, Expired, InFlight, Mismatch, Replay, Run, Status
from onefold._idempotency.record_matching import judge_records
from onefold._idempotency.sql import postgres
from onefold._idempotency.store import describe_lost_connection, record_of, status_of
from onefold._kernel.checkout import discard_on_error, fetch_rows, rollback_and_release, run_batch, with_connection
from onefold._kernel.effects import (
    Acquire,
    Batch,
    BatchItem,
    Boundary,
    Discard,
    Fetch,
    Flow,
    Release,
    ReleaseCommitted,
    Row,
    Sleep,
    Statement,
)
from onefold._kernel.handler_errors import COMMITTED_BY_HANDLER, rethrow
from onefold._kernel.lost_commits import look_until_known
from onefold.errors import (
    ConnectionLost,
    OnefoldError,
    OutcomeUnknown,
    RequiredValueMissing,
    SerializationFailed,
    StoreUnavailable,
    TransactionAborted,
    TransactionEnded,
    TransactionMisused,
    UniqueViolated,
)

#: How often a claim that cannot be serialised begins again, with a later snapshot.
CLAIMS_MAX = 3

#: The pauses between looks before a request is told that another payload holds its key, which no retry mends.
MISMATCH_PAUSES_S = (0.0, 0.002, 0.01, 0.04)

#: Its claim is its locks: there is nothing that would differ from request to request.
_RUN = Run()
_RUN_RESERVED = Run(reserved=True)


class LockedStatements(Protocol):
    """The statement set of a database (see `sql/postgres.py`), and where its transaction begins and is proved."""

    SAME_IN_FLIGHT: str
    OTHER_IN_FLIGHT: str

    #: What stands between lock and look, where the handler's work begins.
    BEFORE_HANDLER: tuple[BatchItem, ...]
    #: What stands before the record: with the handler's rows kept, with them undone; and, alone, before a release.
    #: Refused with TransactionEnded where the handler has ended the transaction by itself.
    KEEP: tuple[BatchItem, ...]
    UNDO: tuple[BatchItem, ...]
    PROOF: tuple[BatchItem, ...]
    #: The same as UNDO, but refused with TransactionAborted where the handler has swallowed what aborted it.
    UNDO_WHOLE: tuple[BatchItem, ...]

    def opening(self, ask: Ask) -> tuple[BatchItem, ...]:
        """What stands before the lock."""
        ...

    def lock(self, ask: Ask) -> Statement: ...
    def check_free(self, ask: Ask) -> Statement:
        """No row: the request runs. Any row: `explain` says why not, or that it is not known yet."""
        ...

    def reserve(self, ask: Ask) -> Statement: ...
    def explain(self, ask: Ask) -> Statement:
        """A row for each record, or one without: whether the transaction has one snapshot only, the verdict of the
        locks, whether the key is late; then as `find`."""
        ...

    def find(self, ask: Ask) -> Statement:
        """The records, without a lock; the last column is for how long each is still kept: 0 past its retention."""
        ...

    def forget(self, ask: Ask) -> tuple[BatchItem, ...]: ...
    def refuse_recorded(self, ask: Ask) -> tuple[BatchItem, ...]:
        """In front of what is written for a key that was claimed: refused (RequiredValueMissing) where it is done."""
        ...

    def settle(self, ask: Ask, answer: Answer) -> Statement: ...
    def settle_reserved(self, ask: Ask, answer: Answer) -> Statement: ...
    def status(self, digest: bytes) -> Statement: ...
    def reap(self, limit: int) -> Statement: ...


class Recent:
    """A bounded memory of the keys this process has seen: the last `size` digests at least, and at most twice as many.
    A hint, never an answer: being wrong costs one statement."""

    __slots__ = ("_newer", "_older", "_size")

    def __init__(self, size: int = 8_192) -> None:
        self._size = size
        # Two generations: forgetting the older one whole costs nothing, picking the oldest of a dict is a search.
        self._newer: set[bytes] = set()
        self._older: set[bytes] = set()

    def add(self, digest: bytes) -> None:
        self._newer.add(digest)
        if len(self._newer) >= self._size:  # two threads at once may forget one generation too many: just as good
            self._newer, self._older = set(), self._newer

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._newer or digest in self._older


class LockedStore:
    """Keys claimed by locks that end with their transaction, or with their process."""

    def __init__(self, sql: LockedStatements = postgres) -> None:
        self.sql = sql
        self._recent = Recent()
        #: Whether transactions at the level they have by default were found to be stricter than READ COMMITTED.
        self._strict = False

    async def claim(self, ask: Ask) -> Claim:
        await Acquire()
        try:  # `checkout`, written out: two coroutines fewer for every request
            # In the first case most likely a replay: one plain read, no transaction.
            replay = await self._find(ask) if ask.digest in self._recent else None
            claim = replay or await self._try(ask)
        except SerializationFailed:
            claim = await discard_on_error(functools.partial(self._try_again, ask))
        except Exception:
            await Discard()
            raise
        if isinstance(claim, Run):
            return claim
        await Release()
        if isinstance(claim, Replay):
            self._recent.add(ask.digest)
        return claim

    async def settle(
        self,
        ask: Ask,
        run: Run,
        answer: Answer,
        *,
        keep_rows: bool,
        also: tuple[Statement, ...] = (),
        opened: tuple[BatchItem, ...] | None = None,
        check_claim: Callable[[], Flow[None]] | None = None,
    ) -> Claim | None:
        """Where the claim is not this transaction, `opened` is what stands before the record, and `check_claim` is
        called where the batch was refused: it raises if the claim is lost."""
        # First what finds out whether the transaction is still ours: nothing may be written outside of it.
        sql, reserved = self.sql, run.reserved
        if opened is None:
            opened = sql.KEEP if keep_rows else sql.UNDO_WHOLE if reserved else sql.UNDO
        record = sql.settle_reserved(ask, answer) if reserved else sql.settle(ask, answer)
        try:
            await Batch((*opened, record, *also, Boundary.COMMIT))
        except (UniqueViolated, RequiredValueMissing, SerializationFailed) as error:
            return await self._after_lost_race(ask, error, check_claim)
        except ConnectionLost:
            await Discard()
            claim = await self._after_lost_commit(ask)
            # This very answer: COMMIT took place, and only the server's reply to it was lost.
            is_ours = isinstance(claim, Replay) and claim.record.answer == answer
            return None if is_ours else claim
        except TransactionAborted as error:
            await rollback_and_release()
            if not keep_rows:  # strict: what was swallowed may be that it could not be serialised
                raise
            rethrow(error)
        except Exception as error:
            await Discard()
            rethrow(error)
        self._recent.add(ask.digest)
        await ReleaseCommitted()
        return None

    async def release(self, ask: Ask, run: Run, *, touched: bool = False) -> None:
        error: OnefoldError | None = None
        if touched:
            try:
                await Batch(self.sql.PROOF)
            except TransactionEnded:
                error = TransactionMisused(COMMITTED_BY_HANDLER)
            except ConnectionLost:
                error = ConnectionLost(describe_lost_connection(ask))
            except OnefoldError:
                pass  # aborted: the server undoes it now
        await rollback_and_release()
        if error is not None:
            raise error

    async def status(self, digest: bytes) -> Status:
        [row] = await with_connection(lambda: fetch_rows(self.sql.status(digest)))
        return status_of(*row)

    async def reap(self, limit: int) -> int:
        return await with_connection(lambda: run_batch(self.sql.reap(limit)))

    async def _find(self, ask: Ask) -> Claim | None:
        rows = await Fetch(self.sql.find(ask))
        return judge_records(ask, [record_of(row) for row in rows if row[-1]])

    async def _try_again(self, ask: Ask) -> Claim:
        """There is a record, or the end of one, that the snapshot of the first try was too old to see."""
        for _ in range(CLAIMS_MAX - 1):
            try:
                return await self._try(ask, Boundary.ROLLBACK)
            except SerializationFailed:
                pass
        raise SerializationFailed(
            f"{ask.operation} could not be claimed: its key has changed {CLAIMS_MAX} times meanwhile"
        )

    async def _try(self, ask: Ask, *first: Boundary) -> Claim:
        sql = self.sql
        strict = self._strict if ask.isolation is None else ask.isolation != "read committed"
        run = _RUN_RESERVED if strict else _RUN
        check = sql.reserve(ask) if strict else sql.check_free(ask)
        begin = (*sql.opening(ask), sql.lock(ask), *sql.BEFORE_HANDLER, check)
        if await Batch((*first, *begin)) == 0:
            return run
        rows = await Fetch(self.sql.explain(ask))
        has_one_snapshot, *_ = rows[0]
        if has_one_snapshot and not strict:
            self._strict = True  # from now on, without this detour
            return await self._try(ask, Boundary.ROLLBACK)
        claim = await self._judge(ask, run, rows)
        if claim is None:
            claim = await self._judge_again(ask, run, begin)
        if not isinstance(claim, Run):
            await Batch((Boundary.ROLLBACK,))
        return claim

    async def _judge_again(self, ask: Ask, run: Run, begin: tuple[BatchItem, ...]) -> Claim:
        """Another payload holds the key; or the same one did, in a transaction that is ending. A server releases the
        locks of a transaction one by one, and may stop in between: only what lasts is believed."""
        for pause_s in MISMATCH_PAUSES_S:
            await Batch((Boundary.ROLLBACK,))  # first: it may hold a lock that an equal request wants
            await Release()
            await Sleep(pause_s)
            await Acquire()
            if await Batch(begin) == 0:
                return run
            claim = await self._judge(ask, run, await Fetch(self.sql.explain(ask)))
            if claim is not None:
                return claim
        return Mismatch()

    async def _judge(self, ask: Ask, run: Run, rows: list[Row]) -> Claim | None:
        """Look closer, now that the first look was not empty. None: another payload seems to be in flight."""
        _, verdict, late, *_ = rows[0]  # the same in all
        records = [row[3:] for row in rows if row[3] is not None]
        claim = judge_records(ask, [record_of(row) for row in records if row[-1]])
        if claim is not None:
            return claim
        if late or (records and ask.refuses_late):
            return Expired()
        if verdict == self.sql.SAME_IN_FLIGHT:
            return InFlight()
        if verdict == self.sql.OTHER_IN_FLIGHT:
            return None if ask.distinguishes_payloads else InFlight()
        # Ours to run: a record past its retention makes room.
        room = self.sql.forget(ask)
        if room:
            await Batch(room)
        return run

    async def _after_lost_race(
        self,
        ask: Ask,
        error: UniqueViolated | RequiredValueMissing | SerializationFailed,
        check_claim: Callable[[], Flow[None]] | None,
    ) -> Claim:
        async def look_again() -> Claim | None:
            await Batch((Boundary.ROLLBACK,))
            claim = await self._find(ask)
            if claim is None and check_claim is not None:
                await check_claim()
            return claim

        claim = await discard_on_error(look_again)
        await Release()
        if claim is not None:
            return claim
        # Not our record: the business rows clashed, only at COMMIT (a deferred constraint, a stricter isolation).
        if isinstance(error, SerializationFailed):
            raise SerializationFailed(f"the transaction of {ask.operation} could not be serialised: {error}") from error
        if isinstance(error, RequiredValueMissing):
            rethrow(error)
        raise error

    async def _after_lost_commit(self, ask: Ask) -> Claim:
        """COMMIT was sent and its answer lost. A claim that gets the locks knows: visibility precedes their release."""

        async def look() -> Claim | None:
            claim = await self.claim(ask)
            if isinstance(claim, Run):
                await rollback_and_release()
            return None if isinstance(claim, InFlight) else claim

        claim: Claim | None
        claim, answered = await look_until_known(look)
        if isinstance(claim, Run):
            raise StoreUnavailable(f"{describe_lost_connection(ask)} and nothing was committed")
        if claim is not None:
            return claim
        if answered:
            return InFlight()
        raise OutcomeUnknown(f"the connection of {ask.operation} was lost during COMMIT and the store does not answer")
