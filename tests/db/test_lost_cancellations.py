"""A task's only cancellation is not lost where the server answers the cancelled statement with another error.

psycopg cancels the statement on the server and raises what that answers. A trigger that catches the cancellation
answers with an error of its own: taken for a failed statement, it would let the task go on that was to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, single_principal
from tests.db.drivers import public_only
from tests.support.patience import PATIENCE_S

TRIGGER = """
CREATE TABLE thing (id int PRIMARY KEY);
CREATE FUNCTION catch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.id > 0 THEN PERFORM pg_sleep(60); END IF;
    RETURN new;
EXCEPTION WHEN query_canceled THEN RAISE EXCEPTION 'the trigger gave up';
END $$;
CREATE TRIGGER catching BEFORE INSERT ON thing FOR EACH ROW EXECUTE FUNCTION catch()
"""
SLEEPS = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"


@pytest.fixture(params=["as tested", "by the public API"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with contextlib.nullcontext() if request.param == "as tested" else public_only():
        yield


@pytest.fixture(params=["psycopg", "postgresql+psycopg", "postgresql+asyncpg"])
async def database(request: pytest.FixtureRequest, way: None, postgres_dsn: str) -> AsyncIterator[Any]:
    if request.param == "psycopg":
        async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=2, open=False) as pool:
            yield pool
    else:
        engine = create_async_engine(postgres_dsn.replace("postgresql", request.param))
        yield engine
        await engine.dispose()


@pytest.mark.parametrize("times", [1, 7])  # psycopg prepares what it has executed some times
async def test_a_cancellation_in_a_natural_write_ends_the_task(times: int, database: Any, postgres_dsn: str) -> None:
    once = AsyncOnefold(database, principal=single_principal)
    await once.migrate()
    async with await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True) as own:
        await own.execute(TRIGGER)

        async def work() -> None:
            async with once.transaction() as tx:
                for number in range(-times, 0):
                    await tx.insert_once("thing", {"id": number}, on="id")
                with contextlib.suppress(Exception):
                    await tx.insert_once("thing", {"id": 1}, on="id")

        task = asyncio.create_task(work())
        async with asyncio.timeout(PATIENCE_S):
            while await (await own.execute(SLEEPS)).fetchone() is None:
                assert not task.done()
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()
