"""What a message costs, counted instead of timed: the same on every machine, and so fit to fail a build.

On Postgres: round trips and statements (answers counted on the wire) and bytes of WAL, one message after the other on
one connection. On SQLite: statements and commits. `LIMITS` is the pinned table: it changes when the protocol of outbox,
relay or inbox does, on purpose, and in the same commit. BEGIN, COMMIT and the pool's reset of a session (four) count as
statements. The NOTIFY after commits, at most 200 a second, is left out.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import asyncpg

from benchmarks.guards import Counts, Limit, Unit, Verdict, commits, traced_sqlite, wal_position
from benchmarks.load import HOST
from benchmarks.messages.brokers import NullBroker, delivery_of, messages_of
from benchmarks.messages.comparison import Grounds, Outcome, counted_outcome
from benchmarks.messages.local_way import LOCAL_LIMITS, count_local, without_notify
from benchmarks.messages.places import (
    ACCOUNT,
    BUSINESS_INSERT,
    BUSINESS_INSERT_MANY,
    ORDER,
    ORDER_BYTES,
    SOURCE,
    TOPIC,
    Keys,
    fresh_place,
    publish_all,
    uniform,
)
from benchmarks.wire import counting_proxy
from onefold import AsyncOnefold
from onefold._inbox.consumer import Consumer, Order
from onefold._inbox.handling import Inbox
from onefold._kernel.executors import BrokerExecutor, TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession
from onefold.db._drivers import async_database

WARM_UP: Final = 100
COUNTED: Final = 500
RELAYED: Final = 4_000
BATCH: Final = 100

ABOVE: Final = "above its transaction"

#: `transaction` is `once.transaction()` with the business row, `plain transaction` the same without onefold. A relay's
#: batches may come out a little smaller than they might be, so what they share out has some room, and so has WAL.
LIMITS: Final = (
    Limit(subject="asyncpg plain transaction", unit="round trips", most=4),
    Limit(subject="asyncpg plain transaction", unit="statements", most=7),
    Limit(subject="asyncpg transaction", unit="round trips", most=3),
    Limit(subject="asyncpg transaction", unit="statements", most=9),
    Limit(subject="asyncpg publish to a known key, above its transaction", unit="round trips", most=0),
    Limit(subject="asyncpg publish to a known key, above its transaction", unit="statements", most=3),
    Limit(subject="asyncpg publish to a known key, above its transaction", unit="WAL bytes", most=880),
    Limit(subject="asyncpg publish to a new key, above its transaction", unit="round trips", most=0),
    Limit(subject="asyncpg publish to a new key, above its transaction", unit="statements", most=3),
    Limit(subject="asyncpg publish to a new key, above its transaction", unit="WAL bytes", most=1040),
    Limit(subject="asyncpg relay, batches of 1000", unit="round trips", most=0.0025),
    Limit(subject="asyncpg relay, batches of 1000", unit="statements", most=0.0025),
    Limit(subject="asyncpg relay, batches of 1000", unit="WAL bytes", most=75),
    Limit(subject="asyncpg relay, batches of 1", unit="round trips", most=2),
    Limit(subject="asyncpg relay, batches of 1", unit="statements", most=2),
    Limit(subject="asyncpg relay, batches of 1", unit="WAL bytes", most=260),
    Limit(subject="asyncpg consume", unit="round trips", most=3),
    Limit(subject="asyncpg consume, above its transaction", unit="statements", most=2),
    Limit(subject="asyncpg consume, above its transaction", unit="WAL bytes", most=435),
    Limit(subject="asyncpg consume, order=strict", unit="round trips", most=3),
    Limit(subject="asyncpg consume, order=strict, above its transaction", unit="statements", most=7),
    Limit(subject="asyncpg consume, order=strict, above its transaction", unit="WAL bytes", most=845),
    Limit(subject="asyncpg consume, batches of 100", unit="round trips", most=0.04),
    Limit(subject="asyncpg consume, batches of 100", unit="statements", most=0.12),
    Limit(subject="asyncpg consume, batches of 100, above its transaction", unit="WAL bytes", most=400),
    Limit(subject="sqlite publish to a known key, above its transaction", unit="statements", most=2),
    Limit(subject="sqlite publish to a known key, above its transaction", unit="commits", most=0),
    Limit(subject="sqlite publish to a new key, above its transaction", unit="statements", most=2),
    Limit(subject="sqlite publish to a new key, above its transaction", unit="commits", most=0),
    Limit(subject="sqlite relay, batches of 1000", unit="statements", most=0.0075),
    Limit(subject="sqlite relay, batches of 1000", unit="commits", most=0.0025),
    Limit(subject="sqlite relay, batches of 1", unit="statements", most=6),
    Limit(subject="sqlite relay, batches of 1", unit="commits", most=2),
    Limit(subject="sqlite consume, above its transaction", unit="statements", most=2),
    Limit(subject="sqlite consume, above its transaction", unit="commits", most=0),
    Limit(subject="sqlite consume, order=strict, above its transaction", unit="statements", most=6),
    Limit(subject="sqlite consume, order=strict, above its transaction", unit="commits", most=0),
    Limit(subject="sqlite consume, batches of 100", unit="statements", most=0.05),
    Limit(subject="sqlite consume, batches of 100", unit="commits", most=0.01),
)

Reading: TypeAlias = dict[Unit, float]
Read: TypeAlias = Callable[[], Awaitable[Reading]]
WriteRow: TypeAlias = Callable[[Any], Awaitable[object]]
WriteRows: TypeAlias = Callable[[Any, int], Awaitable[object]]


async def measure(grounds: Grounds) -> Outcome:
    """Count everything LIMITS names."""
    counts: Counts = {}
    grounds.say("counting on Postgres")
    with without_notify():
        await _count_postgres(grounds, counts)
        await count_local(await fresh_place(grounds), grounds.postgres.port, counts)
    grounds.say("counting on SQLite")
    with tempfile.TemporaryDirectory() as folder:
        await _count_sqlite(Path(folder) / "counted.db", counts)
    for (subject, unit), found in list(counts.items()):
        kind, _, what = subject.partition(" ")
        base = (f"{kind} transaction", unit)
        if what.startswith(("publish", "consume")) and base in counts:
            counts[f"{subject}, {ABOVE}", unit] = found - counts[base]
    verdicts = [
        Verdict(limit=limit, found=counts.get((limit.subject, limit.unit))) for limit in (*LIMITS, *LOCAL_LIMITS)
    ]
    return counted_outcome("Counted per message", verdicts)


async def _count_postgres(grounds: Grounds, counts: Counts) -> None:
    place = await fresh_place(grounds)
    watcher = await asyncpg.connect(place)
    async with counting_proxy(HOST, grounds.postgres.port) as (wire, port):
        through = place.replace(f":{grounds.postgres.port}/", f":{port}/")

        async def read() -> Reading:
            log, _ = await wal_position(watcher)
            return {"round trips": wire.cycles, "statements": wire.statements, "WAL bytes": log}

        async with asyncpg.create_pool(through, min_size=1, max_size=1) as pool:

            async def write_rows(connection: Any, rows: int) -> object:
                return await connection.execute(BUSINESS_INSERT_MANY, [ACCOUNT] * rows, [ORDER_BYTES] * rows)

            async def plain(times: int) -> int:
                for _ in range(times):
                    async with pool.acquire() as connection, connection.transaction():
                        await connection.execute(BUSINESS_INSERT, ACCOUNT, ORDER_BYTES)
                return times

            await watcher.execute("CHECKPOINT")
            await plain(WARM_UP)
            await _Tally("asyncpg", read, counts).of("plain transaction", plain(COUNTED))
            shop = _Shop(
                AsyncOnefold(pool, source=SOURCE),
                async_database(pool),
                lambda connection: connection.execute(BUSINESS_INSERT, ACCOUNT, ORDER_BYTES),
                write_rows,
            )
            await _count_all(shop, _Tally("asyncpg", read, counts))
    await watcher.close()


async def _count_sqlite(path: Path, counts: Counts) -> None:
    insert = "INSERT INTO orders (account, body) VALUES (?, ?)"
    insert_many = "INSERT INTO orders (account, body) SELECT ?1, ?2 FROM"
    made = sqlite3.connect(path)
    made.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, account TEXT NOT NULL, body BLOB NOT NULL)")
    made.close()
    with traced_sqlite() as statements:

        async def read() -> Reading:
            return {"statements": len(statements), "commits": sum(map(commits, statements))}

        async def write_rows(connection: Any, rows: int) -> object:
            numbers = json.dumps(list(range(rows)))
            return await connection.execute(f"{insert_many} json_each(?3)", (ACCOUNT, ORDER_BYTES, numbers))

        once = AsyncOnefold(path, source=SOURCE)
        database = async_database(path)
        shop = _Shop(once, database, lambda connection: connection.execute(insert, (ACCOUNT, ORDER_BYTES)), write_rows)
        await _count_all(shop, _Tally("sqlite", read, counts))
        await database.close()
        await once.close()


class _Tally:
    """Counts what happens during a piece of work, which answers for how many messages it was."""

    def __init__(self, kind: str, read: Read, counts: Counts) -> None:
        self._kind = kind
        self._read = read
        self._counts = counts

    async def of(self, subject: str, work: Awaitable[int]) -> None:
        before = await self._read()
        messages = await work
        after = await self._read()
        for unit, reading in after.items():
            self._counts[f"{self._kind} {subject}", unit] = (reading - before[unit]) / messages


async def _count_all(shop: _Shop, tally: _Tally) -> None:
    """Each after a warm-up, which prepares statements and pays for the first images of pages."""
    for subject, keys in (
        ("transaction", None),
        ("publish to a known key", lambda: "order-1"),
        ("publish to a new key", _Numbered().next),
    ):
        await shop.transact(WARM_UP, keys)
        await tally.of(subject, shop.transact(COUNTED, keys))
    for batch in (1000, 1):
        await shop.empty_outbox()
        rows = RELAYED if batch > 1 else COUNTED
        await publish_all(shop.once, rows + 3 * batch, uniform)  # a claim may bring fewer than it may
        relay = await shop.relay(batch)
        await relay.send(batch)
        await tally.of(f"relay, batches of {batch}", relay.send(rows))
        await relay.leave()
    orders: tuple[Order, ...] = ("none", "strict")
    for order in orders:
        await shop.consume(WARM_UP, order)
        named = "consume" if order == "none" else f"consume, order={order}"
        await tally.of(named, shop.consume(COUNTED, order))
    await shop.consume_batches(2)
    await tally.of(f"consume, batches of {BATCH}", shop.consume_batches(5))


class _Numbered:
    """Keys that nobody had before."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"new-{self._count}"


