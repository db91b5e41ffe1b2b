"""In development, a handler that took its connection and had nothing executed on it is told so: an await is missing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request

from onefold import AsyncOnefold, single_principal
from onefold._http.fastapi_dependencies import Tx
from onefold._kernel.effects import Statement
from onefold.testing.conformance import Subject
from tests.db.drivers import over_asyncpg, over_psycopg_async, sqlite_async
from tests.http.stages import Client, calling, problem
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

INSERT = "INSERT INTO orders (item) VALUES ('book')"
OPENS = {"sqlite": sqlite_async, "asyncpg": over_asyncpg, "psycopg": over_psycopg_async}


class Stage:
    """An application whose handler does what the request says, over one driver."""

    def __init__(self, subject: Subject, *, development: bool = True) -> None:
        self.subject: Any = subject
        self.once = AsyncOnefold(subject.database, principal=single_principal, source="shop", development=development)

    async def set_up(self) -> Stage:
        await self.once.migrate()
        connection = await self.subject.database.acquire()
        await connection.batch((Statement("CREATE TABLE orders (item text NOT NULL)"),))
        await connection.release()
        return self

    async def count(self, table: str) -> int:
        connection = await self.subject.database.acquire()
        [(count,)] = await connection.fetch(Statement(f"SELECT count(*) FROM {table}"))
        await connection.release()
        return int(count)

    def app(self, **settings: Any) -> FastAPI:
        app, execute = FastAPI(), self.subject.execute

        @app.post("/orders", status_code=201)
        @self.once.idempotent(**settings)
        async def order(request: Request, tx: Tx[Any]) -> None:
            for what in request.query_params["does"].split(","):
                match what:
                    case "forget":
                        execute(tx.connection, INSERT)
                    case "write":
                        await execute(tx.connection, INSERT)
                    case "read":
                        await execute(tx.connection, "SELECT 1")
                    case "publish":
                        await tx.publish("order.placed", {})
                    case "forget in part":
                        async with tx.savepoint():
                            execute(tx.connection, INSERT)
                    case "part":
                        async with tx.savepoint():
                            await execute(tx.connection, INSERT)
                    case "publish in part":
                        async with tx.savepoint():
                            await tx.publish("order.placed", {})
                    case "copy":
                        await tx.connection.copy_records_to_table("orders", records=[("book",)], columns=["item"])
                    case _:
                        raise LookupError(what)

        self.once.install(app)
        return app


@pytest.fixture(params=OPENS)
async def stage(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Stage]:
    address = str(sqlite_path) if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")
    async with OPENS[request.param](address, PATIENCE_S) as subject:
        stage = await Stage(subject).set_up()
        yield stage
        # Its notifier may be connecting. Left at that, it stands before the server half-way through its authentication,
        # and DROP DATABASE waits a minute for it.
        await stage.once.close()


async def do(client: Client, does: str, key: str | None = '"k"') -> Any:
    return await client.post(f"/orders?does={does}", key=key)


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
@pytest.mark.parametrize("does", ["forget", "forget,publish", "forget in part"])
async def test_a_forgotten_await_is_no_success(stage: Stage, does: str, key: str | None) -> None:
    async with calling(stage.app()) as client:
        refused = await do(client, does, key)
        assert (refused.status_code, problem(refused)) == (500, "handler-broken")
        assert "executed nothing on it" in refused.json()["detail"]
        assert "await tx.connection.execute(...)" in refused.json()["detail"]
        tables = ("orders", "onefold_record", "onefold_outbox")
        assert [await stage.count(table) for table in tables] == [0, 0, 0]
        assert (await do(client, "write", key)).status_code == 201
        assert await stage.count("orders") == 1


@pytest.mark.parametrize("does", ["write", "read", "write,part", "part", "publish", "publish in part", "read,publish"])
async def test_what_was_executed_or_published_is_a_success(stage: Stage, does: str) -> None:
    async with calling(stage.app()) as client:
        for number in (1, 2):  # the second gets what the first has left
            assert (await do(client, does, f'"{number}"')).status_code == 201


async def test_a_connection_says_nothing_of_the_handler_before(stage: Stage) -> None:
    async with calling(stage.app()) as client:
        answers = [await do(client, does, f'"{does}"') for does in ("write", "forget", "read")]
    assert [answer.status_code for answer in answers] == [201, 500, 201]


async def test_a_route_that_writes_nothing_says_so(stage: Stage) -> None:
    async with calling(stage.app(writes=False)) as client:
        assert (await do(client, "forget")).status_code == 201


async def test_copy_is_executed_though_asyncpg_does_not_count_it(postgres_dsn: str) -> None:
    async with over_asyncpg(postgres_dsn, PATIENCE_S) as subject:
        stage = await Stage(subject).set_up()
        async with calling(stage.app()) as client:
            assert (await do(client, "copy")).status_code == 201
        assert await stage.count("orders") == 1
