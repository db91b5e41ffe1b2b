"""What `tx.insert_once`, `tx.transition` and `tx.ledger_entry` say: what happened, and what was found.

Each is true if this very call did it, and false if it was done before or not at all. Which of these it was, `outcome`
says. They can be awaited, and are themselves then: the methods of a transaction have one signature for threads, where
they return these, and for asyncio, where they return what gives these when it is awaited.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

R = TypeVar("R")


def _give_itself(result: R) -> Generator[Any, Any, R]:
    """For code of both colours. Hidden from type checkers, which take a result that can be awaited, and is not, for a
    mistake: also one that was awaited already."""
    yield from ()
    return result


class InsertOutcome(Enum):
    """The outcome of `insert_once` for a row."""

    CREATED = "created"
    """It was inserted, by this call."""
    EXISTING = "existing"
    """A row with its key was there. Its other values were not compared."""
    SAME = "same"
    """A row with its key was there, and had the values that were compared."""
    DIFFERENT = "different"
    """A row with its key was there, and had other values: only with `compare="tell"`, else that is RowDiffers."""


class _RowAndCreated(NamedTuple, Generic[R]):
    row: R
    created: bool


class Inserted(_RowAndCreated[R]):
    """`row, created = tx.insert_once(...)`: the row as it is stored, and whether this call inserted it."""

    outcome: InsertOutcome
    differing: tuple[str, ...]
    """The columns with other values, where they were compared."""

    def __new__(cls, row: R, outcome: InsertOutcome, differing: tuple[str, ...] = ()) -> Self:
        made = tuple.__new__(cls, (row, outcome is InsertOutcome.CREATED))
        made.outcome = outcome
        made.differing = differing
        return made

    def __bool__(self) -> bool:
        return self.created

    if not TYPE_CHECKING:
        __await__ = _give_itself


class InsertedSoon(Inserted[R]):
    """How a transaction's method is typed: used as it is on threads, awaited on asyncio."""

    def __await__(self) -> Generator[Any, Any, Inserted[R]]:
        yield from ()
        return self


class TransitionOutcome(Enum):
    """The outcome of a change of state."""

    MOVED = "moved"
    """The row was in a state that it may come from, and this call has moved it."""
    ALREADY_THERE = "already there"
    """The row was in the wanted state before. Nothing was written."""
    NOT_ALLOWED = "not allowed"
    """The row was in another state than those it may come from. Nothing was written."""
    STALE = "stale"
    """The row was in a state that it may come from, but its version was not the expected one. Nothing was written."""
    MISSING = "missing"
    """There is no such row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitioned(Generic[R]):
    """What `tx.transition(...)` did, or why it did not."""

    outcome: TransitionOutcome
    """Whether it was moved, and if not, why."""
    state: Any
    """The state that the row is in now: the wanted one if it was moved, else what was found. None without a row."""
    version: int | None
    """The version that the row has now, where a version was named."""
    row: R | None
    """The row as it is now; None: there is none."""

    @property
    def moved(self) -> bool:
        """Whether this call has moved it."""
        return self.outcome is TransitionOutcome.MOVED

    @property
    def arrived(self) -> bool:
        """Whether the row is in the wanted state, by this call or from before: all that a retry wants to know."""
        return self.outcome in (TransitionOutcome.MOVED, TransitionOutcome.ALREADY_THERE)

    def __bool__(self) -> bool:
        return self.moved

    if not TYPE_CHECKING:
        __await__ = _give_itself


class TransitionedSoon(Transitioned[R]):
    """How a transaction's method is typed: used as it is on threads, awaited on asyncio."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Transitioned[R]]:
        yield from ()
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered(Generic[R]):
    """What `tx.ledger_entry(...)` did: the entry, and the balance that it has moved."""

    entry: R
    """The entry as it is stored."""
    created: bool
    """Whether this call made it, and so moved the balance."""
    balance: Any
    """The row of the balance, after it was moved. None: it was not moved, by this call."""

    def __bool__(self) -> bool:
        return self.created

    if not TYPE_CHECKING:
        __await__ = _give_itself


class EnteredSoon(Entered[R]):
    """How a transaction's method is typed: used as it is on threads, awaited on asyncio."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Entered[R]]:
        yield from ()
        return self
