"""A transaction with nothing to remember: begun, and committed or rolled back with what is written last."""

from __future__ import annotations

from onefold._kernel.borrow import holding, undoing
from onefold._kernel.effects import Batch, Boundary, Discard, Release, Statement, Step
from onefold._kernel.misuse import translated
from onefold.errors import ConnectionLost, OutcomeUnknowable


class PlainTransaction:
    """Its flows. With `lazily` the database begins the transaction at its user's first touch (SQLite)."""

    __slots__ = ("_lazily",)

    def __init__(self, *, lazily: bool) -> None:
        self._lazily = lazily

    async def begin(self) -> None:
        await holding(self._open)

    async def commit(self, also: tuple[Statement, ...], *, name: str = "a `with once.transaction()` block") -> None:
        """Write `also`, commit, give the connection back. `name` says whose COMMIT was lost, should it be."""
        try:
            await Batch((*self._first(also), *also, Boundary.COMMIT))
        except ConnectionLost as error:
            await Discard()
            raise OutcomeUnknowable(
                f"the connection of {name} was lost during COMMIT; without a key nobody can tell whether it happened"
            ) from error
        except Exception as error:
            await Discard()
            raise translated(error) from error
        await Release()

    async def rollback(self) -> None:
        await undoing()

    async def _open(self) -> None:
        if not self._lazily:
            await Batch((Boundary.BEGIN,))

    def _first(self, also: tuple[Statement, ...]) -> tuple[Step, ...]:
        if self._lazily:
            return (Boundary.BEGIN,) if also else ()
        # Refused where there is no transaction any more, and in an aborted one, which would answer COMMIT with a silent
        # ROLLBACK.
        return (Boundary.SAVEPOINT,)
