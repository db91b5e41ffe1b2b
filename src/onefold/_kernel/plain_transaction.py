"""A transaction with nothing to remember: begun, and committed or rolled back with what is written last."""

from __future__ import annotations

import functools

from onefold._kernel.checkout import checkout, rollback_and_release
from onefold._kernel.dialects import POSTGRES_OPENING, POSTGRES_PROOF, postgres_lease
from onefold._kernel.effects import (
    Batch,
    BatchItem,
    Boundary,
    Discard,
    Isolation,
    Release,
    ReleaseCommitted,
    Statement,
    begin_at,
)
from onefold._kernel.handler_errors import rethrow
from onefold.errors import ConnectionLost, OnefoldError, OutcomeUnknowable, TransactionEnded


class PlainTransaction:
    """Its flows. With `lazily` the database begins the transaction at its user's first touch (SQLite)."""

    __slots__ = ("_lazily",)

    def __init__(self, *, lazily: bool) -> None:
        self._lazily = lazily

    async def begin(self, isolation: Isolation | None = None, lease_s: float | None = None) -> None:
        """Acquire and begin. With `lease_s` the database ends it when that time is over, where it is begun now."""
        await checkout(functools.partial(self._open, isolation, lease_s))

    async def commit(self, also: tuple[Statement, ...], *, name: str = "a `with once.transaction()` block") -> None:
        """Write `also`, commit, give the connection back. `name` says whose COMMIT was lost, should it be."""
        try:
            await Batch((*self._first(also), *also, Boundary.COMMIT))
        except ConnectionLost as error:
            await Discard()
            raise OutcomeUnknowable(
                f"the connection of {name} was lost during COMMIT; it has no key, so it cannot be looked up whether it "
                "was committed"
            ) from error
        except Exception as error:
            await Discard()
            rethrow(error)
        await ReleaseCommitted()

    async def rollback(self, _: Exception | None = None) -> None:
        await rollback_and_release()

    async def refuse(self) -> ConnectionLost | None:
        """`rollback`, unless its user has ended it by himself: TransactionMisused says that rows of it may be kept."""
        if not self._lazily:
            try:
                await Batch((POSTGRES_PROOF, Boundary.ROLLBACK))
            except TransactionEnded as error:
                await rollback_and_release()
                rethrow(error)
            except OnefoldError:
                pass  # aborted, or lost
            else:
                await Release()
                return None
        return await rollback_and_release()

    async def _open(self, isolation: Isolation | None, lease_s: float | None) -> None:
        if not self._lazily:
            await Batch((begin_at(isolation), POSTGRES_OPENING if lease_s is None else postgres_lease(lease_s)))

    def _first(self, also: tuple[Statement, ...]) -> tuple[BatchItem, ...]:
        if self._lazily:
            return (Boundary.BEGIN,) if also else ()
        return (POSTGRES_PROOF,)
