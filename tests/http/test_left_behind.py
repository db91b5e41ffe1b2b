"""Work that a request leaves behind cannot reach into the transactions of others through the connection it has kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI, Response

from onefold import AsyncOnefold
from onefold._http.fastapi_dependencies import Tx
from tests.db.drivers import POSTGRES_ASYNC, SQLITE_ASYNC
from tests.http.stages import account_of, calling

DRIVERS = {**SQLITE_ASYNC, **POSTGRES_ASYNC}


class Stage:
    """An application over some driver: one request leaves a task behind, another is refused while that runs."""

    def __init__(self, once: AsyncOnefold, execute: Any) -> None:
        self.once, self.execute = once, execute
        self.app = FastAPI()
        once.install(self.app)
        self.left = asyncio.Event()
        self.inside = asyncio.Event()
        self.done = asyncio.Event()
        self.error: Exception | None = None

        @once.idempotent()
        async def leave(tx: Tx[Any], tasks: BackgroundTasks) -> None:
            await execute(tx.connection, "INSERT INTO orders (item) VALUES ('book')")
            tasks.add_task(self.write_late, tx.connection)

        @once.idempotent()
        async def refuse(tx: Tx[Any], response: Response) -> None:
            await execute(tx.connection, "INSERT INTO orders (item) VALUES ('refused')")
            self.inside.set()
            await self.done.wait()
            response.status_code = 402

        self.app.post("/leave")(leave)
        self.app.post("/refuse")(refuse)

    async def write_late(self, connection: Any) -> None:
        self.left.set()
        await self.inside.wait()
        try:
            await self.execute(connection, "INSERT INTO orders (item) VALUES ('late')")
        except Exception as error:
            self.error = error
        self.done.set()


@pytest.fixture(params=DRIVERS)
async def stage(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Stage]:
    is_postgres = request.param in POSTGRES_ASYNC
    address = request.getfixturevalue("postgres_dsn") if is_postgres else str(sqlite_path)
    async with DRIVERS[request.param](address, 60.0) as subject:
        once = AsyncOnefold(subject.database, principal=account_of)
        await once.migrate()
        async with once.transaction() as tx:
            await subject.execute(tx.connection, "CREATE TABLE orders (item text)")
        yield Stage(once, subject.execute)
        await once.close()


async def test_a_background_task_does_not_write_into_another_requests_transaction(stage: Stage) -> None:
    async with calling(stage.app) as client, asyncio.timeout(60), asyncio.TaskGroup() as group:
        left = group.create_task(client.post("/leave", key='"first"'))
        await stage.left.wait()
        refused = group.create_task(client.post("/refuse", key='"second"'))
        await asyncio.wait({left, refused})
    assert (left.result().status_code, refused.result().status_code) == (200, 402)
    assert stage.error is not None  # it was told, instead of losing its row with somebody else's refusal
