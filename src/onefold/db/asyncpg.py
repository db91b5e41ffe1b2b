"""asyncpg: each batch is one simple query, so claim and settle cost one round trip each.

asyncpg cannot pipeline, and a multi-statement simple query answers with the last command's tag only; that tag
carries a row count, which is what a batch promises. Statements are prepared with SQL PREPARE once per
connection, because parsing them again each time costs more than running them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

import asyncpg

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold.db.postgres import checked_dsn, error_for, none_free, not_connected, refused
from onefold.db.prepared import NOT_AS_PREPARED, Preparer, unprepared
from onefold.db.turns import Pool, Turns
from onefold.errors import ConfigurationError, OnefoldError

Handle: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_VENDOR_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

#: How asyncpg's reset of a session begins: the part of it that is cheaper when it is prepared.
_UNLOCK = Statement("SELECT pg_advisory_unlock_all()")
_NO_RESET: tuple[tuple[Statement, ...], str] = (), ""

#: How often a connection passes from one request to the next before the pool gets it back.
PASSES_MAX = 32


class AsyncpgDatabase:
    """A pool of asyncpg connections: the application's own, or one opened from a DSN on first use."""

    dialect = "postgres"

    def __init__(self, pool: Pool | str, *, acquire_timeout_s: float = 10.0, close_timeout_s: float = 10.0) -> None:
        self._dsn = checked_dsn(pool) if isinstance(pool, str) else None
        self._pool = None if isinstance(pool, str) else pool
        self._turns: Turns | None = None
        self._opening = asyncio.Lock()
        self._acquire_timeout_s = acquire_timeout_s
        self._close_timeout_s = close_timeout_s
        #: What is known of each of the pool's connections, by id.
        self._sessions: dict[int, _Session] = {}
        self.preparer = Preparer()
        self.prepares = True

    async def acquire(self) -> AsyncpgConnection:
        try:
            turns = self._turns or await self._opened()
            proxy: Any = turns.at_hand() or await turns.take()
        except asyncpg.exceptions.ClientConfigurationError:
            # Not chained: asyncpg quotes what it could not read, which may be a password.
            raise ConfigurationError("asyncpg cannot read the Postgres DSN") from None
        except TimeoutError as error:
            raise none_free(self._acquire_timeout_s) from error
        except _VENDOR_ERRORS as error:
            raise not_connected(error) from error
        connection = proxy._con  # the pooled connection itself: the proxy is new each time
        session = self._sessions.get(id(connection))
        if session is None or session.connection() is not connection:
            gone = partial(self._forget, id(connection))
            session = self._sessions[id(connection)] = _Session(connection, gone, turns.pool)
        return AsyncpgConnection(self, turns, proxy, session)

    def _forget(self, number: int, gone: ref[Any]) -> None:
        session = self._sessions.get(number)
        if session is not None and session.connection is gone:
            del self._sessions[number]

    async def close(self) -> None:
        if self._dsn is not None and self._turns is not None:
            turns, self._turns = self._turns, None
            with suppress(TimeoutError):  # whoever is still at work then is cut off
                await asyncio.wait_for(turns.pool.close(), self._close_timeout_s)

    async def _opened(self) -> Turns:
        async with self._opening:  # a pool refuses to be opened by two tasks at once
            if self._turns is None:
                pool = asyncpg.create_pool(self._dsn, min_size=0) if self._pool is None else self._pool
                _ = await pool
                self._turns = Turns(pool, patience_s=self._acquire_timeout_s)
            return self._turns


class _Session:
    """What outlives a request on a connection of the pool."""

    __slots__ = ("connection", "passed", "prepared", "prepares", "reset", "resets_as_usual")

    def __init__(self, connection: Any, gone: Callable[[ref[Any]], None], pool: Any) -> None:
        self.connection = ref(connection, gone)  # an id may be used again, a reference tells
        #: A pool set up for PgBouncer has no statement cache, and SQL PREPARE would not survive there either.
        self.prepares = connection._stmt_cache.get_max_size() > 0
        self.prepared: set[str] = set()
        #: How often it went from request to request without the pool.
        self.passed = 0
        #: A pool or a connection class with hooks of its own keeps them.
        usual = type(connection).get_reset_query is asyncpg.Connection.get_reset_query
        self.resets_as_usual = usual and getattr(pool, "_reset", None) is None and getattr(pool, "_setup", None) is None
        reset: str = connection.get_reset_query() if self.resets_as_usual else ""
        rest = reset.removeprefix(_UNLOCK.sql)
        #: The reset, which the pool would send in a round trip of its own: statements, and the text that follows them.
        self.reset: tuple[tuple[Statement, ...], str] = ((), reset) if rest == reset else ((_UNLOCK,), rest)


