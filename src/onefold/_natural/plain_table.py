"""A table that is named by its name: its writes as SQL.

Every statement answers with its rows, by RETURNING or by SELECT. A row count is never believed: MySQL's tells how many
rows were changed, not how many were found, triggers and rules change it on other databases, and an UPDATE that
changes nothing has one too.

Where values are compared by the types of their columns, these are asked for once and stand in the statement, together
with the question whether they are still the same: a column may be altered, and the same name may stand for another
table where another transaction has another search_path. Where they are not, they are asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from types import coroutine
from typing import Any, Final, TypeAlias, final

from onefold._kernel.effects import HandlerStatement, Query
from onefold._kernel.table_writes import (
    AddTo,
    FindRow,
    FindState,
    FoundRow,
    HashKey,
    InsertUnlessThere,
    MoveState,
    MoveValues,
    Write,
)
from onefold._natural.argument_checks import check_name, check_table
from onefold._natural.sql.natural_dialect import ColumnType, NaturalDialect, quote, read_types
from onefold.errors import OnefoldError, ProgrammerError, SchemaMissing, SerializationFailed, StatementRefused

#: Makes a NamedTuple without the function that Python writes for it: this is done for every statement.
_new: Final = tuple.__new__

_UNKNOWN: Final = ColumnType()

_Types: TypeAlias = Mapping[str, ColumnType]
_Arrange: TypeAlias = Callable[[tuple[Any, ...]], tuple[Any, ...]]


@final
@dataclass(frozen=True, slots=True)
class PlainStatement:
    """A write in SQL."""

    sql: str
    answers: int
    """How many columns stand in front of the row, and answer what was asked beside it."""
    arrange: _Arrange | None = None
    """The values as the statement has them; None: as they are."""
    write: Write | None = None


@dataclass(slots=True)
class TypedFind:
    """A look that compares by the types of columns, and the statement, once these are known."""

    find: FindRow
    columns: tuple[str, ...]
    known: PlainStatement | None = None


class PlainTable:
    """Implements `WritableTable`, for all transactions with one database."""

    __slots__ = ("_sql", "_table", "name", "plans")

    def __init__(self, name: str, sql: NaturalDialect) -> None:
        self.name = name
        self._table = ".".join(quote(part) for part in check_table(name))
        self._sql = sql
        self.plans: dict[Any, Any] = {}

    def check_columns(self, columns: tuple[str, ...]) -> None:
        for column in columns:
            check_name(column, f"column of {self.name}:")

    def prepare(self, write: Write) -> PlainStatement | TypedFind:
        match write:
            case InsertUnlessThere():
                return self._insert(write)
            case FindRow():
                columns = (*write.compare, *write.key) if write.as_stored else write.compare
                return TypedFind(write, columns) if columns and self._sql.ASKS_TYPES else self._find(write)
            case HashKey(key):
                return self._hash(key)
            case MoveState():
                return self._move(write)
            case FindState(move):
                return self._find_state(move)
            case AddTo():
                return self._add(write)

    @coroutine
    def perform(
        self, prepared: PlainStatement | TypedFind, values: tuple[Any, ...]
    ) -> Generator[Any, Any, list[FoundRow]]:
        """Every natural write awaits this, often twice: it is one frame, from the values to the rows as flows have
        them."""
        if isinstance(prepared, TypedFind):
            found: list[FoundRow] = yield from self._find_by_types(prepared, values)
            return found
        arrange = prepared.arrange
        try:
            asked = (prepared.sql, values if arrange is None else arrange(values))
            columns, rows = yield Query(_new(HandlerStatement, asked))
        except (SchemaMissing, StatementRefused) as error:
            told = self._explain(prepared, error)
            if told is error:
                raise
            raise told from error
        if not rows:
            return []
        answers = prepared.answers
        names = columns[answers:] if answers else columns
        if len(rows) == 1:  # almost always
            [row] = rows
            return [(dict(zip(names, row[answers:], strict=True)), row[:answers])]
        return [(dict(zip(names, row[answers:], strict=True)), row[:answers]) for row in rows]

    def _explain(self, prepared: PlainStatement, error: OnefoldError) -> OnefoldError:
        """What its user is told of an error that a statement was refused with."""
        if isinstance(error, SchemaMissing):
            return ProgrammerError(f"table {self.name}, or a column of it, is not there: {error.__cause__}")
        if isinstance(prepared.write, InsertUnlessThere) and self._sql.is_no_key(error):
            return _no_key(self.name, prepared.write, error)
        return error

    async def _find_by_types(self, typed: TypedFind, values: tuple[Any, ...]) -> list[FoundRow]:
        for _ in range(2):
            known = typed.known or await self._learn_types(typed)
            try:
                found = await self.perform(known, values)
            except Exception:
                typed.known = None  # a type may have another name by now
                raise
            compared = [(row, answers[1:]) for row, answers in found if answers[0]]
            if len(compared) == len(found):
                return compared
            typed.known = None
        raise SerializationFailed(f"{self.name}: its columns are altered at this moment, and could not be compared")

    async def _learn_types(self, typed: TypedFind) -> PlainStatement:
        _, [(found,)] = await Query(HandlerStatement(f"SELECT {self._sql.types(self._table, typed.columns)}"))
        known = typed.known = self._find(typed.find, read_types(found))
        return known

    def _insert(self, write: InsertUnlessThere) -> PlainStatement:
        places = _Placeholders(self._sql, len(write.columns))
        columns = ", ".join(quote(column) for column in write.columns)
        values = places.add_all(range(len(write.columns)))
        key = ", ".join(quote(column) for column in write.on)
        partial = f" WHERE {self._conditions(write.among)}" if write.among else ""
        insert = f"INSERT INTO {self._table} ({columns}) VALUES ({values}) ON CONFLICT ({key}){partial} DO NOTHING"
        indexed = " AND ".join(f"{quote(column)} IS NOT NULL" for column in write.on)
        if write.among:
            indexed += f" AND {self._conditions(write.among)}"
        return places.state(f"{insert} RETURNING COALESCE({indexed}, 1 = 0) AS onefold_indexed, *", 1, write)

    def _find(self, write: FindRow, known: _Types | None = None) -> PlainStatement:
        """With the types that are known, it asks first whether they hold."""
        places, sql, types = _Placeholders(self._sql, len(write.columns)), self._sql, known or {}
        at = {column: number for number, column in enumerate(write.columns)}
        asked = [] if known is None else [sql.types_hold(self._table, types)]
        asked += [
            sql.same(f"t.{quote(column)}", places.add(at[column]), types.get(column, _UNKNOWN))
            for column in write.compare
        ]
        selected = ", ".join([*asked, "t.*"])
        where = " AND ".join(
            f"t.{quote(column)} = {sql.coerce(places.add(at[column]), types.get(column, _UNKNOWN).kind)}"
            for column in write.key
        )
        among = f" AND {self._conditions(write.among, 't.')}" if write.among else ""
        lock = sql.LOCKED if write.locked else ""
        return places.state(f"SELECT {selected} FROM {self._table} AS t WHERE {where}{among}{lock}", len(asked))

    def _hash(self, key: tuple[str, ...]) -> PlainStatement:
        """Each value by the type of its column, which the CASE gives it."""
        places = _Placeholders(self._sql, len(key))
        hashes = [self._sql.hash_as(f"t.{quote(column)}", places.add(at)) for at, column in enumerate(key)]
        selected = f"SELECT {', '.join(hashes)} FROM (SELECT 1) AS one LEFT JOIN {self._table} AS t ON false"
        return places.state(selected, len(key))

    def _move(self, write: MoveState) -> PlainStatement:
        numbers = tuple(range(write.count))
        at, places = MoveValues.read(write, numbers), _Placeholders(self._sql, write.count)
        changes = [f"{quote(write.state)} = {places.add(at.to)}"]
        if write.version is not None:
            changes.append(f"{quote(write.version)} = {quote(write.version)} + 1")
        also = zip(write.also, at.also, strict=True)
        changes += [f"{quote(column)} = {places.add(number)}" for column, number in also]
        state = f"t.{quote(write.state)}"
        where = f"{_key(write.key, at.key, places)} AND {state} IN ({places.add_all(at.come_from)})"
        where += f" AND NOT {state} = {places.add(at.to)}"
        if write.version is not None and write.expects:
            where += f" AND {quote(write.version)} = {places.add(at.expected)}"
        version = "NULL" if write.version is None else quote(write.version)
        arrived = f"{quote(write.state)} = {places.add(at.to)}, {quote(write.state)}"
        update = f"UPDATE {self._table} AS t SET {', '.join(changes)} WHERE {where} RETURNING {arrived}, {version}, *"
        return places.state(update, 3)

    def _find_state(self, move: MoveState) -> PlainStatement:
        numbers = tuple(range(move.count))
        at, places = MoveValues.read(move, numbers), _Placeholders(self._sql, move.count)
        state = quote(move.state)
        already = f"{state} = {places.add(at.to)}"
        allowed = f"{state} IN ({places.add_all(at.come_from)})"
        version = "NULL" if move.version is None else quote(move.version)
        current = "1 = 1"
        if move.version is not None and move.expects:
            current = f"{version} = {places.add(at.expected)}"
        asked = f"{already}, {allowed}, {current}, {state}, {version}"
        where = _key(move.key, at.key, places)
        return places.state(f"SELECT {asked}, t.* FROM {self._table} AS t WHERE {where}", 5)

    def _add(self, write: AddTo) -> PlainStatement:
        places = _Placeholders(self._sql, len(write.add) + len(write.key))
        changes = ", ".join(
            f"{quote(column)} = {quote(column)} + {places.add(at)}" for at, column in enumerate(write.add)
        )
        known = " AND ".join(f"{quote(column)} IS NOT NULL" for column in write.add)
        where = f"{_key(write.key, range(len(write.add), places.count), places)} AND {known}"
        return places.state(f"UPDATE {self._table} AS t SET {changes} WHERE {where} RETURNING *", 0)

    def _conditions(self, among: Mapping[str, Any], prefix: str = "") -> str:
        return " AND ".join(
            f"{prefix}{quote(column)} {'IS' if value is None else '='} {self._sql.literal(value)}"
            for column, value in among.items()
        )


class _Placeholders:
    """The placeholders of one statement, and which of the values stands for each."""

    __slots__ = ("_sql", "_taken", "count")

    def __init__(self, sql: NaturalDialect, count: int) -> None:
        self._sql = sql
        #: How many values there are.
        self.count = count
        self._taken: list[int] = []

    def add(self, number: int) -> str:
        self._taken.append(number)
        return self._sql.place(len(self._taken))

    def add_all(self, numbers: Iterable[int]) -> str:
        return ", ".join([self.add(number) for number in numbers])

    def state(self, sql: str, answers: int, write: Write | None = None) -> PlainStatement:
        return PlainStatement(sql, answers, self._arrange(), write)

    def _arrange(self) -> _Arrange | None:
        taken = self._taken
        if taken == list(range(self.count)):
            return None
        if len(taken) == 1:  # of one alone an itemgetter makes no tuple
            return itemgetter(slice(taken[0], taken[0] + 1))
        return itemgetter(*taken)


def _key(key: tuple[str, ...], at: Iterable[int], places: _Placeholders) -> str:
    """With the table in front: SQLite takes a quoted name that is not a column for a text, and compares that."""
    return " AND ".join([f"t.{quote(column)} = {places.add(number)}" for column, number in zip(key, at, strict=True)])


def _no_key(table: str, write: InsertUnlessThere, error: BaseException) -> ProgrammerError:
    columns = ", ".join(write.on)
    only = f" of rows with {dict(write.among)!r}" if write.among else ""
    return ProgrammerError(
        f"table {table} has no unique index on ({columns}){only}, so nothing keeps such a row single: CREATE UNIQUE "
        f"INDEX ON {table} ({columns}); for an index with a WHERE give `among`. The index must not be deferrable, nor "
        f"on an expression ({error.__cause__})"
    )