class _Shop:
    """One application and what it does, one thing after the other; without workers, whose polls would be counted."""

    def __init__(
        self, once: AsyncOnefold, database: AsyncDatabase[Any], write_row: WriteRow, write_rows: WriteRows
    ) -> None:
        self.once = once
        self._database = database
        self._write_row = write_row
        self._write_rows = write_rows

    async def transact(self, times: int, keys: Keys | None) -> int:
        for _ in range(times):
            async with self.once.transaction() as tx:
                await self._write_row(tx.connection)
                if keys is not None:
                    await tx.publish(TOPIC, ORDER, key=keys())
        return times

    async def empty_outbox(self) -> None:
        async with self.once.transaction() as tx:
            await tx.connection.execute("DELETE FROM onefold_outbox")

    async def relay(self, batch: int) -> _Relay:
        relay = _Relay(self._database, batch)
        await relay.enter()
        return relay

    async def consume(self, times: int, order: Order) -> int:
        async def ship(message: Message, tx: Transaction[Any]) -> None:
            await self._write_row(tx.connection)

        inbox = self._inbox(ship, order=order)
        for message in messages_of(times, source=SOURCE, topic=TOPIC, data=ORDER_BYTES):
            executor: TaskExecutor[Any] = TaskExecutor(self._database)
            await run_async(inbox.handle(delivery_of(message), OwnedTransaction(executor)), executor)
        return times

    async def consume_batches(self, times: int) -> int:
        async def ship(messages: list[Message], tx: Transaction[Any]) -> None:
            await self._write_rows(tx.connection, len(messages))

        inbox = self._inbox(ship, batch=BATCH)
        for _ in range(times):
            deliveries = [
                delivery_of(message) for message in messages_of(BATCH, source=SOURCE, topic=TOPIC, data=ORDER_BYTES)
            ]
            executor: TaskExecutor[Any] = TaskExecutor(self._database)
            if await run_async(inbox.handle_batch(deliveries, OwnedTransaction(executor)), executor) is None:
                raise SystemExit("a batch failed, so there is nothing to count")
        return times * BATCH

    def _inbox(self, handler: Callable[..., Any], *, order: Order = "none", batch: int = 1) -> Inbox:
        consumer = Consumer(name=f"shipping-{order}", topics=(TOPIC,), handler=handler, order=order, batch=batch)
        return Inbox(consumer, self._database.dialect, draw=lambda: 0.5)


class _Relay:
    """A relay that does nothing but tick."""

    def __init__(self, database: AsyncDatabase[Any], batch: int) -> None:
        self._database = database
        settings = RelayConfig(lease_s=3600, batch_max=batch)
        self._session = RelaySession(f"relay-{batch}", database.dialect, settings, lambda: 0.5)

    async def enter(self) -> None:
        await run_async(self._session.enter(), self._executor())

    async def send(self, rows: int) -> int:
        """At least so many, as far as claims bring them; how many it were."""
        total = 0
        while total < rows:
            sent = await run_async(self._session.tick(), self._executor())
            if not sent.confirmed:
                raise SystemExit(f"the relay found nothing to send, and {rows - total} rows should be there")
            total += len(sent.confirmed)
        return total

    async def leave(self) -> None:
        await run_async(self._session.leave(), self._executor())

    def _executor(self) -> BrokerExecutor[Any]:
        return BrokerExecutor(self._database, NullBroker())
