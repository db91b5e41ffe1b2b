"""SQLAlchemy, for threads and for asyncio, over Postgres and SQLite.

The verbs are written once, on `sqlalchemy.Connection`; asyncio runs them through `run_sync`. Transactions begin and
end through SQLAlchemy, so that what it believes and what the database knows agree. The application's engine goes on as
before: what a connection of ours needs (a level of isolation, BEGIN IMMEDIATE) is undone when it is given back.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from onefold._kernel.extras import missing_extra

try:
    from sqlalchemy import Connection, Engine, exc
except ModuleNotFoundError as error:
    raise missing_extra(error, "sqlalchemy") from None
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import greenlet_spawn

from onefold._kernel.effects import BatchItem, Flow, HandlerStatement, NamedRows, Row, Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.foreign_cancellations import cancellations, check_lost
from onefold._kernel.runners import run
from onefold.db._left_running import PAUSE_S, TIMES, is_end
from onefold.db._postgres_session import FIND_TABLES, Place
from onefold.db._shielded import Shielded
from onefold.db.sqlalchemy._connection import SqlalchemyConnection
from onefold.db.sqlalchemy._engine_events import watch
from onefold.db.sqlalchemy._errors import connect_error
from onefold.db.sqlalchemy._foreign_commits import Guard, guard_engine
from onefold.db.sqlalchemy._pools import PoolOfLoop, PoolOfProcess
from onefold.db.sqlalchemy._sessions import Factory, SqlalchemySessions, tx_of
from onefold.db.sqlalchemy._sqlite import OverSqlite
from onefold.db.sqlite._locks import lock_file
from onefold.db.sqlite._version import check_version
from onefold.errors import ConfigurationError, OnefoldError

__all__ = ["AsyncSqlalchemyDatabase", "SqlalchemyDatabase", "tx_of"]

T = TypeVar("T")

_log = logging.getLogger("onefold.database")

#: How long a request waits until a connection that it throws away is closed.
_CLOSED_S = 10.0

#: How long closing waits for connections that are on their way back to the pool.
_RETURNS_S_MAX = 10.0

_DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}


class SqlalchemyDatabase:
    """The application's engine."""

    def __init__(self, engine: Engine) -> None:
        if engine.dialect.is_async:
            raise ConfigurationError(
                f"the engine's driver {engine.dialect.driver} works on asyncio; pass the AsyncEngine to AsyncOnefold"
            )
        self.dialect = _dialect(engine)
        #: The file of an SQLite database; of another one it means nothing.
        self.path = _file(engine)
        self._engine = engine
        self._place = Place()
        self._pool = PoolOfProcess(engine)
        watch(engine)

    def sessions(self, factory: Factory | None) -> SqlalchemySessions:
        """The application's sessions, by its factory where it gave one."""
        return SqlalchemySessions(self._engine, factory)

    def guard(self, operation: Guard) -> None:
        """Refuse writes past the transaction of a request: see `_foreign_commits`."""
        guard_engine(self._engine, operation)

    def acquire(self) -> SqlalchemyConnection:
        self._pool.check()
        return _connect(self._engine, self._place)

    def close(self) -> None:
        """The engine is the application's; what we have opened beside its file is closed."""
        _close_lock_file(self._engine)


class AsyncSqlalchemyDatabase:
    """`SqlalchemyDatabase` for asyncio, over an `engine` of the application's own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.dialect = _dialect(engine.sync_engine)
        #: The file of an SQLite database; of another one it means nothing.
        self.path = _file(engine.sync_engine)
        self._engine = engine
        self._place = Place()
        self._pool = PoolOfLoop(engine.sync_engine)
        watch(engine.sync_engine)
        self._shielded = Shielded()
        self._in_greenlet = _InGreenlet(engine.sync_engine, self.dialect, self._place)

    def sessions(self, factory: Factory | None) -> SqlalchemySessions:
        """The application's sessions, by its factory where it gave one."""
        return SqlalchemySessions(self._engine, factory)

    def guard(self, operation: Guard) -> None:
        """Refuse writes past the transaction of a request: see `_foreign_commits`."""
        guard_engine(self._engine.sync_engine, operation)

    async def acquire(self) -> AsyncSqlalchemyConnection:
        self._pool.check()
        # Many releases of SQLAlchemy, cancelled half-way, lose the connection they were about to hand out.
        return await self._shielded.run(self._take(), on_abandoned=AsyncSqlalchemyConnection.release)

    async def _take(self) -> AsyncSqlalchemyConnection:
        try:
            connection = await self._engine.connect().start()
            verbs = await connection.run_sync(_prepare, self._place)
            return AsyncSqlalchemyConnection(connection, verbs, self._shielded)
        except (exc.SQLAlchemyError, OSError) as error:
            raise connect_error(error) from error

    async def run_whole(self, flow: Flow[T]) -> T:
        """Run a flow in one greenlet, from its Acquire to its Release. Effect by effect each would have one of its own,
        and taking and giving back a task each. Cancelled, it goes on to its end."""
        self._pool.check()
        return await self._shielded.run(greenlet_spawn(run, flow, ThreadExecutor(self._in_greenlet)))

    async def close(self) -> None:
        """The engine is the application's; what is still on its way back to it is waited for."""
        self._pool.check()  # a later dispose() cannot close what another loop has left
        await self._shielded.finish(_RETURNS_S_MAX)
        _close_lock_file(self._engine.sync_engine)


