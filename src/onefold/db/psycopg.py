"""psycopg 3, for threads and for asyncio: each batch is one simple query, as with asyncpg.

A simple query takes several statements at once; the last one's result is the batch's answer. It is sent without a
cursor, which would cost more than the statements do. A connection is in autocommit mode while it is out, so that the
only BEGIN is ours, and goes back to its pool as it came.

The underscored names are psycopg's own; our tests fail when they change.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeAlias

from onefold._kernel.extras import missing_extra

try:
    import psycopg
except ModuleNotFoundError as error:
    raise missing_extra(error, "psycopg") from None
from psycopg import generators
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from onefold._kernel.effects import Boundary, Nested, Row, Statement, Step
from onefold.db._bound_batches import has_secrets
from onefold.db._fork_and_loop import PerLoop, Process, close_quietly, elsewhere, forked
from onefold.db._postgres import (
    FIND_TABLES,
    Place,
    as_ourselves,
    checked_dsn,
    error_for,
    none_free,
    not_connected,
    placed,
    refused,
    rendered,
    script,
)
from onefold.db._psycopg_cursors import AsyncOwnCursor, OwnCursor
from onefold.db._psycopg_handle import C, HandedOut, check_left, check_left_by_tasks, hang_up_tasks, unless_over
from onefold.db._psycopg_pipeline import DONE, begin_of, send_bound
from onefold.errors import ConfigurationError, OnefoldError

__all__ = ["AsyncPsycopgDatabase", "PsycopgDatabase"]
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
        self._process = Process(known=False)
        self._acquire_timeout_s = acquire_timeout_s
        self._place = Place()

    def acquire(self) -> PsycopgConnection:
        deadline = time.monotonic() + self._acquire_timeout_s
        self._process.renew(self._replace_inherited)
        try:
            pool = self._pool or self._opened()
            while _is_gone(connection := pool.getconn(timeout=max(0.0, deadline - time.monotonic()))):
                connection.close()
                pool.putconn(connection)
        except _VENDOR_ERRORS as error:
            raise _not_connected(error, self._acquire_timeout_s) from error
        taken = PsycopgConnection(pool, connection, _set_autocommit(connection, True), self._place.schema)
        if self._place.schema is None:
            taken.find_tables(self._place)
        return taken

    def close(self) -> None:
        if self._dsn is None:
            return
        self._process.renew(self._replace_inherited)
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()

    def _replace_inherited(self) -> None:
        pool, self._opening = self._pool, threading.Lock()  # a thread of the parent may have held that
        # The threads of a pool do not survive a fork, and the sockets it has opened are its parent's.
        if pool is not None and not pool.closed and not any(worker.is_alive() for worker in pool._workers):
            if self._dsn is None:
                raise forked("psycopg pool")
            self._process.keep(pool)
            self._pool = None

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


class _Taken(Generic[C]):
    """One connection of a pool, in either colour."""

    __slots__ = ("_connection", "_handed_out", "_pool", "_schema", "_was_autocommit")

    def __init__(self, pool: Any, connection: C, was_autocommit: bool, schema: str | None) -> None:
        self._pool = pool
        self._connection: C = connection
        self._was_autocommit = was_autocommit
        #: Where our tables are.
        self._schema = schema
        self._handed_out: HandedOut[C] | None = None

    @property
    def handle(self) -> C:
        if self._handed_out is None:
            self._handed_out = HandedOut(self._connection)
        return self._handed_out.handle

    @property
    def executed(self) -> bool:
        """Whether the handler has had anything executed."""
        return self._handed_out is not None and self._handed_out.executed


class PsycopgConnection(_Taken[Handle]):
    """One connection of the pool."""

    __slots__ = ()

    def batch(self, steps: Sequence[Step]) -> int:
        connection = self._connection
        check_left(self._handed_out, steps)
        try:
            with connection.lock:
                _check_mode(connection)
                if self._handed_out is not None:
                    steps = as_ourselves(steps)
                self._handed_out = unless_over(self._handed_out, steps)
                return connection.wait(_batch(connection, steps, self._schema))
        except _VENDOR_ERRORS as error:
            raise _mapped(connection, error) from error

    def fetch(self, statement: Statement) -> list[Row]:
        check_left(self._handed_out)
        try:
            with OwnCursor(self._connection) as cursor:
                return cursor.execute(placed(statement.sql, self._schema).encode(), statement.values).fetchall()
        except _VENDOR_ERRORS as error:
            raise _mapped(self._connection, error) from error

    def find_tables(self, place: Place) -> None:
        try:
            self._schema = place.read(self.fetch(FIND_TABLES))
        except OnefoldError as error:
            self.discard()
            raise not_connected(error) from error
        except BaseException:
            self.discard()
            raise

    def release(self) -> None:
        unless_over(self._handed_out)
        if _is_idle(self._connection):
            _set_autocommit(self._connection, self._was_autocommit)
            self._pool.putconn(self._connection)
        else:  # in a transaction, or lost
            self.discard()

    def discard(self) -> None:
        handed_out, self._handed_out = self._handed_out, None
        self._close() if handed_out is None else handed_out.close_when_left(self._close)

    def _close(self) -> None:
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
        self._opened = PerLoop(_Opened, _Opened.drop)
        self._acquire_timeout_s = acquire_timeout_s
        self._place = Place()

    async def acquire(self) -> AsyncPsycopgConnection:
        deadline = time.monotonic() + self._acquire_timeout_s
        try:
            opened = self._opened.here()
            pool = opened.pool or await self._open(opened)
            while _is_gone(connection := await pool.getconn(timeout=max(0.0, deadline - time.monotonic()))):
                await connection.close()
                await pool.putconn(connection)
        except _VENDOR_ERRORS as error:
            raise _not_connected(error, self._acquire_timeout_s) from error
        taken = AsyncPsycopgConnection(pool, connection, _set_autocommit(connection, True), self._place.schema)
        if self._place.schema is None:
            await taken.find_tables(self._place)
        return taken

    async def close(self) -> None:
        for opened in self._opened.take() if self._dsn is not None else ():
            if opened.pool is not None:
                await opened.pool.close()

    async def _open(self, opened: _Opened) -> AsyncConnectionPool[Any]:
        async with opened.opening:
            if self._pool is not None:
                # Its workers are tasks of the loop that it was opened on.
                loop = asyncio.get_running_loop()
                if any(worker.get_loop() is not loop for worker in self._pool._workers):
                    raise elsewhere("psycopg pool")
                if not self._pool.closed:
                    opened.pool = self._pool
                return self._pool
            if opened.pool is None:
                assert self._dsn is not None
                probe = await psycopg.AsyncConnection.connect(
                    self._dsn, connect_timeout=math.ceil(self._acquire_timeout_s)
                )
                await probe.close()
                pool = AsyncConnectionPool(
                    self._dsn, min_size=0, max_size=_POOL_MAX, reconnect_timeout=_RECONNECT_S, open=False
                )
                await pool.open()
                opened.pool = pool
            return opened.pool


class _Opened:
    """What is opened on one event loop."""

    __slots__ = ("opening", "pool")

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.pool: AsyncConnectionPool[Any] | None = None

    def drop(self) -> None:
        """The loop is closed, and with it all tasks of a pool of our own are gone."""
        for connection in () if self.pool is None else self.pool._pool:
            close_quietly(connection)


class AsyncPsycopgConnection(_Taken[AsyncHandle]):
    """The same, for asyncio."""

    __slots__ = ()

    async def batch(self, steps: Sequence[Step]) -> int:
        connection = self._connection
        await check_left_by_tasks(self._handed_out, steps)
        try:
            async with connection.lock:
                _check_mode(connection)
                if self._handed_out is not None:
                    steps = as_ourselves(steps)
                self._handed_out = unless_over(self._handed_out, steps)
                return await connection.wait(_batch(connection, steps, self._schema))
        except _VENDOR_ERRORS as error:
            raise _mapped(connection, error) from error

    async def fetch(self, statement: Statement) -> list[Row]:
        await check_left_by_tasks(self._handed_out)
        try:
            async with AsyncOwnCursor(self._connection) as cursor:
                await cursor.execute(placed(statement.sql, self._schema).encode(), statement.values)
                return await cursor.fetchall()
        except _VENDOR_ERRORS as error:
            raise _mapped(self._connection, error) from error

    async def find_tables(self, place: Place) -> None:
        try:
            self._schema = place.read(await self.fetch(FIND_TABLES))
        except OnefoldError as error:
            await self.discard()
            raise not_connected(error) from error
        except BaseException:
            await self.discard()
            raise

    async def release(self) -> None:
        self._handed_out = unless_over(self._handed_out)
        if _is_idle(self._connection):
            _set_autocommit(self._connection, self._was_autocommit)
            await self._pool.putconn(self._connection)
        else:  # in a transaction, or lost
            await self.discard()

    async def discard(self) -> None:
        try:
            await hang_up_tasks(self._handed_out)
            await self._connection.close()
        finally:
            await self._pool.putconn(self._connection)


# --- what both colours share ---------------------------------------------------------------------------------

_AnyConnection: TypeAlias = Handle | AsyncHandle
_UNDOES = frozenset({Boundary.ROLLBACK, Boundary.ROLLBACK_TO_SAVEPOINT})


def _check_mode(connection: _AnyConnection) -> None:
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise psycopg.ProgrammingError("the handler has left the connection in pipeline mode")


def _batch(connection: _AnyConnection, steps: Sequence[Step], schema: str | None) -> Generator[Any, Any, int]:
    """Send the steps in one round trip. `wait` drives it, on a thread or on asyncio."""
    pgconn, encoding = connection.pgconn, connection.info.encoding
    begin = begin_of(connection)
    try:
        if has_secrets(steps):
            last = yield from send_bound(pgconn, steps, begin, schema)
        else:
            texts = (begin if step is Boundary.BEGIN_AS_CHOSEN else rendered(step, schema) for step in steps)
            pgconn.send_query(script(texts).encode(encoding))
            last = (yield from generators.execute(pgconn))[-1]
    finally:
        if any((step.boundary if isinstance(step, Nested) else step) in _UNDOES for step in steps):
            connection._prepared.clear()  # as psycopg does: what was prepared may rest on what is gone
    if last.status not in DONE:
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
