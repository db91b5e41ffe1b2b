"""The local broker on both databases, as the conformance suite sees it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold.brokers._local_schema import MIGRATIONS
from onefold.brokers.local import LocalBroker
from onefold.brokers.local._sql import STATEMENTS
from onefold.db._drivers import async_database
from onefold.db._migrations import migrate
from onefold.testing.conformance.brokers import BrokerSubject
from onefold.testing.servers import PrivatePostgres

LEASE_S = 1.0


@asynccontextmanager
async def _subject(address: str) -> AsyncIterator[BrokerSubject]:
    database: AsyncDatabase[Any] = async_database(address)
    await run_async(migrate(database.dialect, MIGRATIONS[database.dialect]), TaskExecutor(database))

    async def inject(topic: str, data: bytes) -> None:
        async def write() -> None:
            row = STATEMENTS[database.dialect].deliver(topic, "foreign", "{}", data)
            await Batch((Boundary.BEGIN, row, Boundary.COMMIT))

        await run_async(with_connection(write), TaskExecutor(database))

    try:
        yield BrokerSubject(broker=lambda: LocalBroker(database, lease_s=LEASE_S), inject=inject, lease_s=LEASE_S)
    finally:
        await database.close()


@asynccontextmanager
async def local_on_sqlite(server: None) -> AsyncIterator[BrokerSubject]:
    with tempfile.TemporaryDirectory() as folder:
        async with _subject(str(Path(folder) / "local.db")) as subject:
            yield subject


@asynccontextmanager
async def local_on_postgres(server: PrivatePostgres) -> AsyncIterator[BrokerSubject]:
    async with _subject(server.fresh_database()) as subject:
        yield subject
