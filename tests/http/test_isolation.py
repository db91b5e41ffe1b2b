"""The isolation that the application chose, for its engine, its database, its pool or a route, holds in its requests.

The bank: two withdrawals, each of which sees that there is enough for it. READ COMMITTED lets both happen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import httpx
import psycopg
import pytest
from fastapi import FastAPI, HTTPException, Request, Response
from psycopg import IsolationLevel
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.route_policy import Settings
from onefold._kernel.effects import Isolation
from onefold.errors import ConfigurationError, TransactionMisused
from tests.http.stages import Client, account_of, calling, problem, replayed

PATIENCE_S = 60.0
BALANCE = "SELECT coalesce(sum(amount), 0) FROM entries"
WITHDRAW = "INSERT INTO entries VALUES (-100)"


class Bank:
    """An account with 100, and an application over some driver that withdraws 100 from it where there is enough."""

    def __init__(self, dsn: str, exits: AsyncExitStack) -> None:
        self.dsn = dsn
        self.exits = exits
        #: How many withdrawals look at the balance before one of them writes.
        self.meet = asyncio.Barrier(1)
        self.meet_threads = threading.Barrier(1)
        self.settings: Settings = {}
        self.isolation: Isolation | None = None
        self.statement = BALANCE
        #: What the handlers raised, as the application sees it.
        self.errors: list[Exception] = []

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def meeting(self, count: int) -> None:
        self.meet, self.meet_threads = asyncio.Barrier(count), threading.Barrier(count)

    @property
    def balance(self) -> int:
        [(balance,)] = self.sql(BALANCE)
        return int(balance)

    @property
    def records(self) -> int:
        [(count,)] = self.sql("SELECT count(*) FROM onefold_record")
        return int(count)

    def choose_in_database(self, level: str) -> None:
        [(name,)] = self.sql("SELECT current_database()")
        self.sql(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")

    async def serve(self, database: object, execute: Any) -> Client:
        """With an async driver; `execute` gives the first value of a statement, or None."""
        once = AsyncOnefold(database, principal=account_of, isolation=self.isolation)
        app = FastAPI()

        @app.post("/withdrawals", status_code=201)
        @once.idempotent(**self.settings)
        async def withdraw(tx: Tx[Any]) -> None:
            balance = await execute(tx.connection, self.statement)
            async with asyncio.timeout(PATIENCE_S):
                await self.meet.wait()
            if balance < 100:
                raise HTTPException(402)
            await execute(tx.connection, WITHDRAW)

        return await self.install(app, once)

    async def install(self, app: FastAPI, once: Any) -> Client:
        @app.exception_handler(Exception)
        def remember(request: Request, error: Exception) -> Response:
            self.errors.append(error)
            return Response(status_code=500)

        once.install(app)
        return await self.exits.enter_async_context(calling(app))

    async def serve_threads(self, database: object, execute: Callable[[Any, str], Any]) -> Client:
        once = Onefold(database, principal=account_of)
        app = FastAPI()

        @app.post("/withdrawals", status_code=201)
        @once.idempotent(**self.settings)
        def withdraw(tx: Tx[Any]) -> None:
            balance = execute(tx.connection, self.statement)
            self.meet_threads.wait(PATIENCE_S)
            if balance < 100:
                raise HTTPException(402)
            execute(tx.connection, WITHDRAW)

        return await self.install(app, once)

    # --- drivers ---------------------------------------------------------------------------------------------

    async def on_asyncpg(self, level: str | None = None) -> Client:
        settings = {} if level is None else {"default_transaction_isolation": level}
        pool = await self.exits.enter_async_context(asyncpg.create_pool(self.dsn, min_size=0, server_settings=settings))
        return await self.serve(pool, lambda connection, sql: connection.fetchval(sql))

    async def on_psycopg(self, level: str | None = None) -> Client:
        def configure(connection: psycopg.Connection[Any]) -> None:
            connection.isolation_level = None if level is None else IsolationLevel[level.upper().replace(" ", "_")]

        def execute(connection: psycopg.Connection[Any], sql: str) -> Any:
            cursor = connection.execute(sql.encode())
            return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]

        pool = self.exits.enter_context(ConnectionPool(self.dsn, max_size=4, configure=configure, open=True))
        return await self.serve_threads(pool, execute)

    async def on_async_psycopg(self, level: str | None = None) -> Client:
        async def configure(connection: psycopg.AsyncConnection[Any]) -> None:
            chosen = None if level is None else IsolationLevel[level.upper().replace(" ", "_")]
            await connection.set_isolation_level(chosen)

        async def execute(connection: psycopg.AsyncConnection[Any], sql: str) -> Any:
            cursor = await connection.execute(sql.encode())
            row = await cursor.fetchone() if cursor.description else None
            return row and row[0]

        pool = AsyncConnectionPool(self.dsn, max_size=4, configure=configure, open=False)
        await self.exits.enter_async_context(pool)
        return await self.serve(pool, execute)

    async def on_engine(self, level: str | None = None) -> Client:
        engine = create_engine(self.dsn.replace("://", "+psycopg://", 1), isolation_level=level and level.upper())
        self.exits.callback(engine.dispose)

        def execute(connection: Any, sql: str) -> Any:
            result = connection.execute(text(sql))
            return result.scalar() if result.returns_rows else None

        return await self.serve_threads(engine, execute)

    async def on_async_engine(self, level: str | None = None, driver: str = "asyncpg") -> Client:
        url = self.dsn.replace("://", f"+{driver}://", 1)
        engine = create_async_engine(url, isolation_level=level and level.upper())
        self.exits.push_async_callback(engine.dispose)

        async def execute(connection: Any, sql: str) -> Any:
            result = await connection.execute(text(sql))
            return result.scalar() if result.returns_rows else None

        return await self.serve(engine, execute)

    async def on_async_psycopg_engine(self, level: str | None = None) -> Client:
        return await self.on_async_engine(level, "psycopg")


DRIVERS = [
    Bank.on_asyncpg,
    Bank.on_psycopg,
    Bank.on_async_psycopg,
    Bank.on_engine,
    Bank.on_async_engine,
    Bank.on_async_psycopg_engine,
]
every_driver = pytest.mark.parametrize("driver", DRIVERS)


@pytest.fixture
async def bank(postgres_dsn: str) -> AsyncIterator[Bank]:
    once = AsyncOnefold(postgres_dsn)
    await once.migrate()
    await once.close()
    async with AsyncExitStack() as exits:
        bank = Bank(postgres_dsn, exits)
        bank.sql("CREATE TABLE entries (amount int NOT NULL)")
        bank.sql("INSERT INTO entries VALUES (100)")
        yield bank


async def withdraw_twice(client: Client, bank: Bank, *keys: str | None) -> list[httpx.Response]:
    bank.meeting(2)
    answers = await asyncio.gather(*(client.post("/withdrawals", {}, key=key) for key in keys))
    bank.meeting(1)
    return sorted(answers, key=lambda answer: answer.status_code)


async def check_one_of_two(client: Client, bank: Bank) -> None:
    done, failed = await withdraw_twice(client, bank, '"k1"', '"k2"')
    assert [done.status_code, failed.status_code] == [201, 503], failed.text
    assert failed.json()["retryable"] is True
    assert (bank.balance, bank.records) == (0, 1)
    # The retry of the one that failed runs, and finds nothing left; the other one is replayed.
    again = [await client.post("/withdrawals", {}, key=key) for key in ('"k1"', '"k2"')]
    assert sorted((answer.status_code, replayed(answer)) for answer in again) == [(201, True), (402, False)]
    assert bank.balance == 0


@every_driver
async def test_of_two_withdrawals_one_happens_where_the_driver_is_serializable(
    bank: Bank, driver: Callable[..., Any]
) -> None:
    await check_one_of_two(await driver(bank, "serializable"), bank)


@every_driver
async def test_of_two_withdrawals_one_happens_where_the_database_is_serializable(
    bank: Bank, driver: Callable[..., Any]
) -> None:
    bank.choose_in_database("serializable")
    await check_one_of_two(await driver(bank), bank)


@every_driver
async def test_of_two_withdrawals_one_happens_where_the_route_is_serializable(
    bank: Bank, driver: Callable[..., Any]
) -> None:
    bank.settings = {"isolation": "serializable"}
    await check_one_of_two(await driver(bank), bank)


async def test_of_two_withdrawals_one_happens_where_the_application_is_serializable(bank: Bank) -> None:
    bank.isolation = "serializable"
    await check_one_of_two(await bank.on_asyncpg(), bank)


@every_driver
async def test_of_two_withdrawals_without_a_key_one_happens(bank: Bank, driver: Callable[..., Any]) -> None:
    done, failed = await withdraw_twice(await driver(bank, "serializable"), bank, None, None)
    assert (done.status_code, failed.status_code, problem(failed)) == (201, 503, "store-busy")
    assert (bank.balance, bank.records) == (0, 0)


@every_driver
async def test_without_any_choice_both_happen_as_without_onefold(bank: Bank, driver: Callable[..., Any]) -> None:
    answers = await withdraw_twice(await driver(bank), bank, '"k1"', '"k2"')
    assert [answer.status_code for answer in answers] == [201, 201]
    assert bank.balance == -100


async def test_a_route_may_ask_for_less_than_the_database_gives(bank: Bank) -> None:
    bank.choose_in_database("serializable")
    bank.settings = {"isolation": "read committed"}
    answers = await withdraw_twice(await bank.on_asyncpg(), bank, '"k1"', '"k2"')
    assert [answer.status_code for answer in answers] == [201, 201]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("driver", [Bank.on_asyncpg, Bank.on_engine])
async def test_of_duplicates_that_race_one_runs_and_none_is_told_of_an_error(
    bank: Bank, driver: Callable[..., Any], level: str
) -> None:
    bank.sql("INSERT INTO entries VALUES (900)")
    client = await driver(bank, level)
    for number in range(5):
        key = f'"k{number}"'
        answers = await asyncio.gather(*(client.post("/withdrawals", {}, key=key) for _ in range(4)))
        assert {answer.status_code for answer in answers} <= {201, 409}
        assert sum(answer.status_code == 201 and not replayed(answer) for answer in answers) == 1
        assert bank.balance == 900 - 100 * number
        assert replayed(await client.post("/withdrawals", {}, key=key))


def test_a_level_that_is_none_is_refused_where_it_is_written() -> None:
    once = AsyncOnefold("postgresql://localhost/none", principal=account_of)
    with pytest.raises(ConfigurationError, match="isolation='snapshot' is not one of 'read committed', 'repeatable"):
        once.idempotent(isolation="snapshot")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="isolation='SERIALIZABLE' is not one of"):
        AsyncOnefold("postgresql://localhost/none", isolation="SERIALIZABLE")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="isolation='high' is not one of"):
        once.consumer("mail", topic="t", isolation="high")(print)  # type: ignore[arg-type]


KINDS = {"asyncpg": Bank.on_asyncpg, "psycopg": Bank.on_psycopg, "sqlalchemy": Bank.on_async_engine}


@pytest.mark.parametrize("key", ['"k"', None])
@pytest.mark.parametrize("driver", KINDS.values(), ids=KINDS)
async def test_a_handler_that_sets_the_level_too_late_is_told_where_to_say_it(
    bank: Bank, driver: Callable[..., Any], key: str | None
) -> None:
    bank.statement = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"
    client = await driver(bank)
    answer = await client.post("/withdrawals", {}, key=key)
    assert answer.status_code == 500
    assert isinstance(bank.errors[0], TransactionMisused)
    assert "say isolation='serializable'" in str(bank.errors[0])
    assert (bank.balance, bank.records) == (100, 0)
