"""A table that is named by its name: its writes as SQL.

Every statement answers with its rows, by RETURNING or by SELECT. A row count is never believed: MySQL's tells how many
rows were changed, not how many were found, triggers and rules change it on other databases, and an UPDATE that
changes nothing has one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onefold._kernel.effects import HandlerStatement, Query
from onefold._kernel.table_writes import (
    AddTo,
    FindRow,
    FindState,
    FoundRow,
    HashKey,
    InsertUnlessThere,
    MoveState,
    Write,
)
from onefold._natural.argument_checks import check_name, check_table
from onefold._natural.sql.natural_dialect import ColumnType, NaturalDialect, quote, read_types
from onefold.errors import ProgrammerError, SchemaMissing, StatementRefused

_UNKNOWN = ColumnType()


class PlainTable:
    """Implements `WritableTable`, for one call."""

    __slots__ = ("_sql", "_table", "_types", "name")

    def __init__(self, name: str, sql: NaturalDialect) -> None:
        self.name = name
        self._table = ".".join(quote(part) for part in check_table(name))
        self._sql = sql
        #: The types of columns, as far as they are known.
        self._types: Mapping[str, ColumnType] = {}

    def check_columns(self, columns: tuple[str, ...]) -> None:
        for column in columns:
            check_name(column, f"column of {self.name}:")

    async def perform(self, write: Write) -> list[FoundRow]:
        try:
            match write:
                case InsertUnlessThere():
                    return await self._insert(write)
                case FindRow():
                    return await self._find(write)
                case HashKey(key):
                    return await self._hash(key)
                case MoveState():
                    return await self._move(write)
                case FindState(move):
                    return await self._find_state(move)
                case AddTo():
                    return await self._add(write)
        except SchemaMissing as error:
            raise ProgrammerError(f"table {self.name}, or a column of it, is not there: {error.__cause__}") from error
        except StatementRefused as error:
            if isinstance(write, InsertUnlessThere) and self._sql.is_no_key(error):
                raise _no_key(self.name, write, error) from error
            raise

    async def _insert(self, write: InsertUnlessThere) -> list[FoundRow]:
        values = _Values(self._sql)
        columns = ", ".join(quote(column) for column in write.values)
        places = ", ".join(values.add(value) for value in write.values.values())
        key = ", ".join(quote(column) for column in write.on)
        partial = f" WHERE {self._conditions(write.among)}" if write.among else ""
        insert = f"INSERT INTO {self._table} ({columns}) VALUES ({places}) ON CONFLICT ({key}){partial} DO NOTHING"
        indexed = " AND ".join(f"{quote(column)} IS NOT NULL" for column in write.on)
        if write.among:
            indexed += f" AND {self._conditions(write.among)}"
        returning = f"RETURNING COALESCE({indexed}, 1 = 0) AS onefold_indexed, *"
        if not (write.compared and self._sql.ASKS_TYPES):
            return await self._ask(f"{insert} {returning}", values, 1)
        # One row in any case, with the types; the row that was inserted stands beside them, or NULLs.
        types = self._sql.types(self._table, write.compared)
        [found] = await self._ask(
            f"WITH made AS ({insert} {returning}) SELECT types.found, made.* "
            f"FROM (SELECT {types} AS found) AS types LEFT JOIN made ON true",
            values,
            2,
        )
        kinds, indexed_now = found.answers
        self._types = read_types(kinds)
        return [] if indexed_now is None else [FoundRow(found.row, (indexed_now,))]

    async def _find(self, write: FindRow) -> list[FoundRow]:
        values, sql = _Values(self._sql), self._sql
        asked = [
            sql.same(f"t.{quote(column)}", values.add(value), *self._types.get(column, _UNKNOWN))
            for column, value in write.compare.items()
        ]
        selected = ", ".join([*asked, "t.*"])
        where = self._key(write.key, values, "t.")
        among = f" AND {self._conditions(write.among, 't.')}" if write.among else ""
        lock = sql.LOCKED if write.locked else ""
        found = f"SELECT {selected} FROM {self._table} AS t WHERE {where}{among}{lock}"
        return await self._ask(found, values, len(asked))

    async def _hash(self, key: Mapping[str, Any]) -> list[FoundRow]:
        """Each value by the type of its column, which the CASE gives it."""
        values = _Values(self._sql)
        hashes = [self._sql.hash_as(f"t.{quote(column)}", values.add(value)) for column, value in key.items()]
        return await self._ask(
            f"SELECT {', '.join(hashes)} FROM (SELECT 1) AS one LEFT JOIN {self._table} AS t ON false", values, len(key)
        )

    async def _move(self, write: MoveState) -> list[FoundRow]:
        values = _Values(self._sql)
        changes = [f"{quote(write.state)} = {values.add(write.to)}"]
        if write.version is not None:
            changes.append(f"{quote(write.version)} = {quote(write.version)} + 1")
        changes += [f"{quote(column)} = {values.add(value)}" for column, value in write.also.items()]
        state = f"t.{quote(write.state)}"
        where = f"{self._key(write.key, values, 't.')} AND {state} IN ({values.add_all(write.come_from)})"
        where += f" AND NOT {state} = {values.add(write.to)}"
        if write.version is not None and write.expected_version is not None:
            where += f" AND {quote(write.version)} = {values.add(write.expected_version)}"
        version = "NULL" if write.version is None else quote(write.version)
        arrived = f"{quote(write.state)} = {values.add(write.to)}, {quote(write.state)}"
        update = f"UPDATE {self._table} AS t SET {', '.join(changes)} WHERE {where} RETURNING {arrived}, {version}, *"
        return await self._ask(update, values, 3)

    async def _find_state(self, move: MoveState) -> list[FoundRow]:
        values, state = _Values(self._sql), quote(move.state)
        already = f"{state} = {values.add(move.to)}"
        allowed = f"{state} IN ({values.add_all(move.come_from)})"
        version = "NULL" if move.version is None else quote(move.version)
        current = "1 = 1"
        if move.version is not None and move.expected_version is not None:
            current = f"{version} = {values.add(move.expected_version)}"
        asked = f"{already}, {allowed}, {current}, {state}, {version}"
        where = self._key(move.key, values, "t.")
        return await self._ask(f"SELECT {asked}, t.* FROM {self._table} AS t WHERE {where}", values, 5)

    async def _add(self, write: AddTo) -> list[FoundRow]:
        values = _Values(self._sql)
        changes = ", ".join(
            f"{quote(column)} = {quote(column)} + {values.add(number)}" for column, number in write.add.items()
        )
        known = " AND ".join(f"{quote(column)} IS NOT NULL" for column in write.add)
        where = f"{self._key(write.key, values, 't.')} AND {known}"
        return await self._ask(f"UPDATE {self._table} AS t SET {changes} WHERE {where} RETURNING *", values, 0)

    async def _ask(self, sql: str, values: _Values, answers: int) -> list[FoundRow]:
        """The rows, after so many columns that answer what was asked beside them."""
        columns, rows = await Query(HandlerStatement(sql, tuple(values.given)))
        names = columns[answers:]
        return [FoundRow(dict(zip(names, row[answers:], strict=True)), row[:answers]) for row in rows]

    def _key(self, key: Mapping[str, Any], values: _Values, prefix: str) -> str:
        """With the table in front: SQLite takes a quoted name that is not a column for a text, and compares that."""
        return " AND ".join(
            f"{prefix}{quote(column)} = {self._sql.coerce(values.add(value), self._types.get(column, _UNKNOWN).kind)}"
            for column, value in key.items()
        )

    def _conditions(self, among: Mapping[str, Any], prefix: str = "") -> str:
        return " AND ".join(
            f"{prefix}{quote(column)} {'IS' if value is None else '='} {self._sql.literal(value)}"
            for column, value in among.items()
        )


class _Values:
    """The values of one statement, and the places where they stand."""

    __slots__ = ("_sql", "given")

    def __init__(self, sql: NaturalDialect) -> None:
        self._sql = sql
        self.given: list[Any] = []

    def add(self, value: Any) -> str:
        self.given.append(value)
        return self._sql.place(len(self.given))

    def add_all(self, values: tuple[Any, ...]) -> str:
        return ", ".join(self.add(value) for value in values)


def _no_key(table: str, write: InsertUnlessThere, error: BaseException) -> ProgrammerError:
    columns = ", ".join(write.on)
    only = f" of rows with {dict(write.among)!r}" if write.among else ""
    return ProgrammerError(
        f"table {table} has no unique index on ({columns}){only}, so nothing keeps such a row single: CREATE UNIQUE "
        f"INDEX ON {table} ({columns}); for an index with a WHERE give `among`. The index must not be deferrable, nor "
        f"on an expression ({error.__cause__})"
    )
