"""psycopg 3, for threads and for asyncio: a pool of the application's, or one of our own.

The ways to use it are two. `_psycopg_public` is right for every version. `_psycopg_fast` needs fewer round trips and
less CPU, by psycopg's private names, and is taken for the versions that it was tested with.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from types import ModuleType
from typing import Any

from onefold._kernel.extras import missing_extra

try:
    import psycopg
except ModuleNotFoundError as error:
    raise missing_extra(error, "psycopg") from None
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from onefold._kernel.executors import runs_a_loop
from onefold._kernel.foreign_cancellations import cancellations, check_lost
from onefold._kernel.fork_and_loop import PerLoop, Process, watch_forks
from onefold.db._opened_elsewhere import Connections, elsewhere, fork_error
from onefold.db._postgres_session import Place, check_dsn, connect_error, none_free
from onefold.db._psycopg_pools import give_back, give_back_async
from onefold.db._psycopg_public import (
    VENDOR_ERRORS,
    AnyConnection,
    AsyncPsycopgConnection,
    PsycopgConnection,
    end_session,
)
from onefold.errors import ConfigurationError, OnefoldError

__all__ = ["AsyncPsycopgDatabase", "PsycopgDatabase"]

#: How many connections a pool of our own may hold; who needs another number passes a pool.
_POOL_MAX = 10

#: A pool that cannot connect waits longer after each try, up to this. Its default of minutes would keep requests
#: failing long after the server is back.
_RECONNECT_S = 1.0


class PsycopgDatabase:
    """A `pool` of psycopg connections: the application's own, or one opened from a DSN on first use. A connection is
    waited for at most `acquire_timeout_s`."""

    dialect = "postgres"

    def __init__(self, pool: ConnectionPool[Any] | str, *, acquire_timeout_s: float = 10.0) -> None:
        self._dsn = _check_dsn(pool) if isinstance(pool, str) else None
        self._pool = None if isinstance(pool, str) else pool
        self._opening = threading.Lock()
        self._process = Process(known=False)
        self._fast = _fast()
        #: Whether the pool was open when this process was forked: psycopg has no public name for it.
        self._was_open = False
        watch_forks(self)
        self._acquire_timeout_s = acquire_timeout_s
        self._place = Place()

    def acquire(self) -> PsycopgConnection:
        deadline = time.monotonic() + self._acquire_timeout_s
        self._process.renew(self._replace_inherited)
        try:
            pool = self._pool or self._open_pool()
            while _is_gone(connection := pool.getconn(timeout=max(0.0, deadline - time.monotonic()))):
                end_session(connection)
                give_back(pool, connection)
        except VENDOR_ERRORS as error:
            raise _connect_error(error, self._acquire_timeout_s) from error
        kind: type[PsycopgConnection] = PsycopgConnection if self._fast is None else self._fast.FastConnection
        taken = kind(pool, connection, self._place.schema)
        taken.begin(self._place)
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
        if pool is not None and not pool.closed and self._is_inherited(pool):
            if self._dsn is None:
                raise fork_error("psycopg pool")
            self._process.keep(pool)
            self._pool, self._was_open = None, False

    def note_fork(self) -> None:
        """Called in a process that was forked."""
        self._was_open = self._pool is not None and not self._pool.closed

    def _is_inherited(self, pool: ConnectionPool[Any]) -> bool:
        return self._was_open or (self._fast is not None and bool(self._fast.is_inherited(pool)))

    def _open_pool(self) -> ConnectionPool[Any]:
        with self._opening:
            if self._pool is None:
                assert self._dsn is not None
                # A pool keeps its failures to its log; this raises at once what is wrong.
                psycopg.connect(self._dsn, connect_timeout=math.ceil(self._acquire_timeout_s)).close()
                pool = ConnectionPool(
                    self._dsn, min_size=0, max_size=_POOL_MAX, reconnect_timeout=_RECONNECT_S, open=False
                )
                pool.open()
                self._pool = pool
            return self._pool


class AsyncPsycopgDatabase:
    """`PsycopgDatabase` for asyncio: its `pool` and `acquire_timeout_s` are as there."""

    dialect = "postgres"

    def __init__(self, pool: AsyncConnectionPool[Any] | str, *, acquire_timeout_s: float = 10.0) -> None:
        self._dsn = _check_dsn(pool) if isinstance(pool, str) else None
        self._pool = None if isinstance(pool, str) else pool
        self._opened = PerLoop(_Opened, _Opened.drop)
        self._fast = _fast()
        #: Where the application's pool is used. psycopg has no public name for the loop that it was opened on.
        self._loop = asyncio.get_running_loop() if runs_a_loop() else None
        #: Whether it was open when this process was forked.
        self._was_open = False
        watch_forks(self)
        self._acquire_timeout_s = acquire_timeout_s
        self._place = Place()

    async def acquire(self) -> AsyncPsycopgConnection:
        deadline, before = time.monotonic() + self._acquire_timeout_s, cancellations()
        try:
            opened = self._opened.here()
            pool = opened.pool or await self._open(opened)
            while _is_gone(connection := await pool.getconn(timeout=max(0.0, deadline - time.monotonic()))):
                end_session(connection)
                await give_back_async(pool, connection)
        except VENDOR_ERRORS as error:
            raise _connect_error(error, self._acquire_timeout_s) from error
        try:
            check_lost(before)
        except asyncio.CancelledError:
            await give_back_async(pool, connection)
            raise
        kind: type[AsyncPsycopgConnection]
        kind = AsyncPsycopgConnection if self._fast is None else self._fast.AsyncFastConnection
        taken = kind(pool, connection, self._place.schema)
        await taken.begin(self._place)
        return taken

    async def close(self) -> None:
        for opened in self._opened.take() if self._dsn is not None else ():
            if opened.pool is not None:
                await opened.pool.close()

    async def _open(self, opened: _Opened) -> AsyncConnectionPool[Any]:
        async with opened.opening:
            if self._pool is not None:
                self._check_loop(self._pool)
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
                    self._dsn,
                    min_size=0,
                    max_size=_POOL_MAX,
                    reconnect_timeout=_RECONNECT_S,
                    configure=opened.ours.note,
                    open=False,
                )
                await pool.open()
                opened.pool = pool
            return opened.pool

    def note_fork(self) -> None:
        """Called in a process that was forked."""
        self._was_open = self._pool is not None and not self._pool.closed

    def _check_loop(self, pool: AsyncConnectionPool[Any]) -> None:
        here = asyncio.get_running_loop()
        if self._fast is not None:
            self._loop = self._fast.loop_of(pool)
        self._loop = self._loop or here
        if self._was_open or self._loop is not here:
            raise elsewhere("psycopg pool")


class _Opened:
    """What is opened on one event loop."""

    __slots__ = ("opening", "ours", "pool")

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.ours = Connections()
        self.pool: AsyncConnectionPool[Any] | None = None

    def drop(self) -> None:
        """The loop is closed, and with it all tasks of a pool of our own are gone."""
        self.ours.drop()


def _is_gone(connection: AnyConnection) -> bool:
    """Whether the server closed an idle connection: seen from what it sent last, without asking it."""
    try:
        connection.pgconn.consume_input()  # a message that the server sent before it closed
        connection.pgconn.consume_input()  # the end of the stream
    except psycopg.OperationalError:
        return True
    return connection.closed


def _check_dsn(dsn: str) -> str:
    if "://" in dsn:
        check_dsn(dsn)
    try:
        conninfo_to_dict(dsn)
    except psycopg.Error:
        # Not chained: libpq quotes what it could not read, which may be a password.
        raise ConfigurationError(
            "libpq cannot read the Postgres DSN; it is written postgresql://user:password@host:port/database"
        ) from None
    return dsn


def _connect_error(error: BaseException, timeout_s: float) -> OnefoldError:
    return none_free(timeout_s) if isinstance(error, PoolTimeout) else connect_error(error)


def _fast() -> ModuleType | None:
    try:
        from onefold.db import _psycopg_fast
    except (ImportError, AttributeError):  # not even the modules are where they were
        return None
    return _psycopg_fast if _psycopg_fast.may_be_used() else None
