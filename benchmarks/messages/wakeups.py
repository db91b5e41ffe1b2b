"""From COMMIT to a handler over `local`, for each app and driver; and what an idle consumer costs Postgres.

`one process` writes, relays and consumes; in `three` the relay and the consumer are processes of their own that are
woken by NOTIFY, and on SQLite by a datagram. Single events with random pauses, so that they do not fall into step with
a poll. The clock starts when the block of `once.transaction()` has ended, and stops in the handler; between processes
it is the machine's own. Idle is counted in the transactions that Postgres counts, with a consumer at work that has
nothing to do.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final

import asyncpg

from benchmarks.messages.comparison import Grounds, Outcome, Timed, timed_outcome
from benchmarks.messages.places import TOPIC, fresh_place
from benchmarks.messages.wakeup_process import (
    ONEFOLDS,
    SQLITE_ONEFOLDS,
    AnyOnefold,
    Handler,
    closed,
    made,
    publish,
    working,
)
from onefold import Onefold
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Fetch, Row, Statement
from onefold._kernel.executors import run_on
from onefold.db._drivers import async_database

IN_ONE_MS: Final = 10.0
IN_THREE_MS: Final = 20.0
IDLE_PER_S_MAX: Final = 3.0
#: Events that are not measured, each right after the one before: Postgres plans a statement anew the first five times
#: in a session, and an engine hands out the sessions of its pool in turn.
WARM_UP: Final = 40
PAUSE_S: Final = (0.02, 0.06)
#: So long until an idle consumer looks as seldom as it will.
SETTLE_S: Final = 6.0
IDLE_S: Final = 10.0

_chance: Final = random.Random(4711)


async def measure(grounds: Grounds) -> list[Outcome]:
    timed = []
    for name in ONEFOLDS | SQLITE_ONEFOLDS:
        one: list[tuple[float, ...]] = []
        three: list[tuple[float, ...]] = []
        for number in range(grounds.effort.rounds):
            grounds.say(f"round {number + 1} of {grounds.effort.rounds}: {name}")
            with TemporaryDirectory() as folder:
                for rounds, measure_in in ((one, _in_one), (three, _in_three)):
                    place = await fresh_place(grounds) if name in ONEFOLDS else _fresh_file(f"{folder}/{len(one)}.db")
                    rounds.append(await measure_in(place, name, grounds.effort.events))
        limits = (None, None) if name in SQLITE_ONEFOLDS else (IN_ONE_MS, IN_THREE_MS)
        timed.append(Timed(name=f"{name}, one process", rounds=tuple(one), ceiling_ms=limits[0]))
        timed.append(Timed(name=f"{name}, three processes", rounds=tuple(three), ceiling_ms=limits[1]))
    grounds.say("an idle consumer")
    return [timed_outcome("From COMMIT to the handler, over `local`", timed), await _idle(grounds)]


async def _in_one(place: str, name: str, events: int) -> tuple[float, ...]:
    once = await made(name, place)
    handler = Handler(once)
    async with working(once, once.consuming()), _subscribed(place), working(once, once.relaying()):
        times = await _times_ms(once, events, handler.times)
    await closed(once)
    return times


async def _in_three(place: str, name: str, events: int) -> tuple[float, ...]:
    times: dict[int, asyncio.Future[float]] = {}

    def at(number: int) -> asyncio.Future[float]:
        return times.setdefault(number, asyncio.get_running_loop().create_future())

    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(_process("consume", name, place))
        await stack.enter_async_context(_process("relay", name, place))
        await stack.enter_async_context(_subscribed(place))

        async def read() -> None:
            assert consumer.stdout is not None
            async for line in consumer.stdout:
                number, seen = json.loads(line)
                at(number).set_result(seen)

        reading = asyncio.create_task(read())
        stack.callback(reading.cancel)
        once = await made(name, place)
        found = await _times_ms(once, events, at)
        await closed(once)
    return found


async def _times_ms(once: AnyOnefold, events: int, seen: Any) -> tuple[float, ...]:
    times = []
    for number in range(WARM_UP + events):
        if number >= WARM_UP:
            await asyncio.sleep(_chance.uniform(*PAUSE_S))
        committed_at = await publish(once, number)
        async with asyncio.timeout(30):
            times.append((await seen(number) - committed_at) * 1000)
    return tuple(times[WARM_UP:])


@asynccontextmanager
async def _process(role: str, name: str, place: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", "benchmarks.messages.wakeup_process", role, name, place)
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()  # which tells it to stop
        await process.wait()


def _fresh_file(path: str) -> str:
    Onefold(path).close()  # with its tables
    return path


@asynccontextmanager
async def _subscribed(place: str) -> AsyncIterator[None]:
    """From when a consumer has subscribed."""
    database = async_database(place)
    for _ in range(1500):
        if await run_on(database, with_connection(_subscriptions)):
            break
        await asyncio.sleep(0.02)
    await database.close()
    yield


async def _subscriptions() -> list[Row]:
    return await Fetch(Statement("SELECT consumer FROM onefold_subscription"))


async def _idle(grounds: Grounds) -> Outcome:
    """What Postgres counts while a consumer has nothing to do. It counts for each database by itself, so that all apps
    and drivers are idle at the same time."""
    places = {name: await fresh_place(grounds) for name in ONEFOLDS}
    counted = await asyncio.gather(*(_idle_per_s(name, place) for name, place in places.items()))
    found = dict(zip(places, counted, strict=True))
    missed = [
        f"idle, {name}: {per_s:.2f} transactions/s, at most {IDLE_PER_S_MAX:g}"
        for name, per_s in found.items()
        if per_s > IDLE_PER_S_MAX
    ]
    title = f"Transactions per second of an idle consumer, {TOPIC} over `local` (at most {IDLE_PER_S_MAX:g})"
    lines = [f"{name:32} {per_s:6.2f}" for name, per_s in found.items()]
    text = "\n".join([title, *lines, f"median {statistics.median(found.values()):.2f}"])
    return Outcome(text=text, data={"title": title, "idle": found}, missed=tuple(missed))


async def _idle_per_s(name: str, place: str) -> float:
    """Its statistics come late, so they are asked for last."""
    once = await made(name, place)
    Handler(once)
    watcher = await asyncpg.connect(place)
    async with working(once, once.consuming()), _subscribed(place):
        await asyncio.sleep(SETTLE_S)
        before, since = await _transactions(watcher), time.monotonic()
        await asyncio.sleep(IDLE_S)
        per_s = (await _transactions(watcher) - before) / (time.monotonic() - since)
    await watcher.close()
    await closed(once)
    return per_s


async def _transactions(watcher: Any) -> int:
    """Without those of the watcher itself: it asks once, and that is counted after it was answered."""
    await watcher.execute("SELECT pg_stat_clear_snapshot()")
    await asyncio.sleep(1.5)  # a session reports what it did at most once a second
    found: Any = await watcher.fetchval(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    )
    return int(found)
