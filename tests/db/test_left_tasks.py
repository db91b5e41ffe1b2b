"""A task that a handler has left behind is in the middle of a statement when the request ends: nobody waits for it
without limit, and nothing of it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from onefold._kernel.effects import Boundary, HandlerStatement, Statement
from onefold.db._left_running import hang_up
from onefold.db._psycopg_public import AsyncPsycopgConnection
from onefold.db.psycopg import AsyncPsycopgDatabase
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase
from onefold.errors import TransactionMisused
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

ENDLESS = {
    "asyncpg": "SELECT pg_sleep(3600)",
    "psycopg": "SELECT pg_sleep(3600)",
    "aiosqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
}


@asynccontextmanager
async def left(url: str, sql: str) -> AsyncIterator[tuple[Any, asyncio.Task[Any]]]:
    """A connection whose handler has left a task behind that executes for a long time, and that task."""
    engine = create_async_engine(url)
    database = AsyncSqlalchemyDatabase(engine)
    connection = await database.acquire()
    await connection.batch((Boundary.BEGIN,))
    handle = connection.handle
    await handle.execute(text("CREATE TABLE thing (id int)"))
    task = asyncio.create_task(handle.execute(text(sql)))
    await asyncio.sleep(0)
    assert not await connection._verbs.handed_out.wait_async(0.0), "it has not begun"
    yield connection, task
    await database.close()
    await engine.dispose()


@pytest.fixture(params=ENDLESS)
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> tuple[str, str]:
    if request.param == "aiosqlite":
        return f"sqlite+aiosqlite:///{sqlite_path}", ENDLESS[request.param]
    dsn = request.getfixturevalue("postgres_dsn").partition("://")[2]
    return f"postgresql+{request.param}://{dsn}", ENDLESS[request.param]


@pytest.mark.parametrize("end", [Boundary.COMMIT, Boundary.ROLLBACK])
async def test_the_end_of_a_transaction_waits_for_a_statement_only_so_long(
    end: Boundary, address: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("onefold.db.sqlalchemy._handle.END_S", 0.1)
    async with asyncio.timeout(PATIENCE_S), left(*address) as (connection, task):
        with pytest.raises(TransactionMisused, match="still uses"):
            await connection.batch((end,))
        assert caplog.text.count("still uses") == (end is Boundary.ROLLBACK), "a COMMIT's refusal is told as an error"
        await connection.discard()
        assert await asyncio.wait({task}, timeout=PATIENCE_S) == ({task}, set())
        assert task.exception() is not None


async def test_a_connection_that_is_given_back_waits_for_no_statement(address: tuple[str, str]) -> None:
    async with asyncio.timeout(PATIENCE_S), left(*address) as (connection, task):
        await connection.release()
        assert await asyncio.wait({task}, timeout=PATIENCE_S) == ({task}, set())
        assert task.exception() is not None


@pytest.fixture
async def over_psycopg(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncPsycopgConnection]:
    """A connection of psycopg's in the transaction of a request."""
    monkeypatch.setattr("onefold.db._psycopg_handle.END_S", 0.1)
    database = AsyncPsycopgDatabase(postgres_dsn)
    async with asyncio.timeout(PATIENCE_S):
        connection = await database.acquire()
        await connection.batch((Boundary.BEGIN, Boundary.SAVEPOINT))
        yield connection
        await database.close()


@pytest.mark.parametrize("proof", [Boundary.RELEASE_SAVEPOINT, Boundary.ROLLBACK_TO_SAVEPOINT, Statement("SELECT 1")])
async def test_psycopg_s_connection_is_void_from_the_handler_s_end_on(
    over_psycopg: AsyncPsycopgConnection, proof: Any
) -> None:
    handle = over_psycopg.handle
    await over_psycopg.batch((proof,))  # a request that fails: the rollback comes after it
    for sql in ("INSERT INTO thing VALUES (1)", "COMMIT"):
        with pytest.raises(TransactionMisused, match="is over"):
            await handle.execute(sql)
    await over_psycopg.batch((Boundary.ROLLBACK,))
    await over_psycopg.release()


