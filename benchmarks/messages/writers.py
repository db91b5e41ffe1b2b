"""What an event costs whoever writes it: transactions per second with one keyed event, with one plain outbox row, with
neither; in a closed loop, over one asyncpg pool.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, TypeAlias
from uuid import uuid4

from benchmarks.messages.comparison import Contestant, Grounds, Outcome, race, raced_outcome
from benchmarks.messages.places import (
    ACCOUNT,
    BUSINESS_INSERT,
    ORDER,
    ORDER_BYTES,
    PLAIN_INSERT,
    SOURCE,
    TOPIC,
    Pool,
    count_of,
    fresh_pool,
    insist,
    uniform,
)
from onefold import AsyncOnefold

FLOOR: Final = 0.8
CONCURRENCIES: Final = (8, 32)
BASE: Final = "plain outbox row"

Write: TypeAlias = Callable[[], Awaitable[None]]


async def measure(grounds: Grounds) -> list[Outcome]:
    outcomes = []
    for concurrency in CONCURRENCIES:
        async with AsyncExitStack() as stack:

            async def stand(
                make: Callable[[Pool], Write],
                name: str,
                outbox: str | None,
                *,
                floor: float | None = None,
                stack: AsyncExitStack = stack,
                concurrency: int = concurrency,
            ) -> Contestant:
                pool = await stack.enter_async_context(fresh_pool(grounds))
                writers = _Writers(pool, make(pool), outbox, concurrency=concurrency, seconds=grounds.effort.seconds)
                return Contestant(name=name, turn=writers.turn, floor=floor)

            contestants = [
                await stand(_plain, BASE, "plain_outbox"),
                await stand(_onefold, "onefold event", "onefold_outbox", floor=FLOOR),
                await stand(_bare, "no event", None),
                await stand(_onefold_bare, "onefold, no event", None),
            ]
            raced = await race(contestants, base=BASE, rounds=grounds.effort.rounds, say=grounds.say)
            outcomes.append(raced_outcome(f"Writers, {concurrency} at a time, transactions", raced))
    return outcomes


class _Writers:
    """So many at a time, each with one transaction after the other."""

    def __init__(self, pool: Pool, write: Write, outbox: str | None, *, concurrency: int, seconds: float) -> None:
        self._pool = pool
        self._write = write
        self._outbox = outbox
        self._concurrency = concurrency
        self._seconds = seconds
        self._made = 0

    async def turn(self) -> float:
        before, since = self._made, time.perf_counter()
        await asyncio.gather(*(self._work(since + self._seconds) for _ in range(self._concurrency)))
        took = time.perf_counter() - since
        insist("orders", await count_of(self._pool, "orders"), self._made)
        if self._outbox is not None:
            insist(f"rows of {self._outbox}", await count_of(self._pool, self._outbox), self._made)
        return (self._made - before) / took

    async def _work(self, until: float) -> None:
        while time.perf_counter() < until:
            await self._write()
            self._made += 1


def _plain(pool: Pool) -> Write:
    async def write() -> None:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(BUSINESS_INSERT, ACCOUNT, ORDER_BYTES)
            body = json.dumps(ORDER, separators=(",", ":")).encode()
            await connection.execute(PLAIN_INSERT, str(uuid4()), TOPIC, uniform(), body)

    return write


def _onefold(pool: Pool) -> Write:
    once = AsyncOnefold(pool, source=SOURCE)

    async def write() -> None:
        async with once.transaction() as tx:
            await tx.connection.execute(BUSINESS_INSERT, ACCOUNT, ORDER_BYTES)
            await tx.publish(TOPIC, ORDER, key=uniform())

    return write


def _bare(pool: Pool) -> Write:
    async def write() -> None:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(BUSINESS_INSERT, ACCOUNT, ORDER_BYTES)

    return write


def _onefold_bare(pool: Pool) -> Write:
    once = AsyncOnefold(pool, source=SOURCE)

    async def write() -> None:
        async with once.transaction() as tx:
            await tx.connection.execute(BUSINESS_INSERT, ACCOUNT, ORDER_BYTES)

    return write
