"""How a batch is written as SQL for Postgres: values as literals, boundaries as commands, our tables in their schema.

A batch travels as one simple query, so its values are written into the text. Only four kinds of value exist
(`Value`), each with one rendering that cannot be read as anything but that value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import call
from secrets import token_hex
from types import NoneType
from typing import Any, Final, TypeVar

from onefold._kernel.effects import BatchItem, Boundary, Nested, Statement, Value
from onefold.errors import StatementRefused

T = TypeVar("T")

#: No other code has a savepoint of this name: where it is gone, so is the transaction that we began.
SAVEPOINT = f"onefold_{token_hex(4)}"

#: The levels of transactions that are not as chosen.
LEVELS = {
    Boundary.BEGIN: "READ COMMITTED",
    Boundary.BEGIN_LIGHT: "READ COMMITTED",
    Boundary.BEGIN_REPEATABLE_READ: "REPEATABLE READ",
    Boundary.BEGIN_SERIALIZABLE: "SERIALIZABLE",
}

BOUNDARIES = {
    **{boundary: f"BEGIN ISOLATION LEVEL {level}" for boundary, level in LEVELS.items()},
    Boundary.BEGIN_AS_CHOSEN: "BEGIN",
    Boundary.COMMIT: "COMMIT",
    Boundary.ROLLBACK: "ROLLBACK",
    Boundary.SAVEPOINT: f"SAVEPOINT {SAVEPOINT}",
    Boundary.ROLLBACK_TO_SAVEPOINT: f"ROLLBACK TO SAVEPOINT {SAVEPOINT}",
    Boundary.RELEASE_SAVEPOINT: f"RELEASE SAVEPOINT {SAVEPOINT}",
}

PLACEHOLDER = re.compile(r"\$(\d+)")

#: Every table of ours, and nothing else: an index has one more word in its name, a text stands in quotes.
_TABLE = re.compile(r"(?<![\w.'\"])onefold_[a-z]+(?!\w)")


@lru_cache(maxsize=4000)
def qualify_tables(sql: str, schema: str | None) -> str:
    """The statement, with our tables in their schema."""
    if schema is None:
        return sql
    quoted = schema.replace('"', '""')
    return _TABLE.sub(lambda table: f'"{quoted}".{table.group()}', sql)


class PerKind(dict[type[Any], T]):
    """Something for each kind of value. It is looked up for all values of a batch at once, by functions written in C:
    every request has a dozen, and Python would take longer for them than for the rest of its batch."""

    __slots__ = ()

    def __missing__(self, kind: type[Any]) -> T:
        for base in kind.__mro__:  # a bool is an int
            if base in self:
                return self[base]
        raise StatementRefused(f"a batch takes bytes, int, str and None; it was given {kind.__name__}")


def literals(values: Sequence[Value]) -> tuple[str, ...]:
    """The values as SQL text, of no type until their places give them one: as parameters would be."""
    return tuple(map(call, map(_literal_of, map(type, values)), values))


def _hex(value: bytes) -> str:
    # E'' reads the same whatever standard_conforming_strings says.
    return f"E'\\\\x{value.hex()}'"


#: Operations, spans and names come again and again.
_SHORT = 100


def _text(value: str) -> str:
    return _short(value) if len(value) <= _SHORT else _escape(value)


def encode_text(value: str) -> bytes:
    """Raises StatementRefused for a text that Postgres cannot hold."""
    try:
        data = value.encode()
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise StatementRefused(
            "Postgres text holds no NUL character and no half of a surrogate pair; store such a value as bytes"
        )
    return data


def _escape(value: str) -> str:
    encode_text(value)
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


_short = lru_cache(maxsize=1000)(_escape)


def _null(_: None) -> str:
    return "NULL"


_literal_of: Final = PerKind[Callable[[Any], str]](
    {bytes: _hex, int: "'{:d}'".format, str: _text, NoneType: _null}
).__getitem__


def inline_values(statement: Statement, schema: str | None = None) -> str:
    """The statement with its values written in."""
    template, places = _template(statement.sql, schema)
    texts = literals(statement.values)
    return template % tuple([texts[place] for place in places])


@lru_cache(maxsize=1000)
def _template(sql: str, schema: str | None) -> tuple[str, tuple[int, ...]]:
    """The text with `%s` for its values, and which of them goes where."""
    sql = qualify_tables(sql, schema)
    places = tuple(int(number) - 1 for number in PLACEHOLDER.findall(sql))
    return PLACEHOLDER.sub("%s", sql.replace("%", "%%")), places


def placeholders(sql: str) -> int:
    """How many values a statement takes."""
    return max((int(found) for found in PLACEHOLDER.findall(sql)), default=0)


def render_item(item: BatchItem, schema: str | None = None) -> str:
    """An item of a batch as SQL text, with its values written in."""
    return inline_values(item, schema) if isinstance(item, Statement) else render_boundary(item)


def render_unbound(item: BatchItem, schema: str | None = None) -> str:
    """An item of a batch as SQL text, with placeholders for its values."""
    return qualify_tables(item.sql, schema) if isinstance(item, Statement) else render_boundary(item)


def render_boundary(item: Boundary | Nested) -> str:
    return f"{BOUNDARIES[item.boundary]}_{item.number}" if isinstance(item, Nested) else BOUNDARIES[item]


def script(statements: Iterable[str]) -> str:
    """The statements as one simple query. The new line keeps a comment at the end of one from hiding the next."""
    return "\n;".join(statements)


@lru_cache(maxsize=100)  # most batches end with "SELECT 0"
def read_tag(tag: str) -> int:
    """How many rows the tag of a completed command counts: 1 for "INSERT 0 1"."""
    count = tag.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
