"""Writes to the user's own tables, as data: what they need of a table, however that is named.

A write says what is done with which columns; its values are given when it is performed, in the order that it says. So
it is checked, and made a statement of, once for all calls that look alike.

A table is named by its name, and written in SQL (`_natural/plain_table.py`), or it is one of SQLAlchemy's, a Table or a
mapped class, and written by that (`db/sqlalchemy/_table_writes.py`). The flows in `_natural/` know neither.

Invariant: whether two values are the same is the database's judgement, never Python's. It has its own idea of 5 and
5.00, of padded texts, of times with a zone and of JSON, and it may have rounded what it stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertUnlessThere:
    """One row, unless a row with its key is there, and then none. It answers with the row that it made, and whether
    that is in the index: its key has no NULL, and what holds for the rows of the index holds for it. Its values are
    those of `columns`."""

    columns: tuple[str, ...]
    on: tuple[str, ...]
    """The columns of a unique index."""
    among: Mapping[str, Any] = field(default_factory=dict)
    """What holds for the rows that the index is of, where that is a partial one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRow:
    """The row with a key. It answers, for each column of `compare`, whether it has the value. Its values are those of
    `columns`, of which it may need only some."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    among: Mapping[str, Any] = field(default_factory=dict)
    compare: tuple[str, ...] = ()
    as_stored: bool = False
    """Whether the key, too, is what its columns make of it: an index may have rounded or cut what it was given."""
    locked: bool = False
    """Whether it stays as it is until the transaction ends."""


@dataclass(frozen=True, slots=True)
class HashKey:
    """A number for each value of a key: values that their columns take for the same have the same. One row, also where
    there is none with that key."""

    key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveState:
    """A row from one state to another, if it is in a state that it may come from. It answers whether it is there now
    (a trigger may have put it into another), in which state, and with which version. Its values: the state to go to,
    those of `also`, those of `key`, the states it may come from, and the version that is expected, if one is."""

    key: tuple[str, ...]
    state: str
    come_from: int
    """How many states it may come from."""
    version: str | None = None
    """The column that counts the moves."""
    expects: bool = False
    """Whether it has to have a certain version."""
    also: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many values it has."""
        return 1 + len(self.also) + len(self.key) + self.come_from + self.expects


class MoveValues(NamedTuple):
    """The values of a move, by their roles."""

    to: Any
    also: tuple[Any, ...]
    key: tuple[Any, ...]
    come_from: tuple[Any, ...]
    expected: Any = None

    @classmethod
    def read(cls, move: MoveState, values: tuple[Any, ...]) -> MoveValues:
        """Of the values of that move, or of what stands for them."""
        also, key = 1 + len(move.also), 1 + len(move.also) + len(move.key)
        expected = values[key + move.come_from :]
        return cls(values[0], values[1:also], values[also:key], values[key : key + move.come_from], *expected)


@dataclass(frozen=True, slots=True)
class FindState:
    """Why a move did not take place: whether the row is there already, whether it may come from where it is, whether
    its version is the expected one, its state and its version. Its values are those of the move."""

    move: MoveState


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTo:
    """Numbers to the columns of a row, none of which is NULL. Its values: the numbers, and those of the key."""

    add: tuple[str, ...]
    key: tuple[str, ...]


Write: TypeAlias = InsertUnlessThere | FindRow | HashKey | MoveState | FindState | AddTo


#: A row, as its user is given it, and what else the write asks of the database. SQLite's booleans are 0 and 1.
FoundRow: TypeAlias = tuple[Any, tuple[Any, ...]]

#: What a table has made of a write, to perform it any number of times with values.
Prepared: TypeAlias = Any


class TableObject(Protocol):
    """A `sqlalchemy.Table`."""

    @property
    def fullname(self) -> str: ...


class WritableTable(Protocol):
    """One table, in one transaction."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        ...

    @property
    def plans(self) -> dict[Any, Any]:
        """What was made of the calls before this one, by their shape. It outlives the transaction, and is bounded by
        what puts something in (`_natural/plans.py`)."""
        ...

    def check_columns(self, columns: tuple[str, ...]) -> None:
        """Raises ProgrammerError where a name cannot be a column of it."""
        ...

    def prepare(self, write: Write) -> Prepared: ...
    def perform(self, prepared: Prepared, values: tuple[Any, ...]) -> Awaitable[list[FoundRow]]:
        """To be awaited in a flow."""
        ...
