"""A migrated database for the inbox, on SQLite or Postgres, with a table of effects, and hands to act with."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from onefold._inbox.consumer import Consumer
from onefold._inbox.failed_messages import list_failed, take
from onefold._inbox.handling import Inbox
from onefold._inbox.schema import MIGRATIONS
from onefold._inbox.stored_message import FailedMessage
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Flow, Row, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.messages import Delivery, Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run, run_async
from onefold._kernel.telemetry.consumer_events import InboxEvent
from onefold._kernel.transaction import Transaction
from onefold._outbox.schema import MIGRATIONS as OUTBOX
from onefold._outbox.write import Outbox
from onefold.db._drivers import sync_database
from onefold.db._migrations import migrate
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import async_sqlite

EPOCH = 1_000


class Backend:
    """What tests of the inbox share."""

    def __init__(self, database: AsyncDatabase[Any]) -> None:
        self.database = database
        self.dialect = database.dialect
        self.outbox = Outbox(dialect=self.dialect, source="tests")
        self.events: list[Any] = []
        #: The messages that handlers were called with, whether or not it came to anything.
        self.calls: list[str] = []

    async def flow(self, flow: Flow[Any]) -> Any:
        return await run_async(flow, TaskExecutor(self.database))

    async def rows(self, sql: str) -> list[Row]:
        return await self.flow(with_connection(lambda: _rows(sql)))  # type: ignore[no-any-return]

    async def effects(self) -> list[str]:
        """What handlers did, as far as it is committed."""
        return [name for (name,) in await self.rows("SELECT id FROM effects ORDER BY id")]

    async def ledger(self) -> list[str]:
        return [name for (name,) in await self.rows("SELECT message_id FROM onefold_inbox ORDER BY message_id")]

    async def failed_messages(self, consumer: str = "billing") -> dict[str, FailedMessage]:
        found: list[FailedMessage] = await self.flow(list_failed(self.dialect, consumer))
        return {failed_message.id: failed_message for failed_message in found}

    async def write(self, tx: Transaction[Any], name: str) -> None:
        """An effect, in the handler's transaction."""
        if self.dialect == "postgres":
            await tx.connection.execute("INSERT INTO effects VALUES ($1)", name)
        else:
            await tx.connection.execute("INSERT INTO effects VALUES (?)", (name,))

    async def handler(self, message: Message, tx: Transaction[Any]) -> None:
        """What handlers do here, if nothing else is said."""
        self.calls.append(message.id)
        await self.write(tx, message.id)

    def consumer(self, handler: Callable[..., Any] | None = None, **settings: Any) -> Consumer:
        return Consumer(name="billing", topics=("order.placed",), handler=handler or self.handler, **settings)

    def inbox(self, handler: Callable[..., Any] | None = None, **settings: Any) -> Inbox:
        return Inbox(self.consumer(handler, **settings), self.dialect, draw=random.random, listener=self.events.append)

    def executor(self, database: AsyncDatabase[Any] | None = None) -> tuple[TaskExecutor[Any], OwnedTransaction[Any]]:
        executor: TaskExecutor[Any] = TaskExecutor(database or self.database)
        return executor, OwnedTransaction(executor, self.outbox.new_buffer)

    async def deliver(self, inbox: Inbox, message: Message, *, redelivered: bool = False) -> InboxEvent:
        return await self.hand(inbox, delivery(message, redelivered=redelivered))

    async def hand(self, inbox: Inbox, given: Delivery, database: AsyncDatabase[Any] | None = None) -> InboxEvent:
        executor, tx = self.executor(database)
        return await run_async(inbox.handle(given, tx), executor)

    async def run_due(self, inbox: Inbox) -> list[InboxEvent]:
        """Run every failed message that is due, and what becomes due by that, until none is."""
        events: list[InboxEvent] = []
        while failed_messages := [
            *await self.flow(take(inbox, 100)),
            *await self.flow(take(inbox, 1, suspects=True, listener=self.events.append)),
        ]:
            for failed_message in failed_messages:
                executor, tx = self.executor()
                events.append(await run_async(inbox.run_failed(failed_message, tx), executor))
        return events

    async def hours_pass(self) -> None:
        """Whatever waits for a time waits no longer."""
        for table, column in (("onefold_letter", "due_at"), ("onefold_progress", "settle_at")):
            if self.dialect == "postgres":
                await self.change(
                    f"UPDATE {table} SET {column} = now() - interval '1 second' WHERE {column} IS NOT NULL"
                )
            else:
                await self.change(f"UPDATE {table} SET {column}_ms = 1 WHERE {column}_ms IS NOT NULL")

    async def change(self, sql: str) -> None:
        await self.flow(with_connection(lambda: _changed(sql)))


async def _rows(sql: str) -> list[Row]:
    return await Fetch(Statement(sql))


async def _changed(sql: str) -> int:
    return await Batch((Boundary.BEGIN, Statement(sql), Boundary.COMMIT))


def message(name: str = "m1", *, key: str | None = None, version: int | None = None, **more: Any) -> Message:
    epoch = None if version is None else more.pop("epoch", EPOCH)
    fields = {"source": "shop", "topic": "order.placed", "data": b"{}", **more}
    return Message(id=name, key=key, version=version, epoch=epoch, **fields)


def delivery(given: Message, *, redelivered: bool = False) -> Delivery:
    return Delivery(data=given.data, headers={"ce-id": given.id}, message=given, redelivered=redelivered)


def create_tables(address: str) -> None:
    with closing(sync_database(address)) as database:
        executor = ThreadExecutor(database)
        run(migrate(database.dialect, {**OUTBOX[database.dialect], **MIGRATIONS[database.dialect]}), executor)
        run(with_connection(lambda: _changed("CREATE TABLE effects (id text NOT NULL)")), executor)


@asynccontextmanager
async def sqlite_backend(path: Path) -> AsyncIterator[Backend]:
    create_tables(str(path))
    database = async_sqlite(path)
    yield Backend(database)
    await database.close()


@asynccontextmanager
async def postgres_backend(dsn: str) -> AsyncIterator[Backend]:
    """Over a database that has its tables."""
    async with asyncpg.create_pool(dsn, min_size=0, max_size=12) as pool:
        yield Backend(AsyncpgDatabase(pool))


def backend_of(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Backend]:
    """The backend that a fixture's parameter names."""
    if request.param == "sqlite":
        return sqlite_backend(request.getfixturevalue("sqlite_path"))
    return postgres_backend(request.getfixturevalue("inbox_dsn"))
