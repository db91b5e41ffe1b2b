"""SQLAlchemy, for threads and for asyncio, over Postgres and SQLite.

The verbs are written once, on `sqlalchemy.Connection`; asyncio runs them through `run_sync`. Transactions begin and
end through SQLAlchemy, so that what it believes and what the database knows agree. The application's engine stays as
it is: what a connection of ours needs (READ COMMITTED, BEGIN IMMEDIATE) is set when it is taken and undone when it is
given back.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Engine, RootTransaction, TextClause, event, exc, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold.db import invalidation, sqlite
from onefold.db.errands import Errands
from onefold.db.postgres import BOUNDARIES, error_for, refused
from onefold.errors import (
    ConfigurationError,
    ConnectionLost,
    OnefoldError,
    StoreUnavailable,
    TransactionEnded,
    TransactionMisused,
)

#: How long closing waits for connections that are on their way back to the pool.
_RETURNS_S_MAX = 10.0

_DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite"}

_PLACEHOLDER = re.compile(r"[$?](\d+)")

#: What text() would take for a parameter of its own.
_COLON = re.compile(r"(?<![:\w\\]):(?=\w)")

_ENDED = "the request's transaction was ended by someone else: a rollback(), a close(), or a COMMIT written as SQL"


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
        invalidation.watch(engine)

    def acquire(self) -> SqlalchemyConnection:
        try:
            return _taken(self._engine.connect())
        except (exc.SQLAlchemyError, OSError) as error:
            raise _not_connected(error) from error

    def close(self) -> None:
        """Nothing: the engine is the application's."""


class AsyncSqlalchemyDatabase:
    """The same, for asyncio."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.dialect = _dialect(engine.sync_engine)
        self._engine = engine
        invalidation.watch(engine.sync_engine)
        self._errands = Errands()

    async def acquire(self) -> AsyncSqlalchemyConnection:
        # Many releases of SQLAlchemy, cancelled half-way, lose the connection they were about to hand out.
        return await self._errands.run(self._take(), unheard=AsyncSqlalchemyConnection.release)

    async def _take(self) -> AsyncSqlalchemyConnection:
        try:
            connection = await self._engine.connect().start()
            return AsyncSqlalchemyConnection(connection, await connection.run_sync(_taken), self._errands)
        except (exc.SQLAlchemyError, OSError) as error:
            raise _not_connected(error) from error

    async def close(self) -> None:
        """The engine is the application's; what is still on its way back to it is waited for."""
        await self._errands.finish(_RETURNS_S_MAX)


