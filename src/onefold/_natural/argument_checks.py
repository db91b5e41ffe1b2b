"""What may stand for a table, a column and a key. What cannot is refused where it is written, before any SQL.

Names become part of a statement. They are always quoted, and only names that need no escape are taken: letters of any
script, digits, underscores, and blanks and hyphens between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from onefold.errors import ProgrammerError

#: What Postgres cuts names to, silently: two that differ behind it would be one.
NAME_BYTES_MAX: Final = 63

COLUMNS_MAX: Final = 500

#: A schema, and the table.
_PARTS_MAX: Final = 2

#: What stands in the text of a statement, and is neither a quote nor a placeholder of any driver.
_PLAIN_TEXT: Final = re.compile(r"[\w .,/@-]{0,200}")

_NAME: Final = re.compile(r"[^\W\d](?:[\w -]*\w)?")


@lru_cache(maxsize=1024)
def _is_plain(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and len(name.encode(errors="replace")) <= NAME_BYTES_MAX


def check_name(name: object, what: str) -> str:
    """The name, if it is one of a table, a schema or a column."""
    if not isinstance(name, str):
        raise ProgrammerError(f"{what} {name!r:.80} must be a text: the name as it is in the database")
    if not _is_plain(name):
        raise ProgrammerError(
            f"{what} {name!r:.80} is not a name that is written into a statement: letters, digits, underscores, blanks "
            f"and hyphens inside, {NAME_BYTES_MAX} bytes at most. Names come from the code, never from a request"
        )
    return name


def check_table(name: str) -> tuple[str, ...]:
    """The parts of a table's name: `orders`, or `shop.orders` with its schema."""
    parts = name.split(".")
    if len(parts) > _PARTS_MAX:
        raise ProgrammerError(f"table {name!r:.80} has more than a schema and a name: write `orders` or `shop.orders`")
    return tuple(check_name(part, "table") for part in parts)


def check_values(call: str, setting: str, given: object, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Values by column, not to be changed."""
    values = given if isinstance(given, dict) else dict(given) if isinstance(given, Mapping) else None
    if values is None or not (values or may_be_empty):
        raise ProgrammerError(f"{call}: {setting}={given!r:.80} must be values by column, as {{'id': order_id}}")
    if len(values) > COLUMNS_MAX:
        raise ProgrammerError(f"{call}: {setting} has {len(values)} columns; there may be {COLUMNS_MAX}")
    return values


def check_key(call: str, setting: str, key: Mapping[str, Any]) -> None:
    """No part of a key is NULL: NULL equals nothing, and a unique index takes any number of them."""
    for column, value in key.items():
        if value is None:
            raise ProgrammerError(
                f"{call}: {setting} has None for {column!r}. A key names one row, and NULL none: a unique index takes "
                "any number of them. Give the value, or leave the column out of the key"
            )


def check_numbers(call: str, setting: str, numbers: Mapping[str, Any]) -> None:
    """What can be added and taken away again. SQLite stores NULL for NaN, and adds 0 for text that is no number."""
    for column, number in numbers.items():
        if number.__class__ is int:
            continue
        check_key(call, setting, numbers)
        is_text = isinstance(number, str | bytes | bytearray)
        is_finite = not isinstance(number, float | Decimal) or Decimal(number).is_finite()
        if is_text or not is_finite:
            raise ProgrammerError(
                f"{call}: {setting} has {number!r:.80} for {column!r}, which is not a number that can be added: a "
                "balance would be lost by it, or not moved"
            )


def check_columns(call: str, setting: str, given: object) -> tuple[str, ...]:
    """One column, or several."""
    columns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not columns or not all(isinstance(column, str) for column in columns) or len(set(columns)) != len(columns):
        raise ProgrammerError(f"{call}: {setting}={given!r:.80} must be a column, or several different ones")
    return columns


def check_among(call: str, among: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for the rows of a partial index. It is written into the statement: Postgres finds the index by it."""
    conditions = dict(check_values(call, "among", among))
    for column, value in conditions.items():
        plain = _PLAIN_TEXT.fullmatch(value) if isinstance(value, str) else value is None or isinstance(value, int)
        if not plain:
            raise ProgrammerError(
                f"{call}: among has {value!r:.80} for {column!r}; a condition of a partial index that can be named "
                "here is None (IS NULL), a bool, an int or a text of letters, digits and -_.,/@ and blanks"
            )
        if column in values and values[column] != value:
            raise ProgrammerError(
                f"{call}: the row has {values[column]!r:.80} in {column!r}, and so is not among those with "
                f"{value!r:.80}: the index would not keep it single"
            )
    return conditions
