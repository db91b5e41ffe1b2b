"""Every driver keeps every promise of the port, and the suite finds the drivers that do not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.testing.conformance import SCENARIOS, Scenario, check, check_async, check_cancellation
from onefold.testing.servers import PrivatePostgres
from tests.db.drivers import POSTGRES, POSTGRES_ASYNC, SQLITE, SQLITE_ASYNC, Open, OpenAsync

NAMED = {str(scenario): scenario for scenario in SCENARIOS}
EXHAUSTED = NAMED.pop("an_exhausted_pool_is_said_to_be_unavailable")
OUTAGE = NAMED.pop("a_server_that_dies_and_returns_is_lost_and_found")
ON_POSTGRES_ONLY = (
    "an_error_aborts_the_transaction",
    "an_error_may_come_with_the_commit",
    "a_transaction_has_the_level_it_was_begun_at",
    "what_cannot_be_serialised_says_so",
    "a_session_that_the_server_ends_is_lost_and_replaced",
    "a_discarded_connection_is_not_used_again",
)
ON_BOTH = [scenario for name, scenario in NAMED.items() if name not in ON_POSTGRES_ONLY]

#: Long enough for a slow machine to wait its turn; the scenarios that run out of patience get less of it.
PATIENCE_S = 10.0
IMPATIENT_S = 1.0


def _database(server: PrivatePostgres) -> str:
    """A database whose locks are not waited for without end, should a scenario leave one behind."""
    dsn = server.fresh_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{name}\" SET lock_timeout = '5s'".encode())
        # Where our tables are is then known; else each connection that is taken is first spent on looking for them.
        connection.execute("CREATE TABLE onefold_migration (version int)")
    return dsn


@pytest.fixture(scope="session")
def dsn(postgres: PrivatePostgres) -> str:
    return _database(postgres)


@pytest.fixture(scope="session")
def dsn_16(postgres_16: PrivatePostgres) -> str:
    return _database(postgres_16)


@pytest.fixture(scope="session")
def mortal_dsn(mortal_postgres: PrivatePostgres) -> str:
    return _database(mortal_postgres)


every_scenario = pytest.mark.parametrize("scenario", NAMED.values(), ids=str)
both_dialects = pytest.mark.parametrize("scenario", ON_BOTH, ids=str)
sqlite_drivers = pytest.mark.parametrize("driver", SQLITE.values(), ids=SQLITE)
async_sqlite_drivers = pytest.mark.parametrize("driver", SQLITE_ASYNC.values(), ids=SQLITE_ASYNC)
postgres_drivers = pytest.mark.parametrize("driver", POSTGRES.values(), ids=POSTGRES)
async_postgres_drivers = pytest.mark.parametrize("driver", POSTGRES_ASYNC.values(), ids=POSTGRES_ASYNC)


@both_dialects
@sqlite_drivers
def test_on_sqlite(scenario: Scenario, driver: Open, sqlite_path: Path) -> None:
    with driver(str(sqlite_path), PATIENCE_S) as subject:
        check(scenario, subject)


@both_dialects
@async_sqlite_drivers
async def test_on_sqlite_for_asyncio(scenario: Scenario, driver: OpenAsync, sqlite_path: Path) -> None:
    async with driver(str(sqlite_path), PATIENCE_S) as subject:
        await check_async(scenario, subject)


@every_scenario
@postgres_drivers
def test_on_postgres(scenario: Scenario, driver: Open, dsn: str) -> None:
    with driver(dsn, PATIENCE_S) as subject:
        check(scenario, subject)


@every_scenario
@async_postgres_drivers
async def test_on_postgres_for_asyncio(scenario: Scenario, driver: OpenAsync, dsn: str) -> None:
    async with driver(dsn, PATIENCE_S) as subject:
        await check_async(scenario, subject)


@every_scenario
def test_on_postgres_16(scenario: Scenario, dsn_16: str) -> None:
    with POSTGRES["psycopg"](dsn_16, PATIENCE_S) as subject:
        check(scenario, subject)


@every_scenario
async def test_on_postgres_16_for_asyncio(scenario: Scenario, dsn_16: str) -> None:
    async with POSTGRES_ASYNC["asyncpg"](dsn_16, PATIENCE_S) as subject:
        await check_async(scenario, subject)


@postgres_drivers
def test_an_exhausted_pool(driver: Open, dsn: str) -> None:
    with driver(dsn, IMPATIENT_S) as subject:
        check(EXHAUSTED, subject)


@async_postgres_drivers
async def test_an_exhausted_pool_for_asyncio(driver: OpenAsync, dsn: str) -> None:
    async with driver(dsn, IMPATIENT_S) as subject:
        await check_async(EXHAUSTED, subject)


@postgres_drivers
def test_an_outage(driver: Open, mortal_postgres: PrivatePostgres, mortal_dsn: str) -> None:
    with driver(mortal_dsn, 1.0) as subject:
        check(OUTAGE, replace(subject, outage=mortal_postgres))


@async_postgres_drivers
async def test_an_outage_for_asyncio(driver: OpenAsync, mortal_postgres: PrivatePostgres, mortal_dsn: str) -> None:
    async with driver(mortal_dsn, 1.0) as subject:
        await check_async(OUTAGE, replace(subject, outage=mortal_postgres))


def _told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncpg, cancelled while it connects, leaves a future behind that nobody asks: that one need not be told."""
    if str(context.get("exception")) != "unexpected connection_lost() call":
        loop.default_exception_handler(context)


@async_postgres_drivers
async def test_cancellation_on_postgres(driver: OpenAsync, dsn: str) -> None:
    asyncio.get_running_loop().set_exception_handler(_told)
    async with driver(dsn, PATIENCE_S) as subject:
        await check_cancellation(subject)


@async_sqlite_drivers
async def test_cancellation_on_sqlite(driver: OpenAsync, sqlite_path: Path) -> None:
    async with driver(str(sqlite_path), PATIENCE_S) as subject:
        await check_cancellation(subject)