async def test_a_natural_write_that_comes_late_is_in_no_transaction_of_psycopg_s(postgres_dsn: str) -> None:
    insert = HandlerStatement("INSERT INTO thing VALUES (1) RETURNING id")
    with psycopg.connect(postgres_dsn, autocommit=True) as outside:
        outside.execute("CREATE TABLE thing (id int)")
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1, open=False) as pool:
        database = AsyncPsycopgDatabase(pool)
        connection = await database.acquire()
        await connection.batch((Boundary.BEGIN,))
        await connection.query(HandlerStatement("SELECT 1"))
        await connection.batch((Boundary.COMMIT,))
        with pytest.raises(TransactionMisused, match="is over"):
            await connection.query(insert)
        await connection.release()
        following = await database.acquire()
        await following.batch((Boundary.BEGIN,))
        with pytest.raises(TransactionMisused, match="is over"):
            await connection.query(insert)
        await following.batch((Boundary.COMMIT,))
        await following.release()
        await database.close()
    with psycopg.connect(postgres_dsn) as outside:
        assert outside.execute("SELECT count(*) FROM thing").fetchall() == [(0,)]


async def test_a_request_that_fails_waits_for_a_statement_of_psycopg_s_only_so_long(
    over_psycopg: AsyncPsycopgConnection, caplog: pytest.LogCaptureFixture
) -> None:
    task = asyncio.create_task(over_psycopg.handle.execute(ENDLESS["psycopg"]))
    await asyncio.sleep(0)
    for step in (Boundary.RELEASE_SAVEPOINT, Boundary.ROLLBACK):
        with pytest.raises(TransactionMisused, match="still uses"):
            await over_psycopg.batch((step,))
    assert caplog.text.count("still uses") == caplog.text.count("0.1 s after the handler's end") == 1
    await over_psycopg.discard()
    assert task.done(), "its socket is another connection's by now"
    assert isinstance(task.exception(), (psycopg.OperationalError, TransactionMisused))


async def test_a_discard_that_is_cancelled_closes_psycopg_s_connection_only_when_its_tasks_have_left_it(
    over_psycopg: AsyncPsycopgConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = asyncio.create_task(over_psycopg.handle.execute(ENDLESS["psycopg"]))
    await asyncio.sleep(0)
    pool, connection = over_psycopg._pool, over_psycopg._connection
    putconn, given_back = pool.putconn, []

    async def note(connection: Any) -> None:
        given_back.append((task.done(), connection.closed))
        await putconn(connection)

    monkeypatch.setattr(pool, "putconn", note)
    monkeypatch.setattr("onefold.db._psycopg_handle.hang_up", lambda connection: None)
    discarding = asyncio.create_task(over_psycopg.discard())
    for _ in range(3):
        await asyncio.sleep(0)
    discarding.cancel()
    await asyncio.wait({discarding})
    assert discarding.cancelled()
    assert not given_back
    hang_up(connection)
    await until(lambda: bool(given_back))
    assert given_back == [(True, True)]


async def test_a_stream_that_is_not_read_on_holds_up_neither_the_end_nor_the_closing(
    over_psycopg: AsyncPsycopgConnection,
) -> None:
    rows = over_psycopg.handle.cursor().stream("SELECT generate_series(1, 9)")
    assert await anext(rows) == (1,)
    with pytest.raises(TransactionMisused, match="still uses"):
        await over_psycopg.fetch(Statement("SELECT 1"))
    with pytest.raises(TransactionMisused, match="still uses"):
        await over_psycopg.batch((Boundary.ROLLBACK,))
    await over_psycopg.discard()
    assert over_psycopg._connection.closed
    with pytest.raises(TransactionMisused, match="is over"):
        await anext(rows)
