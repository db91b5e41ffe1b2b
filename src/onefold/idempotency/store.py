"""The port every way of claiming implements, and what they share: how a stored row is judged."""

from __future__ import annotations

from typing import Protocol

from onefold._kernel.effects import Batch, Fetch, Flow, Row, Statement, Step
from onefold.errors import StoreError
from onefold.idempotency.model import SCHEMA_VERSION, Answer, Ask, Claim, Mismatch, Replay, Run, Status


class Store(Protocol):
    """Claims, settles and releases keys. Every flow starts and, unless it answers Run, ends without a connection."""

    @property
    def leases(self) -> bool:
        """Whether a claim is a lease that must be renewed while its handler runs."""
        ...

    def forsake(self, ask: Ask, run: Run) -> Flow[None]:
        """Release a claim whose own connection was thrown away, from another one."""
        ...

    def renew(self, ask: Ask, run: Run) -> Flow[None]:
        """Extend the lease of a claim that is still ours."""
        ...

    def claim(self, ask: Ask) -> Flow[Claim]:
        """Judge a request. After Run its transaction is open (or opens with the handler's first touch)."""
        ...

    def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Flow[Claim | None]:
        """Commit the answer, with the business rows or without, and `also` what these statements write. A Claim in
        return is how a lost race ended."""
        ...

    def release(self, ask: Ask, run: Run, *, touched: bool = False) -> Flow[None]:
        """Leave nothing of the request behind. Where a handler touched its transaction, raises TransactionMisused if it
        ended it by itself, so that something may be left, and ConnectionLost if the connection is gone."""
        ...

    def status(self, digest: bytes) -> Flow[Status]:
        """What became of a key, without disturbing anyone who holds it."""
        ...

    def reap(self, limit: int) -> Flow[tuple[int, int]]:
        """Forget at most `limit` expired records and abandoned claims; how many of each there were."""
        ...


def recorded(
    ask: Ask, fingerprint: bytes, version: int, status: int, headers: bytes, body: bytes | None
) -> Replay | Mismatch:
    """What a live record means for a request."""
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"a record of {ask.operation} was written by a newer onefold (schema version {version}, this one reads "
            f"up to {SCHEMA_VERSION}); finish the roll-out, or roll back the newer release"
        )
    if bytes(fingerprint) != ask.fingerprint:
        return Mismatch()
    return Replay(Answer(status, bytes(headers), None if body is None else bytes(body)))


def status_of(status: int | None, expires_at: str | None, in_flight: bool) -> Status:
    """The row of a status statement, read."""
    if status is not None:
        return Status("done", status, expires_at)
    return Status("in_flight" if in_flight else "unknown")


async def ask_for(statement: Statement) -> list[Row]:
    """The rows of one statement, as a flow."""
    return await Fetch(statement)


async def in_batch(*steps: Step) -> int:
    """A batch, as a flow."""
    return await Batch(steps)
