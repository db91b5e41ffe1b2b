"""psycopg 3, for threads and for asyncio: each batch is one simple query, as with asyncpg.

A simple query takes several statements at once; the last one's result is the batch's answer. It is sent without a
cursor, which would cost more than the statements do. A connection is in autocommit
mode while it is out, so that the only BEGIN is ours, and goes back to its pool as it came.

The underscored names are psycopg's own; our tests fail when they change.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import generators
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold.db.postgres import (
    checked_dsn,
    error_for,
    none_free,
    not_connected,
    refused,
    rendered,
    script,
)
from onefold.errors import ConfigurationError, OnefoldError

Handle: TypeAlias = psycopg.Connection[Any]
AsyncHandle: TypeAlias = psycopg.AsyncConnection[Any]

_VENDOR_ERRORS = (psycopg.Error, OSError, UnicodeError)

#: How many connections a pool of our own may hold; who needs another number passes a pool.
_POOL_MAX = 10

#: A pool that cannot connect waits longer after each try, up to this. Its default of minutes would keep requests
#: failing long after the server is back.
_RECONNECT_S = 1.0


class PsycopgDatabase:
    """A pool of psycopg connections: the application's own, or one opened from a DSN on first use."""

    dialect = "postgres"

    def __init__(self, pool: ConnectionPool[Any] | str, *, acquire_timeout_s: float = 10.0) -> None:
        self._dsn = _checked(pool) if isinstance(pool, str) else None
        self._pool = None if isinstance(pool, str) else pool
        self._opening = threading.Lock()
        self._acquire_timeout_s = acquire_timeout_s

    def acquire(self) -> PsycopgConnection:
        deadline = time.monotonic() + self._acquire_timeout_s
        try:
            pool = self._pool or self._opened()
            while _is_gone(connection := pool.getconn(timeout=max(0.0, deadline - time.monotonic()))):
                connection.close()
                pool.putconn(connection)
        except _VENDOR_ERRORS as error:
            raise _not_connected(error, self._acquire_timeout_s) from error
        return PsycopgConnection(pool, connection, _set_autocommit(connection, True))

    def close(self) -> None:
        if self._dsn is not None and self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()

    def _opened(self) -> ConnectionPool[Any]:
        with self._opening:
            if self._pool is None:
                assert self._dsn is not None
                # A pool keeps its failures to its log; this tells at once what is wrong.
                psycopg.connect(self._dsn, connect_timeout=math.ceil(self._acquire_timeout_s)).close()
                pool = ConnectionPool(
                    self._dsn, min_size=0, max_size=_POOL_MAX, reconnect_timeout=_RECONNECT_S, open=False
                )
                pool.open()
                self._pool = pool
            return self._pool


class PsycopgConnection:
    """One connection of the pool."""

    __slots__ = ("_connection", "_pool", "_was_autocommit")

    def __init__(self, pool: ConnectionPool[Any], connection: Handle, was_autocommit: bool) -> None:
        self._pool = pool
        self._connection = connection
        self._was_autocommit = was_autocommit

    @property
    def handle(self) -> Handle:
        return self._connection

    def batch(self, steps: Sequence[Step]) -> int:
        connection = self._connection
        try:
            with connection.lock:
                return connection.wait(_batch(connection, steps))
        except _VENDOR_ERRORS as error:
            raise _mapped(connection, error) from error

    def fetch(self, statement: Statement) -> list[Row]:
        try:
            with psycopg.RawCursor(self._connection, row_factory=tuple_row) as cursor:
                return cursor.execute(statement.sql.encode(), statement.values).fetchall()
        except _VENDOR_ERRORS as error:
            raise _mapped(self._connection, error) from error

    def release(self) -> None:
        if _is_idle(self._connection):
            _set_autocommit(self._connection, self._was_autocommit)
            self._pool.putconn(self._connection)
        else:  # in a transaction, or lost
            self.discard()

    def discard(self) -> None:
        try:
            self._connection.close()
        finally:
            self._pool.putconn(self._connection)


