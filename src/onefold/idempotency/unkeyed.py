"""A request without a key, on a route that allows it: the same transaction, the same commit before the answer,
and nothing to remember."""

from __future__ import annotations

from onefold._kernel.borrow import holding, undoing
from onefold._kernel.effects import Batch, Boundary, Discard, Release, Statement, Step
from onefold.errors import ConnectionLost, OutcomeUnknowable
from onefold.idempotency.model import Answer, Ask, Claim, Run, Status
from onefold.idempotency.store import translated

#: In front of COMMIT: an aborted transaction answers COMMIT with a silent ROLLBACK, but refuses a statement.
_PROBE = Statement("SELECT 1")


def unkeyed_ask(operation: str, lease_s: float) -> Ask:
    """What stands in for a claim where there is no key."""
    return Ask(digest=b"", fingerprint=b"", operation=operation, lease_s=lease_s, retention_s=lease_s)


class UnkeyedStore:
    """Implements `Store` for requests that have no key."""

    leases = False

    def __init__(self, *, begin: tuple[Step, ...]) -> None:
        self._begin = begin

    async def claim(self, ask: Ask) -> Claim:
        await holding(self._open)
        return Run()

    async def settle(self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool) -> Claim | None:
        try:
            await Batch((_PROBE, Boundary.COMMIT) if keep_rows else (Boundary.ROLLBACK,))
        except ConnectionLost as error:
            await Discard()
            raise OutcomeUnknowable(
                f"the connection of {ask.operation} was lost during COMMIT; without an Idempotency-Key nobody can tell "
                "whether it happened"
            ) from error
        except Exception as error:
            await Discard()
            raise translated(error) from error
        await Release()
        return None

    async def release(self, ask: Ask, run: Run, *, touched: bool = False) -> None:
        await undoing()

    async def forsake(self, ask: Ask, run: Run) -> None:
        """Nothing to release: the claim went with its connection."""

    async def renew(self, ask: Ask, run: Run) -> None:
        """Nothing to extend: the claim lives as long as its transaction."""

    async def status(self, digest: bytes) -> Status:
        return Status("unknown")

    async def reap(self, limit: int) -> tuple[int, int]:
        return 0, 0

    async def _open(self) -> None:
        if self._begin:
            await Batch(self._begin)
