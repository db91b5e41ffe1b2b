"""Natural writes on Postgres.

A column's type stands beside its values wherever rows are compared: `numeric(10,2)` has stored 5000.00 for 5000.004,
and a retry with the same payload must find it the same. What has no equality of its own (json, xml, points), nor has
an array or a domain of it, is compared in a form that has one.

The lock is tried first, and only where it is held elsewhere waited for: then with a limit of its own, which ends with
that statement. Waiting is done by the server, which finds deadlocks and wakes those who wait in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onefold._kernel.dialects import postgres_span
from onefold._kernel.effects import Statement
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.sqlstates import sqlstate_of
from onefold._natural.sql.natural_dialect import ColumnType

ABORTS: Final = True
ASKS_TYPES: Final = True
ONE_WRITER: Final = False
LOCKED: Final = " FOR UPDATE"

#: Types whose values are compared as another one's.
_COMPARED_AS: Final = {"json": "jsonb"} | dict.fromkeys(
    ("xml", "point", "line", "lseg", "box", "path", "polygon", "circle"), "text"
)

#: No unique index on the columns of ON CONFLICT, or one that is deferred.
_NO_KEY: Final = ("42P10", "55000")

_TRY: Final = qualified("SELECT pg_try_advisory_xact_lock($1::bigint)")

_AWAIT: Final = qualified("""
SELECT CASE WHEN set_config('onefold.wait', current_setting('lock_timeout'), true) IS NULL THEN false
            WHEN set_config('lock_timeout', $2::text, true) IS NULL THEN false
            WHEN pg_advisory_xact_lock($1::bigint) IS NULL THEN false
            ELSE set_config('lock_timeout', current_setting('onefold.wait'), true) IS NOT NULL END
""")


#: Down from a column's type to what it is made of: a domain of domains, an array of domains.
_TYPES: Final = """(
WITH RECURSIVE made_of (name, kind, typid, typmod, oid, array_of) AS (
    SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.atttypid, a.atttypmod, a.atttypid, ''
      FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = {table}::regclass AND a.attname IN ({names})
     UNION ALL
    SELECT m.name, m.kind, m.typid, m.typmod, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
           CASE t.typtype WHEN 'd' THEN m.array_of ELSE '[]' END
      FROM made_of AS m JOIN pg_catalog.pg_type AS t ON t.oid = m.oid
     WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)
)
SELECT pg_catalog.json_object_agg(m.name,
       pg_catalog.json_build_array(m.kind, pg_catalog.format_type(m.oid, NULL) || m.array_of, m.typid::bigint,
                                   m.typmod))::text
  FROM made_of AS m JOIN pg_catalog.pg_type AS t ON t.oid = m.oid
 WHERE t.typtype <> 'd' AND (t.typcategory <> 'A' OR t.typelem = 0)
)"""


def place(number: int) -> str:
    return f"${number}"


def coerce(place: str, kind: str | None) -> str:
    return place if kind is None else f"CAST({place} AS {kind})"


def same(column: str, place: str, kind: ColumnType) -> str:
    element = (kind.base or "").removesuffix("[]")
    other = _COMPARED_AS.get(element)
    value = coerce(place, kind.kind)
    if other is None:
        return f"{column} IS NOT DISTINCT FROM {value}"
    form = f"{other}[]" if kind.base != element else other
    return f"{column}::{form} IS NOT DISTINCT FROM {value}::{form}"


def hash_as(column: str, place: str) -> str:
    return f"pg_catalog.hash_array_extended(ARRAY[CASE WHEN false THEN {column} ELSE {place} END], 0)"


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:d}"
        case _:
            # Not str(value), which is not what a member of an enumeration of texts equals. E'' reads the same whatever
            # standard_conforming_strings says.
            escaped = str.__str__(value).replace("\\", "\\\\").replace("'", "''")
            return f"E'{escaped}'" if "\\" in escaped else f"'{escaped}'"


def types(table: str, columns: tuple[str, ...]) -> str:
    names = ", ".join(literal(column) for column in columns)
    return _TYPES.format(table=literal(table), names=names)


def types_hold(table: str, types: Mapping[str, ColumnType]) -> str:
    if not types:
        return "true"
    known = ", ".join(f"({literal(name)}, {kind.oid:d}, {kind.modifier:d})" for name, kind in types.items())
    return f"""(SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = {literal(table)}::regclass AND (a.attname, a.atttypid, a.atttypmod) IN ({known})
        ) = {len(types):d}"""


def is_no_key(error: BaseException) -> bool:
    cause = error.__cause__
    return sqlstate_of(getattr(cause, "orig", None) or cause) in _NO_KEY


def try_lock(number: int) -> Statement:
    return Statement(_TRY, (number,))


def await_lock(number: int, wait_s: float) -> Statement | None:
    return Statement(_AWAIT, (number, postgres_span(wait_s)))