class SqlalchemyConnection:
    """One connection of the engine: what is common, and Postgres. `_OverSqlite` states its difference."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._begun: RootTransaction | None = None
        self._our_turn = False
        event.listen(connection, "commit", self._refuse_commit)
        with self._turn():
            self._set_up()

    @property
    def handle(self) -> Connection:
        return self._connection

    def batch(self, steps: Sequence[Step]) -> int:
        with self._turn():
            self._check(undone=steps[0] is Boundary.ROLLBACK)
            count = 0
            for step in steps:
                count = self._execute(step) if isinstance(step, Statement) else self._cross(step)
            self._rest(keep=True)
            return count

    def fetch(self, statement: Statement) -> list[Row]:
        with self._turn():
            self._check()
            result = self._connection.execute(_text(statement.sql), _named(statement))
            rows = [tuple(row) for row in result]
            self._rest(keep=False)
            return rows

    def release(self) -> None:
        try:
            with self._turn():
                self._rollback()
                self._restore()
        finally:
            self._connection.close()

    def discard(self) -> None:
        if not self._connection.closed:
            self._connection.invalidate()
        self._connection.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Our turn: as long as it lasts, transactions may end. What the vendors raise is mapped."""
        vendor_error = self._connection.dialect.loaded_dbapi.Error
        self._our_turn = True
        try:
            yield
        except (exc.SQLAlchemyError, vendor_error, OSError, OverflowError, UnicodeError) as error:
            with suppress(exc.SQLAlchemyError, vendor_error, OSError):
                self._rest(keep=False)
            raise _mapped(self._connection, error) from error
        finally:
            self._our_turn = False

    def _refuse_commit(self, connection: Connection) -> None:
        if not self._our_turn:
            raise TransactionMisused(
                "the handler tried to commit the request's transaction; onefold commits it together with the key and "
                "the response: remove the call (begin_nested() and onefold's session are allowed)"
            )

    def _check(self, *, undone: bool = False) -> None:
        """What became of the transaction in the handler's hands? It does not matter if it is undone now."""
        if self._connection.invalidated or (undone and self._connection.closed):
            raise ConnectionLost("the connection was lost; what it had not committed is rolled back")
        if self._begun is None or undone:
            return
        if self._connection.get_transaction() is not self._begun or not self._begun.is_active:
            raise TransactionEnded(_ENDED)

    def _execute(self, statement: Statement) -> int:
        result = self._connection.execute(_text(statement.sql), _named(statement))
        return len(result.fetchall()) if result.returns_rows else max(result.rowcount, 0)

    def _cross(self, boundary: Boundary) -> int:
        match boundary:
            case Boundary.BEGIN | Boundary.BEGIN_LIGHT:
                self._begin()
            case Boundary.COMMIT:
                self._commit()
            case Boundary.ROLLBACK:
                self._rollback()
            case Boundary.SAVEPOINT | Boundary.ROLLBACK_TO_SAVEPOINT | Boundary.RELEASE_SAVEPOINT:
                self._savepoint(boundary)
        return 0

    def _begin(self) -> None:
        if self._begun is None:
            self._connection.rollback()
            self._begun = self._connection.begin()

    def _commit(self) -> None:
        self._connection.commit()
        self._begun = None

    def _rollback(self) -> None:
        # After a failed commit SQLAlchemy holds its transaction for over and would send nothing: so ask the driver.
        self._connection.connection.rollback()
        self._connection.rollback()
        self._begun = None

    def _savepoint(self, boundary: Boundary) -> None:
        if self._begun is None:
            raise TransactionEnded(f"{boundary.value} outside a transaction")
        self._connection.exec_driver_sql(BOUNDARIES[boundary])

    def _set_up(self) -> None:
        # Whatever the engine's default, also AUTOCOMMIT: SQLAlchemy restores it when the connection goes back.
        self._connection.execution_options(isolation_level="READ COMMITTED")

    def _rest(self, *, keep: bool) -> None:
        """The end of our turn. What was done outside a transaction is over: nothing of ours stays open."""
        if self._begun is None and self._connection.in_transaction():
            if keep:
                self._connection.commit()
            else:
                self._connection.rollback()

    def _restore(self) -> None:
        pass


