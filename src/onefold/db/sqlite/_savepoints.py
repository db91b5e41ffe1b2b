"""The parts of a transaction that its handler may undo alone, and whether one holds an abandoned statement.

A statement whose wait was cancelled may go on all the same, on its connection's thread. The code that cancelled it
takes it for undone. That is true again once a savepoint that was open when it was executed is rolled back; until then
the transaction must not be committed.
"""

from __future__ import annotations

from onefold._kernel.effects import Boundary
from onefold.errors import TransactionMisused


class Parts:
    """The handler's open savepoints of one transaction. To be used on the connection's thread only."""

    __slots__ = ("_abandoned_in", "_open")

    def __init__(self) -> None:
        self._open: list[int] = []
        #: The outermost savepoint that must be rolled back; 0: the whole transaction.
        self._abandoned_in: int | None = None

    @property
    def innermost(self) -> int:
        """The number of the innermost open savepoint; 0 outside of any."""
        return self._open[-1] if self._open else 0

    def cross(self, boundary: Boundary, number: int) -> None:
        """SQLite has crossed this boundary of a savepoint."""
        match boundary:
            case Boundary.SAVEPOINT:
                self._open.append(number)
            case Boundary.RELEASE_SAVEPOINT:
                del self._open[self._open.index(number) :]
            case _:
                del self._open[self._open.index(number) + 1 :]
                if self._abandoned_in is not None and self._abandoned_in >= number:  # numbers grow inwards
                    self._abandoned_in = None

    def abandon(self, number: int) -> None:
        """A statement that was executed when savepoint `number` was the innermost is waited for no more."""
        self._abandoned_in = number if self._abandoned_in is None else min(number, self._abandoned_in)

    @property
    def is_abandoned(self) -> bool:
        """Whether the transaction must not be committed."""
        return self._abandoned_in is not None

    def check(self) -> None:
        """Raises TransactionMisused if the transaction must not be committed."""
        if self.is_abandoned:
            raise TransactionMisused(
                "a statement on the request's SQLite connection was interrupted (a time-out, a cancellation), and may "
                "have been executed all the same: nothing of the transaction is kept. Put what may be interrupted into "
                "`async with tx.savepoint()`, which undoes it"
            )

    def forget(self) -> None:
        """The transaction is over."""
        self._open.clear()
        self._abandoned_in = None
