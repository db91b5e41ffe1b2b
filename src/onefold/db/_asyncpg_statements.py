"""Statements that are executed by themselves, the handler's and ours, where asyncpg's private names may be used.

asyncpg goes through eight functions to a statement that it has prepared already. Here it is asked for the statement,
and the protocol to execute it, which spares a good part of what a natural write adds. Whatever is not like that goes
asyncpg's own way: a statement that is new to the connection, one outside of a transaction (which asyncpg may execute
again), and everything where the application listens to what is executed, by a query logger, a class of its own or a
wrapper around asyncpg's functions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from types import FunctionType
from typing import Any, Final

import asyncpg
import asyncpg.connection

from onefold._kernel.effects import HandlerStatement, NamedRows, Row, Statement
from onefold.db._asyncpg_public import VENDOR_ERRORS, AsyncpgQueries
from onefold.db._postgres_text import qualify_tables


def _as_written(function: Any) -> Any:
    """The function of asyncpg, if it is that. A wrapper may show its attributes as its own."""
    is_own = type(function) is FunctionType and function.__code__.co_filename == asyncpg.connection.__file__
    return function if is_own else None


_RECORD: Final = asyncpg.Record
_FETCH: Final = _as_written(vars(asyncpg.Connection)["fetch"])
_EXECUTE: Final = _as_written(vars(asyncpg.Connection)["_execute"])


class AsyncpgStatements(AsyncpgQueries):
    """The verbs of a FastConnection that execute one statement."""

    __slots__ = ()

    async def query(self: Any, statement: HandlerStatement) -> NamedRows:
        connection, sent = self._connection, None
        if self._proxy._con is connection:  # else the handler has given it back: asyncpg refuses
            sent = _execute_known(connection, statement.sql, statement.values, False)
        if sent is None:
            return await super().query(statement)
        self._pure = False
        try:
            records = await sent
        except VENDOR_ERRORS as error:
            raise self._translate_error(error) from error
        if not records:
            return NamedRows((), [])
        return tuple.__new__(NamedRows, (tuple(records[0].keys()), list(map(tuple, records))))

    async def fetch(self: Any, statement: Statement) -> list[Row]:
        sql = qualify_tables(statement.sql, self.schema)
        try:
            return list(map(tuple, await self._execute_ours(sql, statement.values)))
        except VENDOR_ERRORS as error:
            raise self._translate_error(error) from error

    def _execute_ours(self: Any, query: str, values: Sequence[Any], *, status: bool = False) -> Awaitable[Any]:
        """Read and write values as asyncpg does by default, whatever codecs the application has set on its connections:
        what those make of a bool, an int or bytes is not what our flows can read."""
        connection = self._connection
        connection._check_open()
        self._sent = connection._protocol.queries_count + 1
        known = None if status else _execute_known(connection, query, values, True)
        if known is not None:
            return known
        sent: Awaitable[Any] = connection._execute(
            query, values, 0, None, return_status=status, record_class=asyncpg.Record, ignore_custom_codec=True
        )
        return sent


def _execute_known(connection: Any, sql: str, values: Sequence[Any], ours: bool) -> Awaitable[Any] | None:
    """Have a statement executed that asyncpg has prepared, past the application's codecs where it is one of ours. None:
    asyncpg's own way is to be gone."""
    kind, protocol = connection.__class__, connection._protocol
    if kind._execute is not _EXECUTE or kind.fetch is not _FETCH or connection._query_loggers:
        return None
    known = connection._stmt_cache.get((sql, _RECORD, ours))
    if known is None or not protocol.is_in_transaction():
        return None
    sent: Awaitable[Any] = protocol.bind_execute(known, values, "", 0, False, None)
    return sent


def forget_outdated(connection: Any, error: BaseException) -> None:
    """Have asyncpg forget what it knows of types and statements, where an error says that they are others now."""
    if isinstance(error, asyncpg.OutdatedSchemaCacheError):
        connection._drop_global_type_cache()
    if isinstance(error, asyncpg.OutdatedSchemaCacheError | asyncpg.InvalidCachedStatementError):
        connection._drop_global_statement_cache()