class _InGreenlet:
    """The engine, for flows that run in a greenlet."""

    def __init__(self, engine: Engine, dialect: str, place: Place) -> None:
        self.dialect = dialect
        self._engine = engine
        self._place = place

    def acquire(self) -> SqlalchemyConnection:
        return _connect(self._engine, self._place)

    def close(self) -> None:
        """The engine is the application's."""


class AsyncSqlalchemyConnection:
    """`SqlalchemyConnection` for asyncio."""

    __slots__ = ("_connection", "_shielded", "_verbs")

    def __init__(self, connection: AsyncConnection, verbs: SqlalchemyConnection, shielded: Shielded) -> None:
        self._connection = connection
        self._verbs = verbs
        self._shielded = shielded

    @property
    def handle(self) -> AsyncConnection:
        self._verbs.hand_out()
        return self._connection

    async def batch(self, items: Sequence[BatchItem]) -> int:
        if self._verbs.handed and is_end(items):
            await self._end_handler(items)
        return await self._run(lambda _: self._verbs.batch(items))

    async def fetch(self, statement: Statement) -> list[Row]:
        return await self._run(lambda _: self._verbs.fetch(statement))

    async def _run(self, work: Callable[[Connection], T]) -> T:
        before = cancellations()
        try:
            return await self._connection.run_sync(work)
        except OnefoldError as error:
            check_lost(before, error)
            raise

    async def query(self, statement: HandlerStatement) -> NamedRows:
        self._verbs.hand_out()
        return await self._run(lambda _: self._verbs.query(statement))

    async def release(self) -> None:
        self._verbs.handed_out.end()
        if not await self._verbs.handed_out.wait_async(0.0):
            await self.discard()
            return
        await self._shielded.run(self._connection.run_sync(lambda _: self._verbs.release()))

    async def _end_handler(self, items: Sequence[BatchItem]) -> None:
        handed_out = self._verbs.handed_out
        handed_out.end()
        handed_out.check_left(await handed_out.wait_async(handed_out.patience_s), items)

    async def discard(self) -> None:
        """Tasks of the handler's are made to leave first. Where one does not, no request waits for that."""
        self._verbs.handed_out.end()
        try:
            async with asyncio.timeout(_CLOSED_S):
                await self._shielded.run(self._discard())
        except TimeoutError:
            _log.warning(
                "SQLAlchemy: a connection could not be closed within %g s after its request's end, because something "
                "that a handler left behind is still executing on it; it, and what it has locked, is free when that "
                "returns",
                _CLOSED_S,
            )

    async def _discard(self) -> None:
        for _ in range(TIMES):
            if await self._verbs.handed_out.wait_async(0.0):
                break
            with suppress(Exception):  # closed, or given up, by the task itself
                await self._connection.run_sync(lambda _: self._verbs.wake())
            await self._verbs.handed_out.wait_async(PAUSE_S)
        await self._connection.run_sync(lambda _: self._verbs.throw_away())


def _connect(engine: Engine, place: Place) -> SqlalchemyConnection:
    try:
        return _prepare(engine.connect(), place)
    except (exc.SQLAlchemyError, OSError) as error:
        raise connect_error(error) from error


def _prepare(connection: Connection, place: Place) -> SqlalchemyConnection:
    try:
        if connection.dialect.name == "sqlite":
            return OverSqlite(connection)
        verbs = SqlalchemyConnection(connection, place.schema)
        if place.schema is None:
            verbs.schema = place.read(verbs.fetch(FIND_TABLES))
        return verbs
    except BaseException:
        connection.invalidate()  # it is no longer as it came, and the pool would give it to the application
        connection.close()
        raise


def _close_lock_file(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        lock_file(os.path.realpath(_file(engine))).rest()


def _file(engine: Engine) -> str:
    """The file of an SQLite engine, as the database itself names it."""
    name = engine.url.database or ""
    is_uri = str(engine.url.query.get("uri", "")).lower() in (
        "true",
        "yes",
        "on",
        "y",
        "t",
        "1",
    )  # as SQLAlchemy reads it
    return unquote(urlsplit(name).path) if is_uri and name.startswith("file:") else name


def _dialect(engine: Engine) -> str:
    name = engine.dialect.name
    if name not in _DIALECTS:
        raise ConfigurationError(f"the engine's dialect is {name}; onefold works over {' and '.join(_DIALECTS)}")
    if name == "sqlite":
        check_version(engine.dialect.dbapi)
        file = engine.url.database
        if not file or ":memory:" in file or "mode=memory" in str(engine.url):
            raise ConfigurationError(
                "the engine's SQLite database exists in memory only, where connections do not see each other, or are "
                "one (StaticPool); name a file: sqlite:///file.db, in tests one in a temporary directory"
            )
    if isinstance(engine.pool, StaticPool):
        raise ConfigurationError(
            "the engine's StaticPool has one connection and gives it to all requests at once, which would end each "
            "other's transactions; leave poolclass out, or give QueuePool (on asyncio AsyncAdaptedQueuePool) or "
            "NullPool"
        )
    return _DIALECTS[name]
