"""Natural writes on SQLite.

A value that is compared with a column is converted as the column would have stored it (its affinity), so that types
need not be found out. The write lock, which each transaction that writes has alone, keeps them apart; the lock on a key
is one beside the database, as that of a claim (`db/sqlite/_locks.py`), so that those who wait for a key do not wait for
the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onefold._kernel.effects import Statement
from onefold._natural.sql.natural_dialect import ColumnType

ABORTS: Final = False
ASKS_TYPES: Final = False
ONE_WRITER: Final = True
LOCKED: Final = ""

_NO_KEY: Final = "ON CONFLICT clause does not match"

#: The left side first: it asks for the lock, and answers NULL whether it has it or not.
_TRY: Final = "SELECT onefold_lock(0, ?1) IS NULL AND onefold_refused() IS NULL"


def place(number: int) -> str:
    return f"?{number}"


def coerce(place: str, kind: str | None) -> str:
    return place


def same(column: str, place: str, kind: ColumnType) -> str:
    return f"{column} IS {place}"


def hash_as(column: str, place: str) -> str:
    return place


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case int():
            return f"{value:d}"
        case _:
            escaped = str.__str__(value).replace("'", "''")  # as on Postgres
            return f"'{escaped}'"


def types(table: str, columns: tuple[str, ...]) -> str:
    return "NULL"


def types_hold(table: str, types: Mapping[str, ColumnType]) -> str:
    return "1"


def is_no_key(error: BaseException) -> bool:
    return _NO_KEY in str(error)


def try_lock(number: int) -> Statement:
    return Statement(_TRY, (number,))


def await_lock(number: int, wait_s: float) -> Statement | None:
    return None
