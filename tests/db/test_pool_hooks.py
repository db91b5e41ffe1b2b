"""What an application's pool does when a connection comes back to it costs the connection, never the request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Onefold, single_principal
from onefold.db.asyncpg import AsyncpgDatabase
from tests.db.drivers import public_only

TABLE = "CREATE TABLE thing (id int PRIMARY KEY)"
WARNING = "a connection could not be given back to its pool, and was closed"


@pytest.fixture(params=["as tested", "by the public API"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with contextlib.nullcontext() if request.param == "as tested" else public_only():
        yield


class Refusing:
    """A hook of a pool that fails when it is told to."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.armed = False

    def __call__(self, *_: Any) -> None:
        if self.armed:
            raise self.error

    async def reset(self, connection: Any) -> None:
        self()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("error", [ValueError("on purpose"), asyncpg.UndefinedTableError("on purpose")])
async def test_a_reset_of_asyncpg_s_pool_that_fails_fails_no_transaction(
    error: Exception, postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Refusing(error)
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1, reset=hook.reset) as pool:
        await pool.execute(TABLE)
        once = AsyncOnefold(AsyncpgDatabase(pool), principal=single_principal)
        await once.migrate()
        for number in range(3):
            hook.armed = number == 1
            async with once.transaction() as tx:
                await tx.connection.execute("INSERT INTO thing VALUES ($1)", number)
        hook.armed = False
        assert await pool.fetchval("SELECT count(*) FROM thing") == 3
    assert caplog.text.count(WARNING) == 1
    assert "on purpose" in caplog.text


@contextlib.asynccontextmanager
async def _refusing_engine(url: str, hook: Refusing) -> AsyncIterator[Any]:
    engine = create_async_engine(url, pool_size=2, max_overflow=0)
    event.listen(engine.sync_engine, "checkin", hook)
    yield engine
    hook.armed = False
    await engine.dispose()


async def test_a_checkin_of_sqlalchemy_s_async_pool_that_fails_fails_no_transaction(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Refusing(ValueError("on purpose"))
    async with _refusing_engine(postgres_dsn.replace("postgresql://", "postgresql+asyncpg://"), hook) as engine:
        async with engine.begin() as own:
            await own.execute(text(TABLE))
        once = AsyncOnefold(engine, principal=single_principal)
        await once.migrate()
        for number in range(3):
            hook.armed = number == 1
            async with once.transaction() as tx:
                await tx.connection.execute(text("INSERT INTO thing VALUES (:id)"), {"id": number})
        async with engine.connect() as own:
            assert (await own.execute(text("SELECT count(*) FROM thing"))).scalar_one() == 3
    assert caplog.text.count(WARNING) == 1


def test_a_checkin_of_sqlalchemy_s_pool_that_fails_fails_no_transaction(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Refusing(ValueError("on purpose"))
    url = postgres_dsn.replace("postgresql://", "postgresql+psycopg://")
    engine: Engine = create_engine(url, pool_size=2, max_overflow=0)
    event.listen(engine, "checkin", hook)
    with engine.begin() as own:
        own.execute(text(TABLE))
    once = Onefold(engine, principal=single_principal)
    once.migrate()
    for number in range(3):
        hook.armed = number == 1
        with once.transaction() as tx:
            tx.connection.execute(text("INSERT INTO thing VALUES (:id)"), {"id": number})
    with engine.connect() as own:
        assert own.execute(text("SELECT count(*) FROM thing")).scalar_one() == 3
    engine.dispose()
    assert caplog.text.count(WARNING) == 1
