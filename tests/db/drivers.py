"""Every driver, opened for a test: its Subject for the conformance suite, in both colours."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeAlias

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from onefold._kernel.public_drivers import PUBLIC_ONLY
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase, SqlalchemyDatabase
from onefold.db.sqlite import AsyncSqlite, SqliteDatabase, async_sqlite
from onefold.testing.conformance import Subject

CONNECTIONS_MAX = 2

#: Opens a driver on an address (a DSN or a path), with so many seconds of patience for a free connection.
Open: TypeAlias = Callable[[str, float], AbstractContextManager[Subject]]
OpenAsync: TypeAlias = Callable[[str, float], AbstractAsyncContextManager[Subject]]


class Undo(Exception):
    """Raised in a nested transaction to make it roll back."""


# --- sqlite3 --------------------------------------------------------------------------------------------------


def _nested_in_sqlite(connection: sqlite3.Connection, sql: str, fails: bool) -> None:
    connection.execute("SAVEPOINT theirs")
    connection.execute(sql)
    if fails:
        connection.execute("ROLLBACK TO theirs")
    connection.execute("RELEASE theirs")


@contextmanager
def sqlite(address: str, patience_s: float) -> Iterator[Subject]:
    database = SqliteDatabase(address, busy_timeout_s=patience_s)
    yield Subject(
        database=database,
        execute=lambda handle, sql: handle.execute(sql),
        nested=_nested_in_sqlite,
        commit=lambda handle: handle.commit(),
    )
    database.close()


@asynccontextmanager
async def sqlite_async(address: str, patience_s: float) -> AsyncIterator[Subject]:
    def nested(handle: AsyncSqlite, sql: str, fails: bool) -> Awaitable[None]:
        return handle.run(lambda connection: _nested_in_sqlite(connection, sql, fails))

    database = async_sqlite(address, busy_timeout_s=patience_s)
    yield Subject(
        database=database,
        execute=lambda handle, sql: handle.execute(sql),
        nested=nested,
        commit=lambda handle: handle.run(sqlite3.Connection.commit),
    )
    await database.close()


# --- asyncpg --------------------------------------------------------------------------------------------------


@contextmanager
def public_only() -> Iterator[None]:
    """Databases that are made meanwhile use their drivers by their public API."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PUBLIC_ONLY, "1")
        yield


@asynccontextmanager
async def over_asyncpg(address: str, patience_s: float) -> AsyncIterator[Subject]:
    async def nested(handle: asyncpg.Connection[Any], sql: str, fails: bool) -> None:
        try:
            async with handle.transaction():
                await handle.execute(sql)
                if fails:
                    raise Undo
        except Undo:
            pass

    pool = asyncpg.create_pool(address, min_size=0, max_size=CONNECTIONS_MAX)
    yield Subject(
        database=AsyncpgDatabase(pool, acquire_timeout_s=patience_s),
        execute=lambda handle, sql: handle.execute(sql),
        nested=nested,
        commit=lambda handle: handle.execute("COMMIT"),
        connections_max=CONNECTIONS_MAX,
    )
    await pool.close()


# --- psycopg --------------------------------------------------------------------------------------------------


@contextmanager
def over_psycopg(address: str, patience_s: float) -> Iterator[Subject]:
    def nested(handle: psycopg.Connection[Any], sql: str, fails: bool) -> None:
        with handle.transaction(force_rollback=fails):
            handle.execute(sql.encode())

    with ConnectionPool(address, min_size=0, max_size=CONNECTIONS_MAX, open=True) as pool:
        yield Subject(
            database=PsycopgDatabase(pool, acquire_timeout_s=patience_s),
            execute=lambda handle, sql: handle.execute(sql),
            nested=nested,
            commit=lambda handle: handle.commit(),
            connections_max=CONNECTIONS_MAX,
        )


@asynccontextmanager
async def over_psycopg_async(address: str, patience_s: float) -> AsyncIterator[Subject]:
    async def nested(handle: psycopg.AsyncConnection[Any], sql: str, fails: bool) -> None:
        async with handle.transaction(force_rollback=fails):
            await handle.execute(sql.encode())

    async with AsyncConnectionPool(address, min_size=0, max_size=CONNECTIONS_MAX, open=False) as pool:
        yield Subject(
            database=AsyncPsycopgDatabase(pool, acquire_timeout_s=patience_s),
            execute=lambda handle, sql: handle.execute(sql),
            nested=nested,
            commit=lambda handle: handle.commit(),
            connections_max=CONNECTIONS_MAX,
        )


