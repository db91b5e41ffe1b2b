"""Writes to a Table or a mapped class, by SQLAlchemy: its types, defaults and `onupdate` hold as in any statement.

A Table is written on the transaction's connection, and its rows are dicts by the keys of its columns. A mapped class is
written in the transaction's session, by the names of its attributes, and its rows are instances: what the session has
loaded before is refreshed, and what it holds back is written first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Table,
    and_,
    cast,
    exc,
    false,
    func,
    inspect,
    literal,
    null,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapper
from sqlalchemy.types import JSON, TypeDecorator

from onefold._kernel.effects import Call
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
from onefold._kernel.transaction import Transaction
from onefold.db.sqlalchemy._errors import translate_error
from onefold.errors import ProgrammerError, SchemaMissing, StatementRefused

_INSERTS: dict[str, Callable[[Any], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}

_NO_KEY = ("42P10", "55000", "ON CONFLICT clause does not match")


class SqlalchemyTable:
    """Implements `WritableTable`, for one call."""

    def __init__(
        self,
        tx: Transaction[Any],
        given: object,
        blocking: Callable[[Callable[[], Any]], Any],
        *,
        asynchronous: bool,
    ) -> None:
        self._tx = tx
        self._asynchronous = asynchronous
        self._blocking = blocking
        self._given: Any = given
        self._mapped, self._table, self._columns = _read(given)
        self.name = self._table.fullname

    def check_columns(self, columns: tuple[str, ...]) -> None:
        for column in columns:
            if column not in self._columns:
                known = ", ".join(sorted(self._columns))
                what = "attribute" if self._mapped is not None else "column"
                raise ProgrammerError(f"{self.name} has no {what} {column!r:.80}; it has {known}")

    async def perform(self, write: Write) -> list[FoundRow]:
        try:
            found: list[FoundRow] = await Call(functools.partial(self._execute, write))
        except SchemaMissing as error:
            raise ProgrammerError(f"table {self.name}, or a column of it, is not there: {error.__cause__}") from error
        except StatementRefused as error:
            if isinstance(write, InsertUnlessThere) and any(sign in str(error) for sign in _NO_KEY):
                raise ProgrammerError(
                    f"table {self.name} has no unique index on ({', '.join(write.on)}), so nothing keeps such a row "
                    f"single; for an index with a WHERE give `among`. It must not be deferrable ({error})"
                ) from error
            raise
        return found

    def _execute(self, write: Write) -> Any:
        """Where its connection, or its session, may be used; on asyncio to be awaited."""
        execute = self._in_connection if self._mapped is None else self._in_session
        if self._asynchronous:
            place = self._tx.connection if self._mapped is None else self._tx.session()
            return place.run_sync(execute, write)
        # Where it may block: SQLite's write lock is waited for when the connection is taken.
        return self._blocking(
            lambda: execute(self._tx.connection if self._mapped is None else self._tx.session(), write)
        )

    def _in_connection(self, connection: Any, write: Write) -> list[FoundRow]:
        statement, answers = self._statement(write, connection.dialect.name)
        try:
            result = connection.execute(statement)
            keys = () if isinstance(write, HashKey) else tuple(column.key for column in self._table.columns)
            return [FoundRow(dict(zip(keys, row[answers:], strict=True)), tuple(row[:answers])) for row in result]
        except exc.SQLAlchemyError as error:
            raise translate_error(connection, error) from error

    def _in_session(self, session: Any, write: Write) -> list[FoundRow]:
        connection = session.connection(bind_arguments={"mapper": self._mapped})
        statement, answers = self._statement(write, connection.dialect.name)
        try:
            # Refreshed: what was changed elsewhere, or by this very statement, is not hidden by what was loaded before.
            options = {"populate_existing": True, "synchronize_session": False}
            result = session.execute(statement, execution_options=options)
            return [FoundRow(row[answers] if answers < len(row) else None, tuple(row[:answers])) for row in result]
        except exc.SQLAlchemyError as error:
            raise translate_error(connection, error) from error

    def _statement(self, write: Write, dialect: str) -> tuple[Any, int]:
        """The statement, and how many columns stand in front of the row."""
        match write:
            case InsertUnlessThere():
                return self._insert(write, dialect), 1
            case FindRow():
                asked = [_same(self._columns[column], value, dialect) for column, value in write.compare.items()]
                where = and_(*self._key(write.key, dialect), *self._conditions(write.among))
                found = select(*asked, self._given).where(where)
                # Of this table alone: what a mapping loads beside it by an outer join cannot be locked.
                return found.with_for_update(of=self._given) if write.locked else found, len(asked)
            case HashKey(key):
                return select(*self._hashes(key)), len(key)
            case MoveState():
                return self._move(write), 3
            case FindState(move):
                return self._find_state(move), 5
            case AddTo():
                return self._add(write), 0

    def _hashes(self, key: Mapping[str, Any]) -> list[Any]:
        columns = [(self._columns[column], value) for column, value in key.items()]
        return [
            func.pg_catalog.hash_array_extended(postgresql.array([_stored(column, value, "postgresql")]), 0).label(None)
            for column, value in columns
        ]

    def _insert(self, write: InsertUnlessThere, dialect: str) -> Any:
        insert = _INSERTS[dialect](self._given)
        where = and_(*self._conditions(write.among)) if write.among else None
        keys = [self._columns[column].is_not(None) for column in write.on]
        indexed = func.coalesce(and_(*keys, *self._conditions(write.among)), false())
        return (
            insert.values({self._columns[column]: value for column, value in write.values.items()})
            .on_conflict_do_nothing(index_elements=[self._columns[column] for column in write.on], index_where=where)
            .returning(indexed, self._given)
        )

    def _move(self, write: MoveState) -> Any:
        state = self._columns[write.state]
        changes = {state: write.to} | {self._columns[column]: value for column, value in write.also.items()}
        conditions = [*self._key(write.key, None), state.in_(write.come_from), state != write.to]
        version: Any = null()
        if write.version is not None:
            version = self._columns[write.version]
            changes[version] = version + 1
            if write.expected_version is not None:
                conditions.append(version == write.expected_version)
        # Under names of their own: the row has the columns themselves.
        told = (state == write.to, state.label(None), version.label(None))
        return update(self._given).where(*conditions).values(changes).returning(*told, self._given)

    def _find_state(self, move: MoveState) -> Any:
        state = self._columns[move.state]
        version: Any = null() if move.version is None else self._columns[move.version]
        current: Any = true()
        if move.version is not None and move.expected_version is not None:
            current = version == move.expected_version
        # Under names of their own: the row has the columns themselves.
        asked = (state == move.to, state.in_(move.come_from), current, state.label(None), version.label(None))
        return select(*asked, self._given).where(*self._key(move.key, None))

    def _add(self, write: AddTo) -> Any:
        columns = {self._columns[column]: number for column, number in write.add.items()}
        changes = {column: column + number for column, number in columns.items()}
        known = [column.is_not(None) for column in columns]
        return update(self._given).where(*self._key(write.key, None), *known).values(changes).returning(self._given)

    def _key(self, key: Mapping[str, Any], dialect: str | None) -> list[ColumnElement[bool]]:
        """By the column's own type where it is given: an index may have rounded or cut what it stores."""
        return [
            self._columns[column] == _stored(self._columns[column], value, dialect) for column, value in key.items()
        ]

    def _conditions(self, among: Mapping[str, Any]) -> list[ColumnElement[bool]]:
        return [
            column.is_(None) if value is None else column == literal(value, column.type, literal_execute=True)
            for column, value in ((self._columns[name], value) for name, value in among.items())
        ]


