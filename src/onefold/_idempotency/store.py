"""The port every way of claiming implements, and what they share: how a stored row is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from onefold._idempotency.model import (
    SCHEMA_VERSION,
    SIGNPOST_STATUS,
    Answer,
    Ask,
    Claim,
    InFlight,
    Mismatch,
    Record,
    Replay,
    Run,
    Status,
)
from onefold._kernel.effects import Batch, Fetch, Flow, Row, Statement, Step
from onefold.errors import StoreError


class Store(Protocol):
    """Claims, settles and releases keys. Every flow starts and, unless it answers Run, ends without a connection."""

    def claim(self, ask: Ask) -> Flow[Claim]:
        """Judge a request. After Run its transaction is open (or opens with the handler's first touch)."""
        ...

    def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Flow[Claim | None]:
        """Commit the answer, with the business rows or without, and `also` what these statements write. A Claim in
        return is how a lost race ended, or a COMMIT whose answer was lost and that is not found. The answer must tell
        this run from every other: found again after a lost COMMIT, it is the proof that there was one."""
        ...

    def release(self, ask: Ask, run: Run, *, touched: bool = False) -> Flow[None]:
        """Leave nothing of the request behind. Where a handler touched its transaction, raises TransactionMisused if it
        ended it by itself, so that something may be left, and ConnectionLost if the connection is gone."""
        ...

    def status(self, digest: bytes) -> Flow[Status]:
        """What became of a key, without waiting for the request that holds it."""
        ...

    def reap(self, limit: int) -> Flow[int]:
        """Forget at most `limit` expired records; how many there were."""
        ...


def record_of(row: Sequence[Any]) -> Record:
    """The columns of a record, in the order every statement asks for them."""
    digest, fingerprint, operation, version, status, headers, body = row
    # Drivers answer with views where they can; what is compared and kept is bytes.
    return Record(
        bytes(digest),
        bytes(fingerprint),
        operation,
        version,
        status,
        bytes(headers),
        None if body is None else bytes(body),
    )


def judge_records(ask: Ask, records: Sequence[Record]) -> Replay | Mismatch | InFlight | None:
    """What the live records of an intent mean for a request. None: there are none."""
    for record in records:
        if record.version > SCHEMA_VERSION:
            raise StoreError(
                f"a record of {ask.operation} was written by a newer onefold (schema version {record.version}, this "
                f"one reads up to {SCHEMA_VERSION}); finish the roll-out, or roll back the newer release"
            )
    if ask.unplaced is not None:
        shared = [record for record in records if record.digest == ask.unplaced]
        records = [record for record in records if record.digest != ask.unplaced]
        if not records:
            return _judge_unplaced(ask, shared)
    done = [record for record in records if not record.is_signpost]
    if not done:
        # Only a signpost: a deploy with another `operation` has done it, and only its processes can say how it ended.
        return InFlight() if records else None
    found = done[0] if len(done) == 1 else min(done, key=_by_name(ask))
    same = found.fingerprint == ask.fingerprint if ask.same is None else ask.same(found)
    return Replay(found) if same else Mismatch()


def _judge_unplaced(ask: Ask, records: Sequence[Record]) -> Replay | InFlight | None:
    """What a record of onefold 0.1 means that may be of another mount or host. None: it is another's, or there is none.

    Where nothing in it tells, the answer may be another application's and the effect may be this one's: the request
    is held off until the record expires.
    """
    for record in records:
        if record.version == 1 and ask.same is not None and ask.same(record):
            return Replay(record) if ask.tells_places else InFlight()
    return None


def _by_name(ask: Ask) -> Callable[[Record], int]:
    """The intent's own record before those of earlier names."""
    return lambda record: ask.digests.index(record.digest)


def describe_lost_connection(ask: Ask) -> str:
    """What is said of a request whose connection is gone."""
    return (
        f"the connection of {ask.operation} was lost (Postgres cuts off a handler that takes longer than its lease, "
        f"lease_s={ask.lease_s:g})"
    )


def status_of(status: int | None, expires_at: str | None, in_flight: bool) -> Status:
    """The row of a status statement, read."""
    if status == SIGNPOST_STATUS:  # a deploy with another `operation` has done it
        return Status("in_flight")
    if status is not None:
        return Status("done", status, expires_at)
    return Status("in_flight" if in_flight else "unknown")


async def ask_for(statement: Statement) -> list[Row]:
    """The rows of one statement, as a flow."""
    return await Fetch(statement)


async def in_batch(*steps: Step) -> int:
    """A batch, as a flow."""
    return await Batch(steps)
