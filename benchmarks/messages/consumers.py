"""Messages per second that a consumer on Postgres handles, one by one and in batches; its handler writes a row of each.

They come from memory, so that the broker is not what is measured, and once from NATS JetStream. The clock runs from the
subscription until the last message is handled: its row and its ledger row are committed then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

from benchmarks.messages.brokers import ClockedNats, MemoryBroker, messages_of
from benchmarks.messages.comparison import Contestant, Grounds, Outcome, race, raced_outcome
from benchmarks.messages.places import (
    ACCOUNT,
    BUSINESS_INSERT,
    BUSINESS_INSERT_MANY,
    ORDER_BYTES,
    SOURCE,
    TOPIC,
    Pool,
    count_of,
    fresh_pool,
    insist,
)
from onefold import AsyncOnefold
from onefold._inbox.consumer import Order
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.telemetry import Event, Handled

FLOOR: Final = 5.0
BATCH: Final = 100
#: A consumer's own, when it is not told otherwise.
CONCURRENCY: Final = 4
BASE: Final = "one by one"

MakeBroker: TypeAlias = Callable[[], MemoryBroker | ClockedNats]


async def measure(grounds: Grounds) -> Outcome:
    effort = grounds.effort
    async with AsyncExitStack() as stack:

        async def stand(
            name: str, broker: MakeBroker, *, batch: int = 1, order: Order = "none", floor: float | None = None
        ) -> Contestant:
            pool = await stack.enter_async_context(fresh_pool(grounds))
            messages = effort.messages * (5 if batch > 1 else 1)  # or it would be over in a moment
            consumer = _Consumer(pool, broker(), messages, batch=batch, order=order)
            return Contestant(name=name, turn=consumer.turn, floor=floor)

        def stream(name: str) -> MakeBroker:
            return lambda: ClockedNats(grounds.nats.url, stream=name)

        plain = await stack.enter_async_context(fresh_pool(grounds))
        contestants = [
            await stand(BASE, MemoryBroker),
            await stand("one by one, strict order", MemoryBroker, order="strict"),
            await stand(f"batches of {BATCH}", MemoryBroker, batch=BATCH, floor=FLOOR),
            await stand("one by one, NATS", stream("single")),
            await stand(f"batches of {BATCH}, NATS", stream("batched"), batch=BATCH),
            Contestant(name="no ledger: a transaction each", turn=_Bare(plain, effort.messages).turn),
        ]
        raced = await race(contestants, base=BASE, rounds=effort.rounds, say=grounds.say)
    return raced_outcome(f"Consumer on Postgres, concurrency {CONCURRENCY}, messages", raced)


class _Consumer:
    """onefold's consumer, as an application starts it."""

    def __init__(
        self, pool: Pool, broker: MemoryBroker | ClockedNats, messages: int, *, batch: int, order: Order
    ) -> None:
        self._pool = pool
        self._broker = broker
        self._messages = messages
        self._handled = self._expected = 0
        self._until = 0.0
        self._done = asyncio.Event()
        self._once = AsyncOnefold(pool, source="warehouse", broker=lambda: broker, listener=self._hear)
        mark = self._once.consumer("shipping", topic=TOPIC, order=order, batch=batch, concurrency=CONCURRENCY)
        mark(_ship_all if batch > 1 else _ship)

    async def turn(self) -> float:
        self._expected += self._messages
        await self._broker.put(messages_of(self._messages, source=SOURCE, topic=TOPIC, data=ORDER_BYTES))
        self._done.clear()
        stop = asyncio.Event()
        consuming = asyncio.create_task(self._once.consume(stop))
        waiting = asyncio.create_task(self._done.wait())
        await asyncio.wait((consuming, waiting), return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        waiting.cancel()
        await consuming
        insist("orders handled", await count_of(self._pool, "orders"), self._expected)
        return self._messages / (self._until - self._broker.subscribed_at)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Handled):
            self._handled += 1
            if self._handled == self._expected:
                self._until = time.perf_counter()
                self._done.set()


class _Bare:
    """The handler's transaction without a ledger: what there is to be had."""

    def __init__(self, pool: Pool, messages: int) -> None:
        self._pool = pool
        self._messages = messages

    async def turn(self) -> float:
        left = iter(range(self._messages))
        since = time.perf_counter()
        await asyncio.gather(*(self._work(left) for _ in range(CONCURRENCY)))
        return self._messages / (time.perf_counter() - since)

    async def _work(self, left: Any) -> None:
        for _ in left:
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute(BUSINESS_INSERT, ACCOUNT, ORDER_BYTES)


async def _ship(message: Message, tx: Transaction[Any]) -> None:
    await tx.connection.execute(BUSINESS_INSERT, ACCOUNT, message.data)


async def _ship_all(messages: list[Message], tx: Transaction[Any]) -> None:
    bodies = [message.data for message in messages]
    await tx.connection.execute(BUSINESS_INSERT_MANY, [ACCOUNT] * len(bodies), bodies)
