"""The ledger for whoever receives messages by other means: a transaction that opens once per (consumer, message id).

Deliveries, retries and dead letters are the receiver's own affair. A lost answer to COMMIT is an error like any other:
the message comes again, and the ledger knows.
"""

from __future__ import annotations

from onefold._kernel.borrow import holding, undoing
from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Batch, Boundary, Discard, Release, Statement
from onefold._kernel.misuse import translated
from onefold.inbox.model import checked_name
from onefold.inbox.sql import STATEMENTS
from onefold.policy.ranges import require


class Entry:
    """The flows of one message of one consumer."""

    __slots__ = ("_consumer", "_lease_ms", "_message_id", "_sql")

    def __init__(self, dialect: str, consumer: str, message_id: str, *, lease_s: float) -> None:
        require(f"consumer {consumer!r}: lease_s", lease_s, least=0.1, most=86_400)
        self._sql = STATEMENTS[dialect]
        self._consumer = checked_name(consumer)
        self._message_id = message_id
        self._lease_ms = milliseconds(lease_s)

    async def begin(self) -> bool:
        """Whether the message is new; then its transaction is open."""
        new = await holding(self._claim)
        if not new:
            await undoing()
        return new

    async def commit(self, also: tuple[Statement, ...]) -> None:
        try:
            await Batch((self._sql.proof, *also, Boundary.COMMIT))
        except Exception as error:
            await Discard()
            raise translated(error) from error
        await Release()

    async def rollback(self) -> None:
        await undoing()

    async def _claim(self) -> bool:
        claim = self._sql.claim("none", self._consumer, self._message_id, None, kept=False)
        return await Batch((Boundary.BEGIN, *self._sql.opening(self._lease_ms), claim)) > 0
