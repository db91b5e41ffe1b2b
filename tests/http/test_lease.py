"""A handler that takes longer than its lease on Postgres: it is undone, its retry runs, and the log says why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import asyncpg
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold
from onefold._http.fastapi_dependencies import Tx
from onefold.testing.servers import PrivatePostgres
from tests.http.stages import Client, account_of, calling, problem
from tests.support.patience import PATIENCE_S

INSERT = "INSERT INTO orders DEFAULT VALUES"


class Slow:
    """An order that takes its time, and then may still have something to write."""

    def __init__(self) -> None:
        self.takes_s, self.writes_again = 1.0, False


@pytest.fixture(params=["postgres", "postgres_16"])
def dsn(request: pytest.FixtureRequest) -> str:
    server: PrivatePostgres = request.getfixturevalue(request.param)
    return server.fresh_database()


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
async def client(dsn: str, slow: Slow) -> AsyncIterator[Client]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        await pool.execute("CREATE TABLE orders (id serial PRIMARY KEY)")
        once = AsyncOnefold(pool, principal=account_of)
        await once.migrate()
        app = FastAPI()

        @app.post("/orders", status_code=201)
        @once.idempotent(required=True, lease_s=0.2)
        async def buy(tx: Tx[asyncpg.Connection]) -> None:
            await tx.connection.execute(INSERT)
            await asyncio.sleep(slow.takes_s)
            if slow.writes_again:
                await tx.connection.execute(INSERT)

        once.install(app)
        async with calling(app) as found:
            yield found


@pytest.mark.parametrize("writes_again", [True, False])
async def test_a_handler_that_outlives_its_lease_is_undone_and_the_log_says_why(
    client: Client, dsn: str, slow: Slow, writes_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    slow.writes_again = writes_again
    with caplog.at_level(logging.WARNING, logger="onefold"):
        answer = await client.post("/orders", {}, key='"k"')
    assert (answer.status_code, problem(answer)) == (503, "store-unavailable")
    assert "the connection of POST /orders was lost" in caplog.text
    assert "lease_s=0.2" in caplog.text
    slow.takes_s = 0.0
    async with asyncio.timeout(PATIENCE_S):
        # On a busy machine even a quick handler may outlive so short a lease.
        while (answer := await client.post("/orders", {}, key='"k"')).status_code == 503:
            pass
    assert answer.status_code == 201
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT count(*) FROM orders") == (2 if writes_again else 1)
    await connection.close()
