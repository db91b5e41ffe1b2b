"""A request without a key, on a route that allows it: the same transaction, the same commit before the answer,
and nothing to remember."""

from __future__ import annotations

from onefold._idempotency.model import Answer, Ask, Claim, Run, Status
from onefold._idempotency.store import describe_lost_connection
from onefold._kernel.checkout import rollback_and_release
from onefold._kernel.effects import Isolation, Statement
from onefold._kernel.plain_transaction import PlainTransaction
from onefold.errors import ConnectionLost


def unkeyed_ask(operation: str, lease_s: float, isolation: Isolation | None = None) -> Ask:
    """What stands in for a claim where there is no key."""
    return Ask(
        digest=b"", fingerprint=b"", operation=operation, lease_s=lease_s, retention_s=lease_s, isolation=isolation
    )


class UnkeyedStore:
    """Implements `Store` for requests that have no key."""

    def __init__(self, plain: PlainTransaction) -> None:
        self._plain = plain

    async def claim(self, ask: Ask) -> Claim:
        await self._plain.begin(ask.isolation, ask.lease_s)
        return Run()

    async def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Claim | None:
        await (self._plain.commit(also, name=ask.operation) if keep_rows else self._plain.refuse())
        return None

    async def release(self, ask: Ask, run: Run, *, touched: bool = False) -> None:
        lost = await (self._plain.refuse() if touched else rollback_and_release())
        if touched and lost is not None:
            raise ConnectionLost(describe_lost_connection(ask)) from lost

    async def status(self, digest: bytes) -> Status:
        return Status("unknown")

    async def reap(self, limit: int) -> int:
        return 0
