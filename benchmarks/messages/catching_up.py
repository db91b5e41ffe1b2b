"""How fast a strict key that stood still catches up, against the rate at which it handles what is in its turn.

All messages are of one key, so that one is handled at a time. `in its turn` is the most that such a consumer holds:
deliveries that come in their order. `parked` begins with all of them parked behind one that has failed, and the clock
runs from when that one is handled until the last is. Its handler writes a row of each, as in `consumers`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any, Final

from benchmarks.messages.brokers import MemoryBroker
from benchmarks.messages.comparison import Contestant, Grounds, Outcome, race, raced_outcome
from benchmarks.messages.places import (
    ACCOUNT,
    BUSINESS_INSERT,
    ORDER_BYTES,
    SOURCE,
    TOPIC,
    Pool,
    count_of,
    fresh_pool,
    insist,
)
from onefold import AsyncOnefold
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.telemetry import Event, Handled, Parked

#: Catching up is at least so many times as fast as what arrives can be.
FLOOR: Final = 5.0
BASE: Final = "one key, in its turn"


async def measure(grounds: Grounds) -> Outcome:
    effort = grounds.effort
    logging.getLogger("onefold.consumer").setLevel(logging.ERROR)  # that one fails is told each time
    async with AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(fresh_pool(grounds)) for _ in range(2)]
        contestants = [
            Contestant(name=BASE, turn=_Key(pools[0], effort.messages).arrive),
            Contestant(name="one key, parked", turn=_Key(pools[1], effort.messages).catch_up, floor=FLOOR),
        ]
        raced = await race(contestants, base=BASE, rounds=effort.rounds, say=grounds.say)
    return raced_outcome("A strict consumer on Postgres, messages of one key", raced)


class _Key:
    """A consumer and its one key."""

    def __init__(self, pool: Pool, messages: int) -> None:
        self._pool = pool
        self._messages = messages
        self._versions = count(1)
        self._bad: int | None = None
        self._handled = self._parked = self._expected = 0
        self._since = self._until = 0.0
        self._news = asyncio.Event()
        self._broker = MemoryBroker()
        self._once = AsyncOnefold(pool, source="warehouse", broker=lambda: self._broker, listener=self._hear)
        mark = self._once.consumer(
            "shipping", topic=TOPIC, order="strict", attempts=1000, retry_base_s=0.1, retry_cap_s=0.1
        )
        mark(self._ship)

    async def arrive(self) -> float:
        await self._broker.put(self._next(self._messages))
        since = self._handled
        async with _consuming(self._once):
            await self._see(lambda: self._handled == since + self._messages)
        await self._check()
        return self._messages / (self._until - self._broker.subscribed_at)

    async def catch_up(self) -> float:
        messages = self._next(self._messages + 2)
        self._bad, self._parked, since = messages[1].version, 0, self._handled
        await self._broker.put(messages)
        async with _consuming(self._once):
            await self._see(lambda: self._parked == self._messages)
            self._bad, self._since = None, 0.0
            await self._see(lambda: self._handled == since + self._messages + 2)
        await self._check()
        return self._messages / (self._until - self._since)

    async def _ship(self, message: Message, tx: Transaction[Any]) -> None:
        if message.version == self._bad:
            raise RuntimeError("not yet")
        await tx.connection.execute(BUSINESS_INSERT, ACCOUNT, message.data)

    def _next(self, messages: int) -> list[Message]:
        self._expected += messages
        return [
            Message(
                id=f"m{version}",
                source=SOURCE,
                topic=TOPIC,
                data=ORDER_BYTES,
                key="order-1",
                epoch=1,
                version=version,
            )
            for version in (next(self._versions) for _ in range(messages))
        ]

    def _hear(self, event: Event) -> None:
        if isinstance(event, Handled):
            self._handled += 1
            self._until = time.perf_counter()
            self._since = self._since or self._until
        elif isinstance(event, Parked):
            self._parked += 1
        self._news.set()

    async def _see(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def _check(self) -> None:
        insist("orders handled", await count_of(self._pool, "orders"), self._expected)
        insist("letters left", await count_of(self._pool, "onefold_letter"), 0)


@asynccontextmanager
async def _consuming(once: AsyncOnefold) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(once.consume(stop))
    try:
        yield
    finally:
        stop.set()
        await task