def _stored(column: Any, value: Any, dialect: str | None) -> Any:
    """A value as the column stores it. Only Postgres has types that change it: precisions, and lengths."""
    bound = literal(value, column.type)
    return cast(bound, column.type) if dialect == "postgresql" else bound


def _same(column: Any, value: Any, dialect: str) -> Any:
    if dialect == "postgresql" and (form := _comparable(column.type)) is not None:
        return cast(column, form).is_not_distinct_from(cast(literal(value, column.type), form))
    return column.is_not_distinct_from(_stored(column, value, dialect))


def _comparable(kind: Any) -> Any:
    """The type to compare a type's values in that has no equality, as JSON and what is made of it; None: its own."""
    match kind:
        case postgresql.JSONB():
            return None
        case JSON():
            return postgresql.JSONB
        case ARRAY() if (form := _comparable(kind.item_type)) is not None:
            return postgresql.ARRAY(form)
        case postgresql.DOMAIN():
            return _comparable(kind.data_type)
        case TypeDecorator():
            return _comparable(kind.impl_instance)
        case _:
            return None


def _read(given: object) -> tuple[Mapper[Any] | None, Table, Mapping[str, Any]]:
    """The mapper, if it is a mapped class, the table, and its columns by the names that its user has for them."""
    if isinstance(given, Table):
        return None, given, {column.key: column for column in given.columns}
    mapper = inspect(given, raiseerr=False) if isinstance(given, type) else None
    if not isinstance(mapper, Mapper):
        raise ProgrammerError(
            f"table {given!r:.80} is neither the name of a table, nor a Table, nor a mapped class of SQLAlchemy"
        )
    table = mapper.local_table
    if len(mapper.tables) != 1 or not isinstance(table, Table):
        names = ", ".join(sorted(str(table) for table in mapper.tables))
        raise ProgrammerError(
            f"{mapper.class_.__name__} is mapped to several tables ({names}): write to one Table of them"
        )
    columns = ((attribute.key, attribute.columns[0]) for attribute in mapper.column_attrs)
    return mapper, table, {key: column for key, column in columns if isinstance(getattr(column, "table", None), Table)}
