"""The port every way of claiming implements, and what they share: how a stored row is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from onefold._idempotency.model import (
    SIGNPOST_STATUS,
    Answer,
    Ask,
    Claim,
    Record,
    Run,
    Status,
)
from onefold._kernel.effects import Flow, Statement


class Store(Protocol):
    """Claims, settles and releases keys. Every flow starts and, unless it answers Run, ends without a connection."""

    def claim(self, ask: Ask) -> Flow[Claim]:
        """Judge a request. After Run its transaction is open (or opens with the handler's first touch)."""
        ...

    def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Flow[Claim | None]:
        """Commit the answer, with the business rows or without, and `also` what these statements write. A Claim in
        return is how a lost race ended, or a COMMIT whose answer was lost and that is not found. The answer must
        differ from that of every other run: found again after a lost COMMIT, it is the proof that there was one."""
        ...

    def release(self, ask: Ask, run: Run, *, touched: bool = False) -> Flow[None]:
        """Leave nothing of the request behind. Where a handler touched its transaction, raises TransactionMisused if it
        ended it by itself, so that something may be left, and ConnectionLost if the connection is gone."""
        ...

    def status(self, digest: bytes) -> Flow[Status]:
        """The status of a key, without waiting for the request that holds it."""
        ...

    def reap(self, limit: int) -> Flow[int]:
        """Delete at most `limit` expired records; how many were deleted."""
        ...


def record_of(row: Sequence[Any]) -> Record:
    """The record of a row, whose columns every statement has in this order; with how long it is kept, where queried."""
    digest, fingerprint, operation, version, status, headers, body, *left_ms = row
    # Drivers answer with views where they can; what is compared and kept is bytes.
    return Record(
        bytes(digest),
        bytes(fingerprint),
        operation,
        version,
        status,
        bytes(headers),
        None if body is None else bytes(body),
        *left_ms,
    )


def describe_lost_connection(ask: Ask) -> str:
    """For the error of a request whose connection was lost."""
    return (
        f"the connection of {ask.operation} was lost (if its handler took longer than its lease, "
        f"lease_s={ask.lease_s:g}, Postgres has cut it off)"
    )


def status_of(status: int | None, expires_at: str | None, in_flight: bool) -> Status:
    """The row of a status statement, read."""
    if status == SIGNPOST_STATUS:  # a deploy with another `operation` has done it
        return Status("in_flight")
    if status is not None:
        return Status("done", status, expires_at)
    return Status("in_flight" if in_flight else "unknown")
