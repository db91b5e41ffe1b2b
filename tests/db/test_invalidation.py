"""SQLite connections that SQLAlchemy throws away while someone still holds a cursor."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase, SqlalchemyDatabase
from tests.support.crash import Boundaries, Suspensions, cancel_task, strikes

STATEMENTS = {
    "rows": "SELECT * FROM thing",
    "a write": "INSERT INTO thing VALUES (-1)",
    "a refused write": "INSERT INTO thing VALUES (1)",
    "a write with rows": "INSERT INTO thing VALUES (-1), (-2) RETURNING id",
}


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    """What a cycle of garbage keeps stays: with the collector, a leak shows only now and then."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def stranger(sqlite_path: Path) -> Iterator[sqlite3.Connection]:
    """Someone else, who does not wait. Outside WAL, where a reader too keeps others from committing."""
    with closing(sqlite3.connect(sqlite_path, timeout=0)) as stranger:
        stranger.execute("CREATE TABLE thing (id INTEGER PRIMARY KEY)")
        stranger.executemany("INSERT INTO thing VALUES (?)", [(number,) for number in range(1000)])
        stranger.commit()
        yield stranger


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("streamed", [False, True], ids=["", "after a stream"])
async def test_a_handler_cancelled_wherever_it_waits_leaves_no_lock(
    statement: str, streamed: bool, sqlite_path: Path, stranger: sqlite3.Connection
) -> None:
    async def handler(handle: AsyncConnection) -> None:
        if streamed:
            rows = await handle.stream(text("SELECT * FROM thing"))
            await rows.fetchone()
        await handle.execute(text(STATEMENTS[statement]))

    async def counted(handle: AsyncConnection, boundaries: Boundaries) -> None:
        await Suspensions(handler(handle), boundaries)

    engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
    database = AsyncSqlalchemyDatabase(engine)
    await engine.dispose()  # an application may, and has another pool then
    for strike in strikes(cancel_task):
        connection = await database.acquire()
        request = asyncio.create_task(counted(connection.handle, Boundaries(strike, edges=("suspended",))))
        await asyncio.gather(request, return_exceptions=True)
        await connection.discard()
        stranger.execute("UPDATE thing SET id = id")
        stranger.commit()
    await engine.dispose()


def test_a_connection_thrown_away_with_rows_to_read_leaves_no_lock(
    sqlite_path: Path, stranger: sqlite3.Connection
) -> None:
    engine = create_engine(f"sqlite:///{sqlite_path}")
    connection = SqlalchemyDatabase(engine).acquire()
    rows = connection.handle.execute(text("INSERT INTO thing VALUES (-1), (-2) RETURNING id"))
    connection.discard()
    stranger.execute("UPDATE thing SET id = id")
    stranger.commit()
    del rows  # held until here
    engine.dispose()


def test_the_applications_own_connections_are_thrown_away_as_ever(
    sqlite_path: Path, stranger: sqlite3.Connection
) -> None:
    engine = create_engine(f"sqlite:///{sqlite_path}", pool_size=1, max_overflow=0)
    connection = SqlalchemyDatabase(engine).acquire()
    connection.handle.execute(text("SELECT 1"))
    connection.release()
    rolled_back: list[str] = []
    with engine.connect() as own:
        own.execute(text("INSERT INTO thing VALUES (-1)"))
        driver = own.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(rolled_back.append)
        own.invalidate()
    assert rolled_back == []
    engine.dispose()