class _BegunByBatch:
    """What asyncpg is told about the transaction that our batch began, so that the handler's own
    `connection.transaction()` becomes a savepoint instead of an InterfaceError."""

    _isolation = "read_committed"
    _managed = True


class AsyncpgConnection:
    """One connection of the pool."""

    __slots__ = ("_broken", "_connection", "_database", "_proxy", "_pure", "_session", "_turns")

    def __init__(self, database: AsyncpgDatabase, turns: Turns, proxy: Any, session: _Session) -> None:
        self._database = database
        self._turns = turns
        self._proxy = proxy
        # The proxy forgets its connection as soon as that is lost.
        self._connection = proxy._con
        self._session = session
        self._broken = False
        #: Whether the session is as the pool expects it back. Our own statements leave nothing behind.
        self._pure = True

    @property
    def handle(self) -> Handle:
        self._pure = False
        connection = self._connection
        if connection._top_xact is None and self._in_transaction():
            connection._top_xact = _BegunByBatch
        handle: Handle = self._proxy
        return handle

    async def batch(self, steps: Sequence[Step]) -> int:
        connection, session, database = self._connection, self._session, self._database
        last = steps[-1]
        ends = last is Boundary.COMMIT or last is Boundary.ROLLBACK
        purifies = ends and not self._pure and session.resets_as_usual
        also, rest = session.reset if purifies else _NO_RESET
        new: Collection[str] = ()
        if database.prepares and session.prepares and not self._broken:
            query, new = database.preparer.query((*steps, *also), session.prepared)
        else:
            query = unprepared((*steps, *also))
        if rest:
            query = f"{query};{rest}"
        protocol = connection._protocol  # None once it is closed
        sent = 0 if protocol is None else protocol.queries_count + 1
        try:
            status: str = await connection.execute(query)
        except _VENDOR_ERRORS as error:
            if getattr(error, "sqlstate", None) in NOT_AS_PREPARED:
                database.prepares = False
            # Which of the new statements exist by now is unknown: prepare no more here, and do not reuse it.
            self._broken = self._broken or bool(new) or not database.prepares
            raise self._mapped(error) from error
        finally:
            if connection._top_xact is not None and (ends or not self._in_transaction()):
                connection._top_xact = None  # what we told asyncpg is over
        if new:
            session.prepared.update(new)
        if purifies:
            self._pure = True
        if ends and protocol is not None and protocol.queries_count != sent:
            # A task that the handler left behind was quicker than we are: it is at it now, in nobody's transaction.
            self._broken = True
        return 0 if isinstance(last, Boundary) else _row_count(status)

    async def fetch(self, statement: Statement) -> list[Row]:
        try:
            return [tuple(record) for record in await self._connection.fetch(statement.sql, *statement.values)]
        except _VENDOR_ERRORS as error:
            raise self._mapped(error) from error

    async def release(self) -> None:
        if self._broken or self._in_transaction():
            await self.discard()
            return
        session, turns, proxy = self._session, self._turns, self._proxy
        if self._pure and session.resets_as_usual and turns.may_keep(proxy):
            session.passed = (session.passed + 1) % PASSES_MAX
            if not (session.passed and turns.pass_on(proxy)) and turns.put_back(proxy):
                await asyncio.sleep(0)
            return
        try:
            await turns.pool.release(proxy, timeout=turns.patience_s)
        except _VENDOR_ERRORS as error:
            raise self._mapped(error) from error

    async def discard(self) -> None:
        connection, turns = self._connection, self._turns
        if not connection.is_closed() and connection._protocol._is_cancelling():
            # A statement was cancelled: let asyncpg tell the server so, which would otherwise finish it first, and keep
            # the request's locks as long.
            with suppress(*_VENDOR_ERRORS):  # it does not hear
                await connection._protocol._wait_for_cancellation(turns.patience_s)
        connection.terminate()
        with suppress(*_VENDOR_ERRORS):  # terminated: there may be nothing to give back
            await turns.pool.release(self._proxy)

    def _in_transaction(self) -> bool:
        return not self._connection.is_closed() and bool(self._connection.is_in_transaction())

    def _mapped(self, error: BaseException) -> OnefoldError:
        sqlstate = getattr(error, "sqlstate", None)
        if isinstance(error, asyncpg.InterfaceError) and not self._connection.is_closed():
            return refused(error)  # asyncpg itself would not send it
        return error_for(sqlstate, error)


def _row_count(status: str) -> int:
    count = status.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
