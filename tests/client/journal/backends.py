"""A database with the key journal in it, on SQLite or Postgres, whose intents can be made to be old."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from onefold._client.journal.flow import Journal
from onefold._client.journal.queries import intents
from onefold._client.journal.records import ClaimedKey, IntentView
from onefold._client.journal.schema import prepare
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Flow, Row, Statement
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import async_sqlite

PAY = "pay:ord-42"
HASH = b"h" * 16
TARGET = "POST https://bank.example/payments"
DAY_S = 86_400


class Backend:
    """What tests of the journal share."""

    def __init__(self, database: AsyncDatabase[Any]) -> None:
        self.database = database
        self.dialect = database.dialect
        self._keys = itertools.count(1)

    async def flow(self, flow: Flow[Any], database: AsyncDatabase[Any] | None = None) -> Any:
        return await run_async(flow, TaskExecutor(database or self.database))

    def journal(self, **settings: Any) -> Journal:
        """Its keys are key-1, key-2 and so on, here."""
        return Journal(self.dialect, **{"new_key": lambda: f"key-{next(self._keys)}", **settings})

    async def claim(
        self, journal: Journal, intent: str = PAY, fingerprint: bytes = HASH, target: str = TARGET
    ) -> ClaimedKey:
        return await self.flow(journal.claim(intent, fingerprint, target))  # type: ignore[no-any-return]

    async def unresolved(self) -> list[str]:
        return [each.intent for each in await self.listed()]

    async def listed(self, unresolved_only: bool = True) -> list[IntentView]:
        return await self.flow(intents(self.dialect, unresolved_only))  # type: ignore[no-any-return]

    async def age(self, intent: str, seconds: int, *columns: str) -> None:
        """What happened to the intent (all of it, or the columns named) happened so much earlier."""
        for column in columns or ("created_at", "resolved_at"):
            if self.dialect == "postgres":
                change = f"{column} = {column} - interval '{seconds} seconds'"
            else:
                change = f"{column}_ms = {column}_ms - {seconds * 1000}"
            await self.change(f"UPDATE onefold_intent SET {change} WHERE intent = '{intent}'")

    async def rows(self, sql: str) -> list[Row]:
        return await self.flow(with_connection(lambda: _rows(sql)))  # type: ignore[no-any-return]

    async def change(self, sql: str) -> None:
        await self.flow(with_connection(lambda: _changed(sql)))


async def _rows(sql: str) -> list[Row]:
    return await Fetch(Statement(sql))


async def _changed(sql: str) -> int:
    return await Batch((Boundary.BEGIN, Statement(sql), Boundary.COMMIT))


@asynccontextmanager
async def sqlite_backend(path: Path) -> AsyncIterator[Backend]:
    database = async_sqlite(path)
    backend = Backend(database)
    await backend.flow(prepare(backend.dialect))
    yield backend
    await database.close()


@asynccontextmanager
async def postgres_backend(dsn: str) -> AsyncIterator[Backend]:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=4) as pool:
        backend = Backend(AsyncpgDatabase(pool))
        await backend.flow(prepare(backend.dialect))
        yield backend


def backend_of(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Backend]:
    """The backend that a fixture's parameter names."""
    if request.param == "sqlite":
        return sqlite_backend(request.getfixturevalue("sqlite_path"))
    return postgres_backend(request.getfixturevalue("postgres_dsn"))
