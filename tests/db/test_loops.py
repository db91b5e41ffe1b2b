"""A database for asyncio that is made from an address or an engine serves one event loop after another."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from onefold._kernel.effects import Boundary, Statement
from onefold._kernel.ports import AsyncDatabase
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase
from onefold.db.sqlite import async_sqlite
from onefold.errors import ConfigurationError

#: More than any of these pools has connections: some have to wait.
CROWD = 80

#: Not sqlite3's, whose lock would make them wait for each other all the time.
LOOK = Statement("SELECT 1")


def engine_for(driver: str, address: str) -> AsyncEngine:
    rest = address.partition("://")[2]
    url = f"postgresql+{driver}://{rest}" if rest else f"sqlite+{driver}:///{address}"
    return create_async_engine(url, poolclass=AsyncAdaptedQueuePool, pool_size=2, max_overflow=0)


POSTGRES: dict[str, Callable[[str], Any]] = {
    "asyncpg": AsyncpgDatabase,
    "psycopg": AsyncPsycopgDatabase,
    "sqlalchemy-asyncpg": lambda address: AsyncSqlalchemyDatabase(engine_for("asyncpg", address)),
    "sqlalchemy-psycopg": lambda address: AsyncSqlalchemyDatabase(engine_for("psycopg", address)),
}
SQLITE: dict[str, Callable[[str], Any]] = {
    "sqlite3": async_sqlite,
    "sqlalchemy-aiosqlite": lambda address: AsyncSqlalchemyDatabase(engine_for("aiosqlite", address)),
}


async def look(database: AsyncDatabase[Any]) -> None:
    connection = await database.acquire()
    await connection.batch((Boundary.BEGIN,)) if database.dialect == "postgres" else None
    assert await connection.fetch(LOOK) == [(1,)]
    await connection.batch((Boundary.ROLLBACK,))
    await connection.release()


async def crowd(database: AsyncDatabase[Any]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(CROWD):
            group.create_task(look(database))


@pytest.fixture(params=[*POSTGRES, *SQLITE])
def database(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncDatabase[Any]:
    name = request.param
    if name in SQLITE:
        made: AsyncDatabase[Any] = SQLITE[name](str(sqlite_path))
    else:
        made = POSTGRES[name](request.getfixturevalue("postgres_dsn"))
    return made


async def end(database: AsyncDatabase[Any]) -> None:
    await database.close()
    if isinstance(database, AsyncSqlalchemyDatabase):
        await database._engine.dispose()


def test_one_loop_after_another(database: AsyncDatabase[Any]) -> None:
    for _ in range(3):
        asyncio.run(crowd(database))
    asyncio.run(end(database))
    gc.collect()  # what was left unclosed says so now


def test_two_loops_side_by_side(database: AsyncDatabase[Any]) -> None:
    """Each has connections of its own; the end of one does not touch the other's. An engine has one pool for all."""
    if isinstance(database, AsyncSqlalchemyDatabase):
        pytest.skip("SQLAlchemy's pool serves one loop at a time")
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(crowd(database))
    second.run_until_complete(crowd(database))
    first.run_until_complete(crowd(database))
    second.run_until_complete(crowd(database))
    first.run_until_complete(end(database))
    second.run_until_complete(end(database))
    first.close()
    second.close()


Make = Callable[[str], Coroutine[Any, Any, AsyncDatabase[Any]]]


async def over_asyncpg(dsn: str) -> AsyncDatabase[Any]:
    return AsyncpgDatabase(await asyncpg.create_pool(dsn, min_size=0))


async def over_psycopg(dsn: str) -> AsyncDatabase[Any]:
    pool = AsyncConnectionPool(dsn, min_size=0, max_size=2, open=False)
    await pool.open()
    return AsyncPsycopgDatabase(pool)


@pytest.mark.parametrize("make", [over_asyncpg, over_psycopg])
def test_a_pool_of_another_loop_is_refused_with_the_way_out(make: Make, postgres_dsn: str) -> None:
    loop = asyncio.new_event_loop()
    database = loop.run_until_complete(make(postgres_dsn))
    loop.run_until_complete(look(database))
    with pytest.raises(ConfigurationError, match=r"another event loop.*address"):
        asyncio.run(look(database))
    pool: Any = getattr(database, "_pool")  # noqa: B009
    loop.run_until_complete(pool.close())
    loop.close()
