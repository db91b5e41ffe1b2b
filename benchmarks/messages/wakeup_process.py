"""The apps and drivers that `wakeups` measures, and a relay or a consumer of one of them as a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from psycopg_pool import AsyncConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.messages.places import SOURCE, TOPIC
from onefold import AsyncOnefold, Message, Onefold

AnyOnefold: TypeAlias = Onefold | AsyncOnefold


def _url(place: str, driver: str) -> str:
    plain = place.replace("postgresql://", f"postgresql+{driver}://").partition("?")[0]
    return f"{plain}?{'ssl' if driver == 'asyncpg' else 'sslmode'}=disable"


ONEFOLDS: Final[dict[str, Callable[[str], AnyOnefold]]] = {
    "asyncpg": lambda place: AsyncOnefold(place, source=SOURCE, broker="local"),
    "psycopg": lambda place: AsyncOnefold(AsyncConnectionPool(place, open=False), source=SOURCE, broker="local"),
    "async engine, asyncpg": lambda place: AsyncOnefold(
        create_async_engine(_url(place, "asyncpg")), source=SOURCE, broker="local"
    ),
    "async engine, psycopg": lambda place: AsyncOnefold(
        create_async_engine(_url(place, "psycopg")), source=SOURCE, broker="local"
    ),
    "threads, psycopg": lambda place: Onefold(place, source=SOURCE, broker="local"),
    "threads, engine, psycopg2": lambda place: Onefold(
        create_engine(_url(place, "psycopg2")), source=SOURCE, broker="local"
    ),
    "threads, engine, psycopg": lambda place: Onefold(
        create_engine(_url(place, "psycopg")), source=SOURCE, broker="local"
    ),
}

#: Over a file. Processes are woken by a doorbell on Linux.
SQLITE_ONEFOLDS: Final[dict[str, Callable[[str], AnyOnefold]]] = {
    "SQLite": lambda place: AsyncOnefold(place, source=SOURCE, broker="local"),
    "threads, SQLite": lambda place: Onefold(place, source=SOURCE, broker="local"),
}


async def made(name: str, place: str) -> AnyOnefold:
    once = (ONEFOLDS | SQLITE_ONEFOLDS)[name](place)
    if (pool := _pool(once)) is not None:
        await pool.open(wait=True)
    return once


def _pool(once: AnyOnefold) -> AsyncConnectionPool[Any] | None:
    """psycopg's for asyncio, where it is the application's."""
    pool = getattr(once._database, "_pool", None)
    return pool if isinstance(pool, AsyncConnectionPool) else None


async def closed(once: AnyOnefold) -> None:
    if isinstance(once, AsyncOnefold):
        await once.close()
    else:
        await asyncio.to_thread(once.close)
    if (pool := _pool(once)) is not None:
        await pool.close()
    engine = getattr(once._database, "_engine", None)
    if engine is not None and (disposed := engine.dispose()) is not None:
        await disposed


async def publish(once: AnyOnefold, number: int) -> float:
    """When it was committed."""
    if isinstance(once, AsyncOnefold):
        async with once.transaction() as tx:
            await tx.publish(TOPIC, number)
        return time.time()
    return await asyncio.to_thread(_publish, once, number)


def _publish(once: Onefold, number: int) -> float:
    with once.transaction() as tx:
        _ = tx.publish(TOPIC, number)
    return time.time()


@asynccontextmanager
async def working(once: AnyOnefold, worker: Any) -> AsyncIterator[None]:
    if isinstance(once, AsyncOnefold):
        async with worker:
            yield
        return
    await asyncio.to_thread(worker.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(worker.__exit__, None, None, None)


class Handler:
    """A consumer that notes when it got each message."""

    def __init__(self, once: AnyOnefold, told: Callable[[int, float], object] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._times: dict[int, asyncio.Future[float]] = {}
        self._told = told or self._note
        handle = self._on_thread if isinstance(once, Onefold) else self._awaited
        once.consumer("fulfilment", topic=TOPIC)(handle)

    def times(self, number: int) -> asyncio.Future[float]:
        return self._times.setdefault(number, self._loop.create_future())

    def _note(self, number: int, at: float) -> None:
        self._loop.call_soon_threadsafe(lambda: self.times(number).set_result(at))

    def _on_thread(self, message: Message) -> None:
        self._told(message.json(), time.time())

    async def _awaited(self, message: Message) -> None:
        self._told(message.json(), time.time())


async def main(role: str, name: str, place: str) -> None:
    """Until its standard input is closed."""
    once = await made(name, place)
    if role == "consume":
        Handler(once, lambda number, at: print(json.dumps((number, at)), flush=True))
    async with working(once, once.consuming() if role == "consume" else once.relaying()):
        await asyncio.to_thread(sys.stdin.read)
    await closed(once)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
