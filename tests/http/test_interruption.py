"""A part of a handler that is interrupted (a time-out) leaves nothing, or the whole request fails and says why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastapi import FastAPI, Response

from onefold import AsyncOnefold, Transaction
from onefold._http.fastapi_dependencies import Tx
from onefold._kernel.effects import Statement
from onefold._kernel.executors import TaskExecutor
from onefold.errors import OnefoldError
from onefold.testing.conformance import Subject
from tests.db.drivers import POSTGRES_ASYNC, SQLITE_ASYNC
from tests.http.stages import Client, account_of, calling, problem, replayed

DRIVERS = {**SQLITE_ASYNC, **POSTGRES_ASYNC}

#: These throw a connection away whose statement is cancelled: its transaction cannot go on.
THROWN_AWAY = [name for name in DRIVERS if name.startswith("sqlalchemy")]

#: Is under way when it is cancelled. A part of a transaction can be undone alone when its statement has ended by
#: itself, so on SQLite the usual one takes no longer than that rollback waits.
SLOW = {
    "postgres": "INSERT INTO orders SELECT 'slow' FROM pg_sleep(10)",
    "sqlite": "INSERT INTO orders WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) "
    "SELECT 'slow' FROM n WHERE i = {rows}",
}

Interrupt = Callable[[], None]
Part = Callable[["Shop", Transaction[Any], Interrupt], Awaitable[None]]


@dataclass
class Shop:
    """An application over some driver, whose endpoint does as it is told."""

    subject: Subject
    once: AsyncOnefold
    client: Client
    app: FastAPI

    async def write(self, tx: Transaction[Any], item: str) -> None:
        await self.subject.execute(tx.connection, f"INSERT INTO orders (item) VALUES ('{item}')")

    async def slow(self, tx: Transaction[Any], rows: int = 100_000) -> None:
        await self.subject.execute(tx.connection, SLOW[self.subject.database.dialect].format(rows=rows))

    async def fetch(self, sql: str) -> list[Any]:
        executor: TaskExecutor[Any] = TaskExecutor(self.subject.database)  # type: ignore[arg-type]
        await executor.acquire()
        found = await executor.fetch(Statement(sql))
        await executor.release()
        return [row[0] for row in found]

    @property
    async def items(self) -> list[str]:
        return await self.fetch("SELECT item FROM orders ORDER BY item")

    @property
    async def topics(self) -> list[str]:
        return await self.fetch("SELECT topic FROM onefold_outbox ORDER BY topic")


@pytest.fixture(params=DRIVERS)
async def shop(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Shop]:
    is_postgres = request.param in POSTGRES_ASYNC
    address = request.getfixturevalue("postgres_dsn") if is_postgres else str(sqlite_path)
    async with DRIVERS[request.param](address, 60.0) as subject:
        once = AsyncOnefold(subject.database, principal=account_of, source="shop")
        await once.migrate()
        app = FastAPI()
        once.install(app)
        async with calling(app) as client:
            found = Shop(subject, once, client, app)
            executor: TaskExecutor[Any] = TaskExecutor(subject.database)  # type: ignore[arg-type]
            await executor.acquire()
            await executor.batch((Statement("CREATE TABLE orders (item text)"),))
            await executor.release()
            yield found
        await once.close()


def serve(shop: Shop, part: Part, status: int = 200) -> None:
    @shop.once.idempotent()
    async def endpoint(tx: Tx[Any], response: Response) -> None:
        await shop.write(tx, "book")
        _ = tx.publish("bought", {})
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                await part(shop, tx, lambda: limit.reschedule(loop.time()))
        response.status_code = status

    shop.app.post("/orders")(endpoint)


async def idle(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
    async with tx.savepoint():
        await shop.write(tx, "extra")
        _ = tx.publish("extra", {})
        interrupt()
        await asyncio.sleep(60)


async def busy(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
    async with tx.savepoint():
        await shop.write(tx, "extra")
        _ = tx.publish("extra", {})
        interrupt()
        await shop.slow(tx)


async def nested(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
    async with tx.savepoint():
        async with tx.savepoint():
            await shop.write(tx, "extra")
        async with tx.savepoint():
            await shop.write(tx, "more")
            _ = tx.publish("extra", {})
            interrupt()
            await asyncio.sleep(60)


@pytest.mark.parametrize("status", [200, 402])
@pytest.mark.parametrize("part", [idle, nested])
async def test_a_part_that_is_interrupted_while_nothing_is_under_way_is_undone_alone(
    shop: Shop, part: Part, status: int
) -> None:
    serve(shop, part, status)
    answer = await shop.client.post("/orders", key='"k"')
    assert answer.status_code == status
    kept = status == 200
    assert (await shop.items, await shop.topics) == ((["book"], ["bought"]) if kept else ([], []))
    assert replayed(await shop.client.post("/orders", key='"k"'))


@pytest.mark.parametrize("key", ['"k"', None])
@pytest.mark.parametrize("status", [200, 402])
async def test_a_part_that_is_interrupted_in_a_statement_is_undone_alone_or_fails_the_request(
    request: pytest.FixtureRequest, shop: Shop, status: int, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    serve(shop, busy, status)
    answer = await shop.client.post("/orders", key=key)
    # A server that is told to cancel before it has begun the statement runs it to its end, as libpq's documentation
    # says: asyncpg's connection is given up then, nothing is kept, and the request is made again.
    for _ in range(3):
        if "its rollback was not answered within" not in caplog.text:
            break
        assert (answer.status_code, await shop.items, await shop.topics) == (500, [], [])
        caplog.clear()
        answer = await shop.client.post("/orders", key=key)
    given_up = "query not terminated after cancellation" in caplog.text  # psycopg waits for the server for 5 s
    if given_up or request.node.callspec.params["shop"] in THROWN_AWAY:
        assert (answer.status_code, problem(answer)) == (500, "handler-broken")
        assert "tx.savepoint()" in caplog.text
        assert (await shop.items, await shop.topics) == ([], [])
        assert await shop.fetch("SELECT count(*) FROM onefold_record") == [0]
    else:
        assert answer.status_code == status
        assert (await shop.items, await shop.topics) == ((["book"], ["bought"]) if status == 200 else ([], []))


async def test_a_part_is_undone_also_where_cancellation_is_repeated_at_every_await(shop: Shop) -> None:
    async def part(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
        with anyio.CancelScope() as scope:
            async with tx.savepoint():
                await shop.write(tx, "extra")
                scope.cancel()
                await asyncio.sleep(60)

    serve(shop, part)
    assert (await shop.client.post("/orders", key='"k"')).status_code == 200
    assert await shop.items == ["book"]


async def test_work_goes_on_after_an_interrupted_part(shop: Shop) -> None:
    async def part(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                await idle(shop, tx, lambda: limit.reschedule(asyncio.get_running_loop().time()))
        async with tx.savepoint():
            await shop.write(tx, "pen")
        _ = tx.publish("also", {})

    serve(shop, part)
    assert (await shop.client.post("/orders", key='"k"')).status_code == 200
    assert (await shop.items, await shop.topics) == (["book", "pen"], ["also", "bought"])


async def test_an_end_that_is_interrupted_fails_the_request(shop: Shop) -> None:
    """Whether the part was kept when its end was interrupted cannot be told: outside, it looks undone."""

    async def part(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
        async with tx.savepoint():
            await shop.write(tx, "extra")
            interrupt()

    serve(shop, part)
    answer = await shop.client.post("/orders", key='"k"')
    assert (answer.status_code, problem(answer)) == (500, "handler-broken")
    assert await shop.items == []


async def test_parts_that_overlap_fail_the_request(shop: Shop) -> None:
    async def part(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
        first, second = tx.savepoint(), tx.savepoint()
        await first.__aenter__()
        await second.__aenter__()
        await shop.write(tx, "extra")
        with contextlib.suppress(OnefoldError):
            await first.__aexit__(None, None, None)

    serve(shop, part)
    answer = await shop.client.post("/orders", key='"k"')
    assert (answer.status_code, problem(answer)) == (500, "handler-broken")
    assert "overlap" in answer.json()["detail"]
    assert await shop.items == []


@pytest.mark.parametrize("status", [200, 402])
async def test_a_part_that_is_still_open_at_the_end_is_not_kept(shop: Shop, status: int) -> None:
    async def part(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
        await tx.savepoint().__aenter__()
        await shop.write(tx, "extra")

    serve(shop, part, status)
    answer = await shop.client.post("/orders", key='"k"')
    assert answer.status_code == (500 if status == 200 else 402)
    assert await shop.items == []


async def test_a_statement_of_its_own_that_is_interrupted_fails_the_request(shop: Shop) -> None:
    async def part(shop: Shop, tx: Transaction[Any], interrupt: Interrupt) -> None:
        # Under way by then (what has not begun is dropped, and harms nothing), and not done before.
        asyncio.get_running_loop().call_later(0.3, interrupt)
        await shop.slow(tx, rows=200_000_000)

    serve(shop, part)
    answer = await shop.client.post("/orders", key='"k"')
    assert answer.status_code >= 500
    assert await shop.items == []
    assert await shop.fetch("SELECT count(*) FROM onefold_record") == [0]