class AsyncPsycopgDatabase:
    """The same, for asyncio."""

    dialect = "postgres"

    def __init__(self, pool: AsyncConnectionPool[Any] | str, *, acquire_timeout_s: float = 10.0) -> None:
        self._dsn = _checked(pool) if isinstance(pool, str) else None
        self._pool = None if isinstance(pool, str) else pool
        self._opening = asyncio.Lock()
        self._acquire_timeout_s = acquire_timeout_s

    async def acquire(self) -> AsyncPsycopgConnection:
        deadline = time.monotonic() + self._acquire_timeout_s
        try:
            pool = self._pool or await self._opened()
            while _is_gone(connection := await pool.getconn(timeout=max(0.0, deadline - time.monotonic()))):
                await connection.close()
                await pool.putconn(connection)
        except _VENDOR_ERRORS as error:
            raise _not_connected(error, self._acquire_timeout_s) from error
        return AsyncPsycopgConnection(pool, connection, _set_autocommit(connection, True))

    async def close(self) -> None:
        if self._dsn is not None and self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    async def _opened(self) -> AsyncConnectionPool[Any]:
        async with self._opening:
            if self._pool is None:
                assert self._dsn is not None
                probe = await psycopg.AsyncConnection.connect(
                    self._dsn, connect_timeout=math.ceil(self._acquire_timeout_s)
                )
                await probe.close()
                pool = AsyncConnectionPool(
                    self._dsn, min_size=0, max_size=_POOL_MAX, reconnect_timeout=_RECONNECT_S, open=False
                )
                await pool.open()
                self._pool = pool
            return self._pool


class AsyncPsycopgConnection:
    """The same, for asyncio."""

    __slots__ = ("_connection", "_pool", "_was_autocommit")

    def __init__(self, pool: AsyncConnectionPool[Any], connection: AsyncHandle, was_autocommit: bool) -> None:
        self._pool = pool
        self._connection = connection
        self._was_autocommit = was_autocommit

    @property
    def handle(self) -> AsyncHandle:
        return self._connection

    async def batch(self, steps: Sequence[Step]) -> int:
        connection = self._connection
        try:
            async with connection.lock:
                return await connection.wait(_batch(connection, steps))
        except _VENDOR_ERRORS as error:
            raise _mapped(connection, error) from error

    async def fetch(self, statement: Statement) -> list[Row]:
        try:
            async with psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
                await cursor.execute(statement.sql.encode(), statement.values)
                return await cursor.fetchall()
        except _VENDOR_ERRORS as error:
            raise _mapped(self._connection, error) from error

    async def release(self) -> None:
        if _is_idle(self._connection):
            _set_autocommit(self._connection, self._was_autocommit)
            await self._pool.putconn(self._connection)
        else:  # in a transaction, or lost
            await self.discard()

    async def discard(self) -> None:
        try:
            await self._connection.close()
        finally:
            await self._pool.putconn(self._connection)


# --- what both colours share ---------------------------------------------------------------------------------

_AnyConnection: TypeAlias = Handle | AsyncHandle
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_UNDOES = frozenset({Boundary.ROLLBACK, Boundary.ROLLBACK_TO_SAVEPOINT})


def _batch(connection: _AnyConnection, steps: Sequence[Step]) -> Generator[Any, Any, int]:
    """Send the steps as one query. `wait` drives it, on a thread or on asyncio."""
    if connection._pipeline is not None:
        raise psycopg.ProgrammingError("the handler has left the connection in pipeline mode")
    pgconn, encoding = connection.pgconn, connection.info.encoding
    pgconn.send_query(script(map(rendered, steps)).encode(encoding))
    try:
        last = (yield from generators.execute(pgconn))[-1]
    finally:
        if not _UNDOES.isdisjoint(steps):
            connection._prepared.clear()  # as psycopg does: what was prepared may rest on what is gone
    if last.status not in _DONE:
        raise psycopg.errors.error_from_result(last, encoding=encoding)
    return last.command_tuples or 0


def _set_autocommit(connection: _AnyConnection, value: bool) -> bool:
    """What it was. The connection is idle, so there is nothing to ask the server, nor to wait for a lock for."""
    before = connection.autocommit
    connection._autocommit = value
    return before


def _is_idle(connection: _AnyConnection) -> bool:
    return connection.info.transaction_status is TransactionStatus.IDLE


def _is_gone(connection: _AnyConnection) -> bool:
    """Whether the server closed an idle connection: seen from what it sent last, without asking it."""
    try:
        connection.pgconn.consume_input()  # its last words, if any
        connection.pgconn.consume_input()  # the end of the stream
    except psycopg.OperationalError:
        return True
    return connection.closed


def _checked(dsn: str) -> str:
    if "://" in dsn:
        checked_dsn(dsn)
    try:
        conninfo_to_dict(dsn)
    except psycopg.Error:
        # Not chained: libpq quotes what it could not read, which may be a password.
        raise ConfigurationError(
            "libpq cannot read the Postgres DSN; it is written postgresql://user:password@host:port/database"
        ) from None
    return dsn


def _not_connected(error: BaseException, timeout_s: float) -> OnefoldError:
    return none_free(timeout_s) if isinstance(error, PoolTimeout) else not_connected(error)


def _mapped(connection: _AnyConnection, error: BaseException) -> OnefoldError:
    sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
    if sqlstate is None and not connection.closed:
        return refused(error)  # psycopg itself would not send it
    return error_for(sqlstate, error)
