"""Writes to a Table or a mapped class, by SQLAlchemy: its types, defaults and `onupdate` hold as in any statement.

A Table is written on the transaction's connection, and its rows are dicts by the keys of its columns. A mapped class is
written in the transaction's session, by the names of its attributes, and its rows are instances: what the session has
loaded before is refreshed, and what it holds back is written first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Table, exc

from onefold._kernel.effects import Call
from onefold._kernel.table_writes import FindRow, FoundRow, HashKey, InsertUnlessThere, Write
from onefold._kernel.transaction import Transaction
from onefold.db.sqlalchemy._errors import translate_error
from onefold.db.sqlalchemy._table_statements import PreparedWrite, TableDefinition
from onefold.errors import ProgrammerError, RowDiffers, SchemaMissing, StatementRefused

_NO_KEY = ("42P10", "55000", "ON CONFLICT clause does not match")

#: Refreshed: what was changed elsewhere, or by this very statement, is not hidden by what was loaded before. The values
#: are parameters of this one statement, and not rows for many (`bulk`).
_IN_SESSION: Final = {"populate_existing": True, "synchronize_session": False, "dml_strategy": "orm"}

#: By the Table or the class.
_define = lru_cache(maxsize=256)(TableDefinition)


class SqlalchemyTable:
    """Implements `WritableTable`, for one call."""

    __slots__ = ("_asynchronous", "_blocking", "_table", "_tx")

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
        self._table = _define(given) if isinstance(given, Table | type) else TableDefinition(given)

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def plans(self) -> dict[Any, Any]:
        return self._table.plans

    def check_columns(self, columns: tuple[str, ...]) -> None:
        table = self._table
        if any(column not in table.columns for column in columns):
            table = self._table = TableDefinition(table.given)  # it may have been given more since
            _define.cache_clear()
        for column in columns:
            if column not in table.columns:
                known = ", ".join(sorted(table.columns))
                what = "attribute" if table.mapped is not None else "column"
                raise ProgrammerError(f"{self.name} has no {what} {column!r:.80}; it has {known}")

    def prepare(self, write: Write) -> PreparedWrite:
        return PreparedWrite(self._table, write)

    async def perform(self, prepared: PreparedWrite, values: tuple[Any, ...]) -> list[FoundRow]:
        try:
            found: list[FoundRow] = await Call(functools.partial(self._execute, prepared, values))
        except SchemaMissing as error:
            raise ProgrammerError(f"table {self.name}, or a column of it, is not there: {error.__cause__}") from error
        except StatementRefused as error:
            write = prepared.write
            if isinstance(write, InsertUnlessThere) and any(sign in str(error) for sign in _NO_KEY):
                raise ProgrammerError(
                    f"table {self.name} has no unique index on ({', '.join(write.on)}), so nothing keeps such a row "
                    f"single; for an index with a WHERE give `among`. It must not be deferrable ({error})"
                ) from error
            raise
        return found

    def _execute(self, prepared: PreparedWrite, values: tuple[Any, ...]) -> Any:
        """Where its connection, or its session, may be used; on asyncio to be awaited."""
        mapped = self._table.mapped
        execute = self._in_connection if mapped is None else self._in_session
        if self._asynchronous:
            place = self._tx.connection if mapped is None else self._tx.session()
            return place.run_sync(execute, prepared, values)
        # Where it may block: SQLite's write lock is waited for when the connection is taken.
        return self._blocking(
            lambda: execute(self._tx.connection if mapped is None else self._tx.session(), prepared, values)
        )

    def _in_connection(self, connection: Any, prepared: PreparedWrite, values: tuple[Any, ...]) -> list[FoundRow]:
        statement, parameters, answers = prepared.ready(values, connection.dialect.name)
        try:
            result = connection.execute(statement, parameters)
            keys = () if isinstance(prepared.write, HashKey) else self._table.keys
            return [(dict(zip(keys, row[answers:], strict=True)), tuple(row[:answers])) for row in result]
        except exc.SQLAlchemyError as error:
            raise translate_error(connection, error) from error

    def _check_class(self, connection: Any, prepared: PreparedWrite, look: FindRow, values: tuple[Any, ...]) -> None:
        """Raises RowDiffers where another class that shares the table has the key: that row is never found as one of
        this class, however often it is looked for."""
        query = prepared.find_other(values, connection.dialect.name)
        discriminator = self._table.discriminator
        if query is None or discriminator is None:
            return
        for (kind,) in connection.execute(query):
            if kind in discriminator.own:
                continue  # it came between the two looks
            key = {column: value for column, value in zip(look.columns, values, strict=True) if column in look.key}
            described = ", ".join(f"{column}={value!r:.80}" for column, value in key.items())
            error = RowDiffers(
                f"{self.name} has a row of another class under {described}: its {discriminator.attribute} is "
                f"{kind!r:.80}, not {discriminator.identity!r:.80}. Nothing was written: use the class that "
                "they share, or another key"
            )
            error.columns = (discriminator.attribute,)
            raise error

    def _in_session(self, session: Any, prepared: PreparedWrite, values: tuple[Any, ...]) -> list[FoundRow]:
        connection = session.connection(bind_arguments={"mapper": self._table.mapped})
        statement, parameters, answers = prepared.ready(values, connection.dialect.name)
        try:
            result = session.execute(statement, parameters, execution_options=_IN_SESSION)
            found = [(row[answers] if answers < len(row) else None, tuple(row[:answers])) for row in result]
            if not found and isinstance(prepared.write, FindRow) and not prepared.write.locked:
                self._check_class(connection, prepared, prepared.write, values)
            return found
        except exc.SQLAlchemyError as error:
            raise translate_error(connection, error) from error
