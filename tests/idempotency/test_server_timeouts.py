"""The lease is `lease_s`, whatever time-outs the server has of its own: longer ones, shorter ones, of both kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from onefold._app.migrations import MIGRATIONS
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.model import Ask
from onefold._idempotency.unkeyed import UnkeyedStore, unkeyed_ask
from onefold._inbox.handling_flows import HandlingFlows
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.plain_transaction import PlainTransaction
from onefold._kernel.runners import run_async
from onefold.db._migrations import migrate
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.testing.servers import PrivatePostgres
from tests.support.patience import PATIENCE_S


def with_key(lease_s: float) -> Flow[Any]:
    ask = Ask(digest=b"d" * 16, fingerprint=b"f" * 16, operation="POST /", lease_s=lease_s, retention_s=3600.0)
    return LockedStore().claim(ask)


def without_key(lease_s: float) -> Flow[Any]:
    return UnkeyedStore(PlainTransaction(lazily=False)).claim(unkeyed_ask("POST /", lease_s))


def of_a_message(lease_s: float) -> Flow[Any]:
    return HandlingFlows("postgres", "mail", "m-1", lease_s=lease_s).begin()


every_transaction = pytest.mark.parametrize("opening", [with_key, without_key, of_a_message])


class Backend:
    """A migrated database, and a connection that watches the others."""

    def __init__(self, dsn: str, watcher: asyncpg.Connection[asyncpg.Record]) -> None:
        self.dsn = dsn
        self.watcher = watcher

    async def set_defaults(self, span: str) -> None:
        """For the sessions that begin from now on."""
        name = await self.watcher.fetchval("SELECT current_database()")
        there = await self.watcher.fetch("SELECT name FROM pg_settings WHERE name = ANY ($1)", [*TIMEOUTS])
        for (timeout,) in there:
            await self.watcher.execute(f"ALTER DATABASE \"{name}\" SET {timeout} = '{span}'")

    async def age_s(self, pid: int) -> float | None:
        """For how long a session has had its transaction; None once it is gone. The server does not hurry to answer."""
        await self.watcher.execute("SELECT pg_sleep(0.02)")
        age = await self.watcher.fetchval(
            "SELECT extract(epoch FROM clock_timestamp() - xact_start) FROM pg_stat_activity WHERE pid = $1", pid
        )
        return None if age is None else float(age)


TIMEOUTS = ("transaction_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture(params=["postgres", "postgres_16"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    server: PrivatePostgres = request.getfixturevalue(request.param)
    dsn = server.fresh_database()
    database = AsyncpgDatabase(dsn)
    await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
    await database.close()
    watcher = await asyncpg.connect(dsn)
    yield Backend(dsn, watcher)
    await watcher.close()


@every_transaction
async def test_a_transaction_ends_with_its_lease_where_the_server_grants_more(
    backend: Backend, opening: Callable[[float], Flow[Any]]
) -> None:
    await backend.set_defaults("1h")
    database = AsyncpgDatabase(backend.dsn)
    executor: TaskExecutor[Any] = TaskExecutor(database)
    await run_async(opening(0.2), executor)
    pid: int = executor.connection.handle.get_server_pid()
    async with asyncio.timeout(PATIENCE_S):
        while await backend.age_s(pid) is not None:
            pass
    await executor.discard()
    await database.close()


@every_transaction
async def test_a_transaction_lasts_for_its_lease_where_the_server_grants_less(
    backend: Backend, opening: Callable[[float], Flow[Any]]
) -> None:
    await backend.set_defaults("300ms")
    database = AsyncpgDatabase(backend.dsn)
    executor: TaskExecutor[Any] = TaskExecutor(database)
    await run_async(opening(600.0), executor)
    handle = executor.connection.handle
    pid: int = handle.get_server_pid()
    async with asyncio.timeout(PATIENCE_S):
        while (age_s := await backend.age_s(pid)) is not None and age_s < 1.0:
            pass
    assert age_s is not None, "the server has ended it by its own time-out"
    assert await handle.fetchval("SELECT 1") == 1
    await executor.discard()
    await database.close()
