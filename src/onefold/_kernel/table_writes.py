"""Writes to the user's own tables, as data: what they need of a table, however that is named.

A table is named by its name, and written in SQL (`_natural/plain_table.py`), or it is one of SQLAlchemy's, a Table or a
mapped class, and written by that (`db/sqlalchemy/_table_writes.py`). The flows in `_natural/` know neither.

Invariant: whether two values are the same is the database's judgement, never Python's. It has its own idea of 5 and
5.00, of padded texts, of times with a zone and of JSON, and it may have rounded what it stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from onefold._kernel.effects import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertUnlessThere:
    """One row, unless a row with its key is there, and then none. It answers with the row that it made, and whether
    that is in the index: its key has no NULL, and what holds for the rows of the index holds for it."""

    values: Mapping[str, Any]
    on: tuple[str, ...]
    """The columns of a unique index."""
    among: Mapping[str, Any] = field(default_factory=dict)
    """What holds for the rows that the index is of, where that is a partial one."""
    compared: tuple[str, ...] = ()
    """What a look at the row that was there will compare: their types may have to be found out."""

    @property
    def key(self) -> dict[str, Any]:
        return {column: self.values[column] for column in self.on}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRow:
    """The row with a key. It answers, for each value of `compare`, whether the column has it."""

    key: Mapping[str, Any]
    among: Mapping[str, Any] = field(default_factory=dict)
    compare: Mapping[str, Any] = field(default_factory=dict)
    locked: bool = False
    """Whether it stays as it is until the transaction ends."""


@dataclass(frozen=True, slots=True)
class HashKey:
    """A number for each value of a key: values that their columns take for the same have the same. One row, also where
    there is none with that key."""

    key: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveState:
    """A row from one state to another, if it is in a state that it may come from. It answers whether it is there now,
    in which state, and with which version."""

    key: Mapping[str, Any]
    state: str
    come_from: tuple[Any, ...]
    to: Any
    version: str | None = None
    """The column that counts the moves."""
    expected_version: int | None = None
    also: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FindState:
    """Why a move did not take place: whether the row is there already, whether it may come from where it is, whether
    its version is the expected one, its state and its version."""

    move: MoveState


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTo:
    """Numbers to the columns of a row, none of which is NULL."""

    key: Mapping[str, Any]
    add: Mapping[str, Any]


Write: TypeAlias = InsertUnlessThere | FindRow | HashKey | MoveState | FindState | AddTo


class FoundRow(NamedTuple):
    """A row, as its user is given it, and what else the write asks of the database, in the order of its answer:
    `MovedState` for MoveState, `FoundState` for FindState."""

    row: Any
    answers: tuple[Any, ...] = ()


class MovedState(NamedTuple):
    """What the database says of a row that was moved. SQLite's booleans are 0 and 1."""

    arrived: object
    """Whether it is in the wanted state: a trigger may have put it into another."""
    state: Any
    version: int | None


class FoundState(NamedTuple):
    """What the database says of a row that was not moved. SQLite's booleans are 0 and 1."""

    arrived: object
    """Whether it is in the wanted state already."""
    allowed: object
    """Whether it is in a state that it may come from."""
    expected: object
    """Whether it has the expected version, or none was expected."""
    state: Any
    version: int | None


class WritableTable(Protocol):
    """One table, in one transaction."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        ...

    def check_columns(self, columns: tuple[str, ...]) -> None:
        """Raises ProgrammerError where a name cannot be a column of it."""
        ...

    def perform(self, write: Write) -> Flow[list[FoundRow]]: ...
