"""SQLAlchemy, for threads and for asyncio, over Postgres and SQLite.

The verbs are written once, on `sqlalchemy.Connection`; asyncio runs them through `run_sync`. Transactions begin and
end through SQLAlchemy, so that what it believes and what the database knows agree. The application's engine goes on as
before: what a connection of ours needs (READ COMMITTED, BEGIN IMMEDIATE) is set when it is taken and undone when it is
given back.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Engine, exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from onefold._kernel.effects import Row, Statement, Step
from onefold.db.errands import Errands
from onefold.db.sqlalchemy.errors import not_connected
from onefold.db.sqlalchemy.over_sqlite import OverSqlite
from onefold.db.sqlalchemy.verbs import SqlalchemyConnection
from onefold.db.sqlalchemy.watching import watch
from onefold.db.sqlite.version import check_version
from onefold.errors import ConfigurationError

#: How long closing waits for connections that are on their way back to the pool.
_RETURNS_S_MAX = 10.0

_DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}


def join_session(connection: Connection) -> Session:
    """A Session inside the request's transaction: its `commit()` and `rollback()` act on a savepoint."""
    return Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)


def join_async_session(connection: AsyncConnection) -> AsyncSession:
    """The same, for asyncio."""
    return AsyncSession(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)


class SqlalchemyDatabase:
    """The application's engine."""

    def __init__(self, engine: Engine) -> None:
        if engine.dialect.is_async:
            raise ConfigurationError(
                f"the engine's driver {engine.dialect.driver} works on asyncio; pass the AsyncEngine to AsyncOnefold"
            )
        self.dialect = _dialect(engine)
        self._engine = engine
        watch(engine)

    def acquire(self) -> SqlalchemyConnection:
        try:
            return _taken(self._engine.connect())
        except (exc.SQLAlchemyError, OSError) as error:
            raise not_connected(error) from error

    def close(self) -> None:
        """Nothing: the engine is the application's."""


class AsyncSqlalchemyDatabase:
    """The same, for asyncio."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.dialect = _dialect(engine.sync_engine)
        self._engine = engine
        watch(engine.sync_engine)
        self._errands = Errands()

    async def acquire(self) -> AsyncSqlalchemyConnection:
        # Many releases of SQLAlchemy, cancelled half-way, lose the connection they were about to hand out.
        return await self._errands.run(self._take(), unheard=AsyncSqlalchemyConnection.release)

    async def _take(self) -> AsyncSqlalchemyConnection:
        try:
            connection = await self._engine.connect().start()
            return AsyncSqlalchemyConnection(connection, await connection.run_sync(_taken), self._errands)
        except (exc.SQLAlchemyError, OSError) as error:
            raise not_connected(error) from error

    async def close(self) -> None:
        """The engine is the application's; what is still on its way back to it is waited for."""
        await self._errands.finish(_RETURNS_S_MAX)


class AsyncSqlalchemyConnection:
    """The same, for asyncio."""

    __slots__ = ("_connection", "_errands", "_verbs")

    def __init__(self, connection: AsyncConnection, verbs: SqlalchemyConnection, errands: Errands) -> None:
        self._connection = connection
        self._verbs = verbs
        self._errands = errands

    @property
    def handle(self) -> AsyncConnection:
        return self._connection

    async def batch(self, steps: Sequence[Step]) -> int:
        return await self._connection.run_sync(lambda _: self._verbs.batch(steps))

    async def fetch(self, statement: Statement) -> list[Row]:
        return await self._connection.run_sync(lambda _: self._verbs.fetch(statement))

    async def release(self) -> None:
        await self._errands.run(self._connection.run_sync(lambda _: self._verbs.release()))

    async def discard(self) -> None:
        await self._errands.run(self._connection.run_sync(lambda _: self._verbs.discard()))


def _taken(connection: Connection) -> SqlalchemyConnection:
    kind = OverSqlite if connection.dialect.name == "sqlite" else SqlalchemyConnection
    try:
        return kind(connection)
    except BaseException:
        connection.close()
        raise


def _dialect(engine: Engine) -> str:
    name = engine.dialect.name
    if name not in _DIALECTS:
        raise ConfigurationError(f"the engine's dialect is {name}; onefold works over {' and '.join(_DIALECTS)}")
    if name == "sqlite":
        check_version(engine.dialect.dbapi)
        file = engine.url.database
        if not file or ":memory:" in file or "mode=memory" in str(engine.url):
            raise ConfigurationError(
                "the engine's SQLite database exists in memory only, where connections do not see each other; "
                "name a file: sqlite:///file.db"
            )
    return _DIALECTS[name]
