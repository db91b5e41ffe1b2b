"""A request without a key, on a route that allows it: the same transaction, the same commit before the answer,
and nothing to remember."""

from __future__ import annotations

from onefold._kernel.effects import Statement
from onefold._kernel.plain import PlainTransaction
from onefold.idempotency.model import Answer, Ask, Claim, Run, Status


def unkeyed_ask(operation: str, lease_s: float) -> Ask:
    """What stands in for a claim where there is no key."""
    return Ask(digest=b"", fingerprint=b"", operation=operation, lease_s=lease_s, retention_s=lease_s)


class UnkeyedStore:
    """Implements `Store` for requests that have no key."""

    leases = False

    def __init__(self, plain: PlainTransaction) -> None:
        self._plain = plain

    async def claim(self, ask: Ask) -> Claim:
        await self._plain.begin()
        return Run()

    async def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Claim | None:
        await (self._plain.commit(also, name=ask.operation) if keep_rows else self._plain.rollback())
        return None

    async def release(self, ask: Ask, run: Run, *, touched: bool = False) -> None:
        await self._plain.rollback()

    async def forsake(self, ask: Ask, run: Run) -> None:
        """Nothing to release: the claim went with its connection."""

    async def renew(self, ask: Ask, run: Run) -> None:
        """Nothing to extend: the claim lives as long as its transaction."""

    async def status(self, digest: bytes) -> Status:
        return Status("unknown")

    async def reap(self, limit: int) -> tuple[int, int]:
        return 0, 0
