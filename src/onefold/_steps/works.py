"""Works: claimed by a row with a lease, and continued by a process that finds the lease expired.

Theory of operation. A claim inserts the work's row, with a fence and a lease, and commits. From then on no connection
is held: what keeps others away is the lease, which is renewed for as long as the work is done. A process that finds the
row takes the work over once its lease has run out: it raises the fence, and gets the steps that are recorded. Each
write for a work locks its row and looks at the fence in the transaction that writes: a holder that was taken over
writes nothing more, however late it wakes up.

Failure windows. A crash before the claim's COMMIT leaves nothing. A crash later leaves the row, and its recorded steps:
the next one goes on when the lease has run out. A COMMIT whose answer was lost is looked for on a fresh connection.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from onefold._kernel.checkout import checkout, rollback_and_release, run_batch, with_connection
from onefold._kernel.effects import Batch, BatchItem, Boundary, Discard, Fetch, Release, Row, begin_at
from onefold._steps.model import FENCE_END, Busy, Differs, Done, Held, RecordedStep, WaitsForPerson, WorkAsk, WorkClaim
from onefold._steps.sql import STATEMENTS
from onefold.errors import OnefoldError, RequiredValueMissing, StoreBusy, UniqueViolated, WorkTakenOver

_log = logging.getLogger("onefold.steps")

#: How often a claim is tried, while the work appears and disappears.
CLAIMS_MAX: Final = 3

#: Works that are forgotten in one transaction.
_REAPED_AT_ONCE: Final = 100


def new_fence() -> int:
    """Where a fence begins: no two claims of one work begin at the same."""
    return int.from_bytes(os.urandom(8), "big") % FENCE_END


class Works:
    """The flows of claiming and giving back."""

    def __init__(self, dialect: str, *, new_fence: Callable[[], int] = new_fence) -> None:
        self.dialect = dialect
        self.sql = STATEMENTS[dialect]
        self._new_fence = new_fence

    async def claim(self, ask: WorkAsk, unless: tuple[BatchItem, ...] = ()) -> WorkClaim:
        """Claim a work that is not a request: for those see `insert` and `take`. `unless` is refused
        (RequiredValueMissing) where something else remembers that the work was done. It stands behind the claim: what
        ends a work deletes its row, which the claim waits for, and is seen by the statement that follows."""
        begin = (begin_at("read committed"),)
        for _ in range(CLAIMS_MAX):
            held = await checkout(functools.partial(self.insert, ask, begin, unless))
            if held is not None:
                return held
            claim = await checkout(functools.partial(self.take, ask, begin, unless))
            if claim is not None:
                return claim
        return Busy()

    async def insert(
        self, ask: WorkAsk, opened: tuple[BatchItem, ...], unless: tuple[BatchItem, ...] = ()
    ) -> Held | None:
        """Commit the claim of a new work, in the transaction that `opened` begins or goes on with, unless that is
        refused. None: the work is there already, or done. Either way the connection is given back."""
        fence = self._new_fence()
        try:
            await Batch((*opened, *self.sql.light, self.sql.insert(ask, fence), *unless, Boundary.COMMIT))
        except (UniqueViolated, RequiredValueMissing):
            pass
        else:
            await Release()
            return Held(ask.digest, fence, ask.operation, ask.lease_s, ask.phase_s)
        # Not while the error is handled: its traceback refers to SQLite's connection, which would be closed for that.
        await rollback_and_release()
        return None

    async def take(
        self, ask: WorkAsk, opened: tuple[BatchItem, ...], unless: tuple[BatchItem, ...] = ()
    ) -> WorkClaim | None:
        """Read an existing work, and take it over if its lease has expired. None: it was deleted meanwhile. The
        connection is given back."""
        if opened:
            await Batch(opened)
        try:
            rows = await Fetch(self.sql.find(ask))
            if not rows:
                # Locked by a phase, by its end, or by another takeover; or deleted.
                claim: WorkClaim | None = Busy() if await Fetch(self.sql.seen(ask)) else None
            else:
                claim = await self._judge(ask, min(rows, key=lambda row: ask.names.index(bytes(row[0]))), unless)
        except (StoreBusy, RequiredValueMissing):
            claim = Busy()
        if isinstance(claim, Held):
            await Release()
        else:
            await rollback_and_release()
        return claim

    async def _judge(self, ask: WorkAsk, row: Row, unless: tuple[BatchItem, ...]) -> WorkClaim:
        digest, fingerprint, fence, attempts, parked, left_ms, finished, result = row
        digest = bytes(digest)
        if not ask.has_input_of(digest, bytes(fingerprint)):
            return Differs()
        if parked is not None:
            return WaitsForPerson(parked)
        if left_ms > 0 and not finished:
            return Busy.silent(left_s=left_ms / 1000, lease_s=ask.lease_s)
        steps = read_steps(await Fetch(self.sql.steps(digest)))
        if finished:
            return Done(digest, steps, _bytes(result))
        await Batch((self.sql.take(digest, fence, ask.lease_s), *unless, Boundary.COMMIT))
        return Held(
            digest, fence + 1, ask.operation, ask.lease_s, ask.phase_s, attempts + 1, steps, may_have_called=True
        )

    async def give_back(self, held: Held, *, tried: bool = True) -> None:
        """Let another go on at once. A work without records is deleted, unless a call was begun: that may have
        happened, and is made again under the same key by a retry or by the completer. If the store is unavailable, the
        lease expires."""
        ended = self.sql.give_back(held, tried=tried)
        batch: tuple[BatchItem, ...] = (Boundary.BEGIN, *self.sql.light, *ended, Boundary.COMMIT)
        try:
            await with_connection(functools.partial(run_batch, *batch))
        except OnefoldError as error:
            await Discard()
            _log.warning(
                "%s: the lease of its work %s could not be given back; another attempt is refused until it ends "
                "(%g s): %s", held.operation, held.digest.hex(), held.lease_s, error,
            )  # fmt: skip

    async def is_finished(self, held: Held) -> bool | None:
        """Whether the end of a work is committed, after a COMMIT without an answer. None: its transaction still has the
        row. Raises WorkTakenOver."""
        return await with_connection(functools.partial(self._look, held))

    async def _look(self, held: Held) -> bool | None:
        await Batch((Boundary.BEGIN,))
        rows = await Fetch(self.sql.look(held))
        await Batch((Boundary.ROLLBACK,))
        if not rows:
            return None
        [(fence, finished)] = rows
        if fence != held.fence:
            raise note_taken_over(held)
        return bool(finished)

    async def park(self, held: Held, reason: str, *records: RecordedStep) -> None:
        """Leave the work to a person, with these records. Raises WorkTakenOver."""
        written = [self.sql.record(held, record) for record in records]
        batch: tuple[BatchItem, ...] = (Boundary.BEGIN, *written, self.sql.park(held, reason), Boundary.COMMIT)
        try:
            await with_connection(functools.partial(run_batch, *batch))
        except RequiredValueMissing as error:
            raise note_taken_over(held) from error

    async def reap(self, limit: int) -> int:
        """Forget at most `limit` works; how many there were."""
        reaped = 0
        while reaped < limit:
            deleted = await with_connection(functools.partial(self._reap, min(limit - reaped, _REAPED_AT_ONCE)))
            reaped += deleted
            if deleted < _REAPED_AT_ONCE:
                break
        return reaped

    async def _reap(self, limit: int) -> int:
        await Batch((Boundary.BEGIN,))
        rows = await Fetch(self.sql.expired(limit))
        deletions = [statement for digest, fence in rows for statement in self.sql.delete(bytes(digest), fence)]
        await Batch((*deletions, Boundary.COMMIT))
        return len(rows)


def note_taken_over(held: Held) -> WorkTakenOver:
    """Mark the work as taken over, so that this holder stops; returns the error for its caller."""
    held.taken_over = True
    return WorkTakenOver(
        f"Another process has taken over {held.operation}, and goes on with it. What is still done here is not "
        "recorded: retry, where there is an Idempotency-Key with the same one, and get what it comes to.",
        retry_after_s=1,
    )


def read_steps(rows: Sequence[Row]) -> tuple[RecordedStep, ...]:
    """The rows of `Statements.steps`."""
    return tuple(
        [RecordedStep(position, name, kind, state, _bytes(result)) for position, name, kind, state, result in rows]
    )


def _bytes(value: Any) -> bytes | None:
    """Plain bytes: some drivers return memoryviews."""
    return None if value is None else bytes(value)
