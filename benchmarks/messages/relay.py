"""Draining a backlog from Postgres into NATS JetStream, one process: onefold's relay beside what teams write.

The clock runs from when a relay holds its buckets, or a loop its connections, until the last row is marked. Afterwards
the stream has as many messages as there were rows, and nothing waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

import asyncpg
import nats
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from benchmarks.messages.brokers import NullBroker
from benchmarks.messages.comparison import Contestant, Grounds, Outcome, race, raced_outcome
from benchmarks.messages.places import (
    ORDER_BYTES,
    PLAIN_FILL,
    TOPIC,
    Connection,
    Keys,
    Pool,
    count_of,
    fresh_pool,
    hot,
    insist,
    none,
    publish_all,
    uniform,
)
from onefold import AsyncOnefold
from onefold.brokers.nats import NatsBroker
from onefold.telemetry import BucketsHeld, Event, Relayed

FLOOR: Final = 4.0
BATCH: Final = 100
BASE: Final = "textbook: one by one"

_SELECT: Final = (
    "SELECT id, event_id, topic, payload FROM plain_outbox WHERE published_at IS NULL "
    f"ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
)
_MARK: Final = "UPDATE plain_outbox SET published_at = now() WHERE id = $1"
_MARK_ALL: Final = "UPDATE plain_outbox SET published_at = now() WHERE id = ANY ($1::bigint[])"

PublishRows: TypeAlias = Callable[[Connection, JetStreamContext, str, list[Any]], Awaitable[None]]


async def measure(grounds: Grounds) -> Outcome:
    effort = grounds.effort
    async with AsyncExitStack() as stack:

        async def ours(name: str, keys: Keys, *, null: bool = False, floor: float | None = None) -> Contestant:
            pool = await stack.enter_async_context(fresh_pool(grounds))
            stand = _Onefold(pool, keys, effort.backlog, None if null else (grounds.nats.url, name.replace(" ", "_")))
            return Contestant(name=name, turn=stand.turn, floor=floor)

        async def theirs(name: str, stream: str, publish: PublishRows, rows: int) -> Contestant:
            pool = await stack.enter_async_context(fresh_pool(grounds))
            client = await nats.connect(grounds.nats.url)
            stack.push_async_callback(client.close)
            stand = _Loop(pool, client.jetstream(), stream, publish, rows)
            await stand.make_stream()
            return Contestant(name=name, turn=stand.turn)

        contestants = [
            await theirs(BASE, "textbook", _one_by_one, effort.one_by_one),
            await theirs("gathered, one UPDATE per 100", "gathered", _gathered, effort.backlog),
            await ours("onefold uniform", uniform, floor=FLOOR),
            await ours("onefold unkeyed", none, floor=FLOOR),
            await ours("onefold hot", hot),
            await ours("onefold uniform, null broker", uniform, null=True),
        ]
        raced = await race(contestants, base=BASE, rounds=effort.rounds, say=grounds.say)
    return raced_outcome("Relay, Postgres to NATS JetStream, one process, rows", raced)


class _Onefold:
    """onefold's relay, as an application starts it."""

    def __init__(self, pool: Pool, keys: Keys, rows: int, stream: tuple[str, str] | None) -> None:
        self._pool = pool
        self._keys = keys
        self._rows = rows
        self._stream = stream
        self._published = 0
        self._since = self._until = 0.0
        self._drained = asyncio.Event()
        self._left = 0
        broker = NullBroker if stream is None else lambda: NatsBroker(stream[0], stream=stream[1])
        self._once = AsyncOnefold(pool, source="shop", broker=broker, listener=self._hear)

    async def turn(self) -> float:
        await self._pool.execute("VACUUM onefold_outbox, onefold_stream")
        await publish_all(self._once, self._rows, self._keys)
        self._left = self._rows
        self._drained.clear()
        stop = asyncio.Event()
        relay = asyncio.create_task(self._once.relay(stop))
        waiting = asyncio.create_task(self._drained.wait())
        await asyncio.wait((relay, waiting), return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        waiting.cancel()
        await relay
        self._published += self._rows
        insist("rows that onefold left behind", await count_of(self._pool, "onefold_outbox"), 0)
        if self._stream is not None:
            insist("messages in onefold's stream", await _messages_in(*self._stream), self._published)
        return self._rows / (self._until - self._since)

    def _hear(self, event: Event) -> None:
        match event:
            case BucketsHeld():
                self._since = time.perf_counter()
            case Relayed():
                self._left -= event.published
                if self._left <= 0:
                    self._until = time.perf_counter()
                    self._drained.set()
            case _:
                pass


class _Loop:
    """SELECT ... FOR UPDATE SKIP LOCKED, publish, UPDATE, COMMIT, and again."""

    def __init__(self, pool: Pool, stream: JetStreamContext, name: str, publish: PublishRows, rows: int) -> None:
        self._pool = pool
        self._jetstream = stream
        self._name = name
        self._publish = publish
        self._rows = rows
        self._published = 0

    async def make_stream(self) -> None:
        await self._jetstream.add_stream(StreamConfig(name=self._name, subjects=[f"{self._name}.>"]))

    async def turn(self) -> float:
        await self._pool.execute("VACUUM plain_outbox")
        await self._pool.execute(PLAIN_FILL, TOPIC, ORDER_BYTES, self._rows)
        left = self._rows
        async with self._pool.acquire() as connection:
            since = time.perf_counter()
            while left > 0:
                async with connection.transaction():
                    rows = await connection.fetch(_SELECT)
                    await self._publish(connection, self._jetstream, self._name, rows)
                left -= len(rows)
            took = time.perf_counter() - since
        self._published += self._rows
        info = await self._jetstream.stream_info(self._name)
        insist(f"messages in the stream {self._name}", info.state.messages, self._published)
        insist("rows left behind", await count_of(self._pool, "plain_outbox", "published_at IS NULL"), 0)
        return self._rows / took


async def _one_by_one(
    connection: Connection, jetstream: JetStreamContext, stream: str, rows: list[asyncpg.Record]
) -> None:
    for row in rows:
        await _published(jetstream, stream, row)
        await connection.execute(_MARK, row["id"])


async def _gathered(
    connection: Connection, jetstream: JetStreamContext, stream: str, rows: list[asyncpg.Record]
) -> None:
    await asyncio.gather(*(_published(jetstream, stream, row) for row in rows))
    await connection.execute(_MARK_ALL, [row["id"] for row in rows])


async def _published(jetstream: JetStreamContext, stream: str, row: asyncpg.Record) -> None:
    headers = {"Nats-Msg-Id": row["event_id"]}
    await jetstream.publish(f"{stream}.{row['topic']}", row["payload"], headers=headers)


async def _messages_in(url: str, stream: str) -> int:
    client = await nats.connect(url)
    info = await client.jetstream().stream_info(stream)
    await client.close()
    return info.state.messages
