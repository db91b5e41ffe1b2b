"""SQLAlchemy on Postgres: our statements go by the driver's cursor, a worker's flows in one go. A connection that is
lost, or whose flow is cancelled, is as it would be by SQLAlchemy's own statements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.guards import counted_hops
from onefold import Onefold
from onefold._kernel.checkout import fetch_rows, with_connection
from onefold._kernel.effects import Boundary, Fetch, Publish, Row, Statement
from onefold._kernel.executors import BrokerExecutor, run_on
from onefold._kernel.messages import Message
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase, SqlalchemyDatabase
from onefold.errors import ConnectionLost, StoreUnavailable
from tests.support.patience import PATIENCE_S

PID = Statement("SELECT pg_backend_pid()")


def sent_by_sqlalchemy(engine: Engine) -> list[str]:
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *about: sent.append(about[2]))
    return sent


def url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_our_statements_are_the_driver_s_until_a_handler_has_the_connection(driver: str, postgres_dsn: str) -> None:
    engine = create_engine(url(postgres_dsn, driver))
    connection = SqlalchemyDatabase(engine).acquire()
    sent = sent_by_sqlalchemy(engine)
    look = Statement("SELECT $1::bigint, $2::text, $3::bytea, 50 % 7", (-5, "50 %", b"\0"))
    assert [(*row[:2], bytes(row[2]), row[3]) for row in connection.fetch(look)] == [(-5, "50 %", b"\0", 1)]
    assert connection.batch((look,)) == 1
    connection.batch((Boundary.BEGIN, look, Boundary.COMMIT))
    assert sent == []
    connection.batch((Boundary.BEGIN, look))
    connection.handle.execute(text("SELECT 1"))
    connection.batch((look, Boundary.ROLLBACK))
    assert len(sent) > 1  # the control: they are seen
    connection.release()
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_connection_that_is_lost_under_a_statement_of_ours_is_lost_to_its_engine(
    driver: str, postgres_dsn: str
) -> None:
    engine = create_engine(url(postgres_dsn, driver))
    database = SqlalchemyDatabase(engine)
    connection, other = database.acquire(), database.acquire()
    [(lost,)], [(kept,)] = connection.fetch(PID), other.fetch(PID)
    other.release()
    terminate(postgres_dsn, lost)
    with pytest.raises(ConnectionLost):
        connection.fetch(PID)
    connection.discard()
    again = database.acquire()
    # SQLAlchemy takes it for a restart of the server, and replaces all that its pool had opened before.
    assert again.fetch(PID) not in ([(lost,)], [(kept,)])
    again.release()
    engine.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_the_same_through_an_async_engine(driver: str, postgres_dsn: str) -> None:
    engine = create_async_engine(url(postgres_dsn, driver))
    database = AsyncSqlalchemyDatabase(engine)
    connection, other = await database.acquire(), await database.acquire()
    [(lost,)], [(kept,)] = await connection.fetch(PID), await other.fetch(PID)
    await other.release()
    terminate(postgres_dsn, lost)
    with pytest.raises(ConnectionLost):
        await connection.fetch(PID)
    await connection.discard()
    assert await run_on(database, with_connection(lambda: fetch_rows(PID))) not in ([(lost,)], [(kept,)])
    await database.close()
    await engine.dispose()


def terminate(dsn: str, pid: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_wherever_a_flow_is_cancelled_its_connection_goes_back(driver: str, postgres_dsn: str) -> None:
    engine = create_async_engine(url(postgres_dsn, driver), pool_size=1, max_overflow=0, pool_timeout=PATIENCE_S)
    database = AsyncSqlalchemyDatabase(engine)
    for turns in range(1, 9):
        work = asyncio.create_task(run_on(database, with_connection(lambda: fetch_rows(PID))))
        for _ in range(turns):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert len(await run_on(database, with_connection(lambda: fetch_rows(PID)))) == 1
    await database.close()
    await engine.dispose()


class Refusing:
    """A broker that refuses the first messages, and counts."""

    def __init__(self) -> None:
        self.sent = 0

    async def publish(self, messages: Any) -> list[None]:
        self.sent += 1
        if self.sent == 1:
            raise StoreUnavailable("not now")
        return [None] * len(messages)


async def publish_between(statement: Statement) -> tuple[list[Row], list[str], list[Row]]:
    """A flow as a relay's: what it reads before and after it publishes, and what publishing came to."""
    before = await with_connection(lambda: fetch_rows(statement))
    came: list[str] = []
    for _ in range(2):
        try:
            came.append(str(await Publish([Message(topic="t", data=b"", id="1", source="s")])))
        except StoreUnavailable as error:
            came.append(str(error))
    return before, came, await with_connection(lambda: fetch_rows(statement))


Pooled = Callable[[str], Any]


def engine_of(dsn: str) -> Any:
    return create_engine(url(dsn, "psycopg"))


def pool_of(dsn: str) -> Any:
    return ConnectionPool(dsn, min_size=1, open=True)


@pytest.mark.parametrize("opened", [engine_of, pool_of])
async def test_on_threads_each_part_of_a_flow_is_one_hop(opened: Pooled, postgres_dsn: str) -> None:
    source = opened(postgres_dsn)
    once = Onefold(source, source="shop")
    database = once._for_workers()
    broker: Any = Refusing()
    await run_on(database, with_connection(lambda: fetch_rows(PID)))
    with counted_hops() as hops:
        before, came, after = await run_on(database, publish_between(PID), BrokerExecutor(database, broker))
    assert len(before) == len(after) == 1
    assert came == ["not now", "[None]"]
    assert len(hops) == 3  # before, between and after what it publishes
    with pytest.raises(StoreUnavailable):
        await run_on(database, with_connection(_fail))
    once.close()
    source.close() if isinstance(source, ConnectionPool) else source.dispose()


async def _fail() -> None:
    await Fetch(PID)
    raise StoreUnavailable("no")
