"""What an application's pool does when a connection comes back to it costs the connection at most, never the request,
and never another request's connection."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Onefold, single_principal
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import PoolExhausted
from tests.db.drivers import public_only

TABLE = "CREATE TABLE thing (id int PRIMARY KEY)"
INSERT, COUNT = text("INSERT INTO thing VALUES (:id)"), text("SELECT count(*) FROM thing")
WARNING = "giving a connection back to its pool failed"


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
        for number in range(4):
            hook.armed = number in (1, 2)
            async with once.transaction() as tx:
                await tx.connection.execute("INSERT INTO thing VALUES ($1)", number)
        hook.armed = False
        assert await pool.fetchval("SELECT count(*) FROM thing") == 4
    assert caplog.text.count(WARNING) == 2
    assert "on purpose" in caplog.text


@contextlib.asynccontextmanager
async def _refusing_engine(url: str, hook: Refusing) -> AsyncIterator[Any]:
    engine = create_async_engine(url, pool_size=2, max_overflow=0, pool_timeout=0.1)
    event.listen(engine.sync_engine, "checkin", hook)
    yield engine
    hook.armed = False
    await engine.dispose()


async def test_a_checkin_of_sqlalchemy_s_async_pool_that_fails_fails_no_transaction_and_costs_a_place(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Refusing(ValueError("on purpose"))
    async with _refusing_engine(postgres_dsn.replace("postgresql://", "postgresql+asyncpg://"), hook) as engine:
        async with engine.begin() as own:
            await own.execute(text(TABLE))
        once = AsyncOnefold(engine, principal=single_principal)
        await once.migrate()
        for number in range(3):  # of the pool's two places both are lost
            hook.armed = number > 0
            async with once.transaction() as tx:
                await tx.connection.execute(INSERT, {"id": number})
        with pytest.raises(PoolExhausted):
            async with once.transaction() as tx:
                await tx.connection.execute(COUNT)
        hook.armed = False
        await engine.dispose()  # as the log says
        async with once.transaction() as tx:
            assert (await tx.connection.execute(COUNT)).scalar_one() == 3
    assert caplog.text.count(WARNING) == 2
    assert "it was closed, and its place in the pool is lost until engine.dispose()" in caplog.text


def test_a_checkin_of_sqlalchemy_s_pool_that_fails_fails_no_transaction_and_costs_a_place(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Refusing(ValueError("on purpose"))
    url = postgres_dsn.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, pool_size=2, max_overflow=0, pool_timeout=0.1)
    event.listen(engine, "checkin", hook)
    with engine.begin() as own:
        own.execute(text(TABLE))
    once = Onefold(engine, principal=single_principal)
    once.migrate()
    for number in range(3):
        hook.armed = number > 0
        with once.transaction() as tx:
            tx.connection.execute(INSERT, {"id": number})
    with pytest.raises(PoolExhausted), once.transaction() as tx:
        tx.connection.execute(COUNT)
    hook.armed = False
    engine.dispose()
    with once.transaction() as tx:
        assert tx.connection.execute(COUNT).scalar_one() == 3
    engine.dispose()
    assert caplog.text.count(WARNING) == 2
    assert "it was closed, and its place in the pool is lost until engine.dispose()" in caplog.text


def test_a_checkin_that_fails_when_a_connection_is_thrown_away_does_not_hide_why_it_was(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Refusing(ValueError("of the hook"))
    engine = create_engine(postgres_dsn.replace("postgresql://", "postgresql+psycopg://"))
    event.listen(engine, "checkin", hook)
    once = Onefold(engine, principal=single_principal)
    once.migrate()

    def interrupted() -> None:
        with once.transaction() as tx:
            tx.connection.execute(text("SELECT 1"))
            hook.armed = True
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    hook.armed = False
    engine.dispose()
    assert WARNING in caplog.text
