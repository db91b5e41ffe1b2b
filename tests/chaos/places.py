"""Where a message's path runs: a database, a broker, a topic and a consumer, as a value that a process can be sent.

Leases are short here, so that a takeover is a matter of a second; what a busy machine may add to them is MARGIN_S, and
a wait ends as soon as what it waits for is there.
NATS is told to forget duplicates at once: they shall reach the inbox, not end at the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._inbox.consumer import Order
from onefold._inbox.failed_messages import list_failed
from onefold._kernel.effects import Row, Statement
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._kernel.transaction import Transaction
from onefold.brokers.kafka import KafkaBroker
from onefold.brokers.local import LocalBroker
from onefold.brokers.nats import NatsBroker
from onefold.brokers.rabbitmq import RabbitBroker
from onefold.brokers.redis import RedisBroker
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import async_sqlite
from onefold.telemetry import Listener
from tests.chaos.ledger_checks import Event, Written
from tests.support.crash import Boundaries

LEASE_S = 0.5
MARGIN_S = 120.0

#: For how long a handler may run. A transaction that takes longer is ended, and a busy machine takes its time.
HANDLER_S = 2.0

ARRIVALS = {
    "sqlite": "CREATE TABLE arrivals (place INTEGER PRIMARY KEY AUTOINCREMENT, consumer, event, key, version)",
    "postgres": (
        "CREATE TABLE arrivals (place bigserial PRIMARY KEY, consumer text, event text, key text, version bigint)"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One path. `database` is a file or a DSN, `broker` is "local" or a URL."""

    database: str
    broker: str
    topic: str
    consumer: str
    order: Order = "strict"

    @property
    def on_sqlite(self) -> bool:
        return "://" not in self.database

    def open(self) -> AsyncDatabase[Any]:
        return async_sqlite(self.database, busy_timeout_s=2.0) if self.on_sqlite else AsyncpgDatabase(self.database)

    def reach(self, database: AsyncDatabase[Any]) -> Broker:
        """The broker, not yet open."""
        scheme, _, rest = self.broker.partition("://")
        match scheme:
            case "local":
                return LocalBroker(database, lease_s=LEASE_S)
            case "nats":
                return NatsBroker(
                    self.broker, stream="campaigns", confirm_s=15.0, ack_wait_s=LEASE_S, duplicate_window_s=0.1
                )
            case "redis":
                return RedisBroker(self.broker, confirm_s=15.0, lease_s=LEASE_S)
            case "amqp":
                return RabbitBroker(self.broker, queue_type="classic", confirm_s=15.0)
            case "kafka":
                # Only the mock accepts sessions this short.
                sessions = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 200}
                return KafkaBroker(rest, confirm_s=15.0, settings=sessions)
            case other:
                raise AssertionError(f"no broker speaks {other}")


def shop(
    place: Place,
    database: AsyncDatabase[Any],
    broker: Callable[[], Broker],
    *,
    listener: Listener | None = None,
    boundaries: Boundaries | None = None,
) -> AsyncOnefold:
    """The application of a place: its consumer writes down what arrives, in the handler's transaction."""
    once = AsyncOnefold(database, source="shop", broker=broker, listener=listener)
    consume(once, place, boundaries or Boundaries())
    return once


def consume(once: AsyncOnefold, place: Place, boundaries: Boundaries) -> None:
    @once.consumer(
        place.consumer, topic=place.topic, order=place.order, lease_s=HANDLER_S, retry_base_s=0.1, concurrency=4
    )
    async def arrive(message: Message, tx: Transaction[Any]) -> None:
        values = (place.consumer, message.id, message.key, message.version)
        connection = tx.connection
        with boundaries.around_step("insert"):
            if place.on_sqlite:
                sql = "INSERT INTO arrivals (consumer, event, key, version) VALUES (?, ?, ?, ?)"
                await connection.execute(sql, values)
            else:
                sql = "INSERT INTO arrivals (consumer, event, key, version) VALUES ($1, $2, $3, $4)"
                await connection.execute(sql, *values)


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[AsyncDatabase[Any]]:
    database = place.open()
    try:
        yield database
    finally:
        await database.close()


async def rows(database: AsyncDatabase[Any], sql: str) -> list[Row]:
    executor: TaskExecutor[Any] = TaskExecutor(database)
    await executor.acquire()
    try:
        return await executor.fetch(Statement(sql))
    finally:
        await executor.release()


async def arrivals(database: AsyncDatabase[Any], consumer: str) -> list[Event]:
    found = await rows(
        database, f"SELECT event, key, version FROM arrivals WHERE consumer = '{consumer}' ORDER BY place"
    )
    return [Event(*row) for row in found]


async def write(once: AsyncOnefold, topic: str, *, keys: int = 2, events: int = 2) -> Written:
    """So many events of each of so many keys, a transaction each; and one transaction that fails."""
    written = Written()
    for number in range(events):
        for key in range(keys):
            async with once.transaction() as tx:
                name = await tx.publish(topic, {"number": number}, key=f"k{key}")
            written.committed.add(name)
    try:
        async with once.transaction() as tx:
            written.undone.add(await tx.publish(topic, {"number": -1}, key="k0"))
            raise LookupError("the order was not to be")
    except LookupError:
        pass
    return written


async def subscribe(place: Place, database: AsyncDatabase[Any]) -> None:
    """Where a broker keeps nothing for those it has never heard of, let it hear of the consumer."""
    if place.broker.partition("://")[0] in ("local", "amqp"):
        broker = place.reach(database)
        await broker.open()
        subscription = await broker.subscribe(place.consumer, [place.topic])
        await subscription.close()
        await broker.close()


async def leftovers(place: Place, database: AsyncDatabase[Any]) -> list[str]:
    """What should not be left when everything has arrived."""
    [(waiting,)] = await rows(database, f"SELECT count(*) FROM onefold_outbox WHERE topic = '{place.topic}'")
    found = [f"{waiting} events are still in the outbox"] if waiting else []
    once = shop(place, database, lambda: place.reach(database))
    failed_messages = await run_flow(once, lambda dialect: list_failed(dialect, place.consumer))
    return found + [
        f"message {failed_message.id} is a {failed_message.state} letter: {failed_message.reason}"
        for failed_message in failed_messages
    ]


async def until(true: Callable[[], Any], *, within_s: float) -> bool:
    """Whether it came true in time. Looks ten times a second: every look is a query, and dozens wait at once."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not await true():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True
