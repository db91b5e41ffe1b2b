"""What the statements need a dialect for, and what differs between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from onefold._kernel.effects import Statement


class NaturalDialect(Protocol):
    """Postgres, or SQLite."""

    #: Whether a statement that failed has aborted its transaction, so that nothing half done can be committed.
    ABORTS: bool
    #: Whether rows are read by the types of their columns, which have to be found out first.
    ASKS_TYPES: bool
    #: Whether a transaction that writes excludes all others.
    ONE_WRITER: bool
    #: What a SELECT ends with that locks its rows.
    LOCKED: str

    def place(self, number: int) -> str:
        """A placeholder."""
        ...

    def coerce(self, place: str, kind: str | None) -> str:
        """A value as a column of this type stores it."""
        ...

    def same(self, column: str, place: str, kind: ColumnType) -> str:
        """Whether a column has a value, NULL included. Its type may be made of another: a domain of it, an array."""
        ...

    def hash_as(self, column: str, place: str) -> str:
        """A number for a value, as the type of a column compares it. Not asked for where there is one writer."""
        ...

    def literal(self, value: Any) -> str:
        """A value in the text of a statement."""
        ...

    def types(self, table: str, columns: tuple[str, ...]) -> str:
        """An expression: the types of columns, and what each is made of, as JSON."""
        ...

    def types_hold(self, table: str, types: Mapping[str, ColumnType]) -> str:
        """An expression: whether these columns still have these types."""
        ...

    def is_no_key(self, error: BaseException) -> bool:
        """Whether a statement was refused because no unique index is on the columns of ON CONFLICT."""
        ...

    def try_lock(self, number: int) -> Statement:
        """One row: whether the lock was had."""
        ...

    def await_lock(self, number: int, wait_s: float) -> Statement | None:
        """Waits on the server, and is refused with StoreBusy after that time. None: it is asked for again."""
        ...


def quote(name: str) -> str:
    """A name that was checked (`argument_checks`) as an identifier: reserved words are names like any other."""
    return f'"{str.__str__(name)}"'  # a member of an enumeration of texts is formatted as something else


class ColumnType(NamedTuple):
    """Of a column, and what that is made of. None: not known."""

    kind: str | None = None
    base: str | None = None
    oid: int = 0
    modifier: int = -1
    """Its number, and its length or precision, as the catalog has them."""


def read_types(found: object) -> Mapping[str, ColumnType]:
    """What `types` has come back with."""
    import json

    known = json.loads(found) if isinstance(found, str) else {}
    return {name: ColumnType(*kinds) for name, kinds in known.items()} if isinstance(known, dict) else {}