# --- SQLAlchemy -----------------------------------------------------------------------------------------------


def _url(driver: str, address: str) -> str:
    rest = address.partition("://")[2]
    return f"postgresql+{driver}://{rest}" if rest else f"sqlite+{driver}:///{address}"


def over_sqlalchemy(driver: str) -> Open:
    def nested(handle: sqlalchemy.Connection, sql: str, fails: bool) -> None:
        with handle.begin_nested() as transaction:
            handle.exec_driver_sql(sql)
            if fails:
                transaction.rollback()

    @contextmanager
    def opened(address: str, patience_s: float) -> Iterator[Subject]:
        engine = sqlalchemy.create_engine(
            _url(driver, address), pool_size=CONNECTIONS_MAX, max_overflow=0, pool_timeout=patience_s
        )
        yield Subject(
            database=SqlalchemyDatabase(engine),
            execute=lambda handle, sql: handle.exec_driver_sql(sql),
            nested=nested,
            commit=lambda handle: handle.commit(),
            connections_max=CONNECTIONS_MAX,
        )
        engine.dispose()

    return opened


def over_sqlalchemy_async(driver: str) -> OpenAsync:
    async def nested(handle: AsyncConnection, sql: str, fails: bool) -> None:
        async with handle.begin_nested() as transaction:
            await handle.exec_driver_sql(sql)
            if fails:
                await transaction.rollback()

    @asynccontextmanager
    async def opened(address: str, patience_s: float) -> AsyncIterator[Subject]:
        engine = create_async_engine(
            _url(driver, address),
            poolclass=AsyncAdaptedQueuePool,
            pool_size=CONNECTIONS_MAX,
            max_overflow=0,
            pool_timeout=patience_s,
        )
        database = AsyncSqlalchemyDatabase(engine)
        yield Subject(
            database=database,
            execute=lambda handle, sql: handle.exec_driver_sql(sql),
            nested=nested,
            commit=lambda handle: handle.commit(),
            connections_max=CONNECTIONS_MAX,
        )
        await database.close()
        await engine.dispose()

    return opened


def by_public_api(opened: Open) -> Open:
    """The same driver, by its public API."""

    @contextmanager
    def opened_so(address: str, patience_s: float) -> Iterator[Subject]:
        with ExitStack() as stack:
            with public_only():
                subject = stack.enter_context(opened(address, patience_s))
            yield subject

    return opened_so


def by_public_api_async(opened: OpenAsync) -> OpenAsync:
    @asynccontextmanager
    async def opened_so(address: str, patience_s: float) -> AsyncIterator[Subject]:
        async with AsyncExitStack() as stack:
            with public_only():
                subject = await stack.enter_async_context(opened(address, patience_s))
            yield subject

    return opened_so


SQLITE: dict[str, Open] = {"sqlite3": sqlite, "sqlalchemy-pysqlite": over_sqlalchemy("pysqlite")}
SQLITE_ASYNC: dict[str, OpenAsync] = {
    "sqlite3-async": sqlite_async,
    "sqlalchemy-aiosqlite": over_sqlalchemy_async("aiosqlite"),
}
POSTGRES: dict[str, Open] = {
    "psycopg": over_psycopg,
    "psycopg-public": by_public_api(over_psycopg),
    "sqlalchemy-psycopg": over_sqlalchemy("psycopg"),
}
POSTGRES_ASYNC: dict[str, OpenAsync] = {
    "asyncpg": over_asyncpg,
    "asyncpg-public": by_public_api_async(over_asyncpg),
    "psycopg-async": over_psycopg_async,
    "psycopg-async-public": by_public_api_async(over_psycopg_async),
    "sqlalchemy-psycopg-async": over_sqlalchemy_async("psycopg"),
    "sqlalchemy-asyncpg": over_sqlalchemy_async("asyncpg"),
}