class _OverSqlite(SqlalchemyConnection):
    """The same over SQLite, where a transaction must take the write lock with its first statement.

    Left to themselves, sqlite3 and SQLAlchemy begin late or not at all. So SQLAlchemy's transaction always stands
    open while the connection is out, which costs nothing, and BEGIN IMMEDIATE is sent before the first statement that
    belongs in one: any statement of the handler, and ours between BEGIN and COMMIT. Our plain looks take no lock.
    """

    def __init__(self, connection: Connection) -> None:
        self._wanted = False
        self._writing = False
        super().__init__(connection)

    def _set_up(self) -> None:
        driver = self._driver
        if getattr(driver, "autocommit", -1) != -1:
            raise ConfigurationError(
                "the engine opens sqlite3 connections with autocommit=...; leave it out: onefold begins its own "
                "transactions (sqlite3's default, LEGACY_TRANSACTION_CONTROL)"
            )
        self._isolation_level = driver.isolation_level
        driver.isolation_level = None  # sqlite3 shall not begin by itself
        event.listen(self._connection, "before_cursor_execute", self._before_statement)
        self._rest(keep=False)

    @property
    def _driver(self) -> Any:
        return self._connection.connection.dbapi_connection

    @property
    def _in_transaction(self) -> bool:
        driver: Any = self._connection.connection.driver_connection
        return bool(driver.in_transaction)

    def _before_statement(self, connection: Connection, cursor: Any, *_: object) -> None:
        invalidation.note(connection, cursor)
        if self._writing:
            if not self._in_transaction:
                raise TransactionEnded(_ENDED)
        elif self._wanted or not self._our_turn:
            if self._in_transaction:
                cursor.execute("ROLLBACK")  # a plain BEGIN, from a listener of the application's
            cursor.execute("BEGIN IMMEDIATE")
            self._writing = True

    def _check(self, *, undone: bool = False) -> None:
        super()._check(undone=undone)
        if self._writing and not undone and not self._in_transaction:
            raise TransactionEnded(_ENDED)

    def _begin(self) -> None:
        self._wanted = True

    def _commit(self) -> None:
        super()._commit()
        self._wanted = self._writing = False
        self._rest(keep=False)

    def _rollback(self) -> None:
        super()._rollback()
        self._wanted = self._writing = False
        self._rest(keep=False)

    def _savepoint(self, boundary: Boundary) -> None:
        if boundary is Boundary.SAVEPOINT:
            self._begin()  # the handler's first touch may be a savepoint
        super()._savepoint(boundary)

    def _rest(self, *, keep: bool) -> None:
        if not self._wanted and not self._writing and self._in_transaction:
            self._begun = None
            super()._rest(keep=keep)
        if self._begun is None:
            self._begun = self._connection.begin()

    def _restore(self) -> None:
        self._connection.rollback()
        self._driver.isolation_level = self._isolation_level
        invalidation.forget(self._connection)


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
    kind = _OverSqlite if connection.dialect.name == "sqlite" else SqlalchemyConnection
    try:
        return kind(connection)
    except BaseException:
        connection.close()
        raise


def _dialect(engine: Engine) -> str:
    name = engine.dialect.name
    if name not in _DIALECTS:
        raise ConfigurationError(f"the engine's dialect is {name}; onefold works over {' and '.join(_DIALECTS)}")
    file = engine.url.database
    if name == "sqlite" and (not file or ":memory:" in file or "mode=memory" in str(engine.url)):
        raise ConfigurationError(
            "the engine's SQLite database exists in memory only, where connections do not see each other; "
            "name a file: sqlite:///file.db"
        )
    return _DIALECTS[name]


@lru_cache(maxsize=1000)
def _text(sql: str) -> TextClause:
    # In brackets, because text() leaves `:p1::bigint` alone: no parameter, it thinks, where a colon follows.
    return text(_PLACEHOLDER.sub(r"(:p\1)", _COLON.sub(r"\\:", sql)))


def _named(statement: Statement) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(statement.values, start=1)}


def _not_connected(error: BaseException) -> OnefoldError:
    if isinstance(error, exc.TimeoutError):
        return StoreUnavailable(f"no connection of the engine's pool became free in time: {error}")
    return StoreUnavailable(f"no connection to the database: {getattr(error, 'orig', None) or error}")


def _mapped(connection: Connection, error: BaseException) -> OnefoldError:
    """Our error for SQLAlchemy's, or for one of the driver below it."""
    origin = error.orig if isinstance(error, exc.DBAPIError) and error.orig else error
    match error:
        case exc.DBAPIError(connection_invalidated=True):
            return ConnectionLost(f"the connection was lost: {origin}")
        case exc.ResourceClosedError() | exc.PendingRollbackError():
            if connection.invalidated:
                return ConnectionLost(f"the connection was lost: {error}")
            return TransactionEnded(f"{_ENDED} ({error})")
        case _:
            pass
    if connection.dialect.name == "sqlite":
        return sqlite.error_for(origin if isinstance(origin, sqlite3.Error) else Exception(str(origin)))
    sqlstate = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)
    if sqlstate is None and not isinstance(error, OSError):
        return refused(origin)
    return error_for(sqlstate, origin)
