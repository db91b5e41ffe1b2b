"""From COMMIT to publication, when there is nothing else to do: single events, with pauses in between.

The clock starts when the block of `once.transaction()` has ended, and stops when the broker is handed the message (a
recording broker in this process) or when a plain NATS subscription in this process gets it. The pauses are random, so
that they do not fall into step with a poll.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import nats
from nats.aio.msg import Msg

from benchmarks.messages.brokers import RecordingBroker, Sightings
from benchmarks.messages.comparison import Grounds, Outcome, Timed, timed_outcome
from benchmarks.messages.places import ORDER, SOURCE, TOPIC, fresh_place, uniform
from benchmarks.messages.relay_process import relay_process
from onefold import AsyncOnefold
from onefold.brokers.nats import NatsBroker
from onefold.telemetry import BucketsHeld, Event

CEILING_MS: Final = 5.0
WARM_UP: Final = 5
PAUSE_S: Final = (0.02, 0.06)
#: Where a relay polls, it polls the more seldom the longer nothing came; after this long, every 0.3 s or so.
PAUSE_POLLED_S: Final = (0.3, 0.6)

_chance: Final = random.Random(4711)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A writer whose events somebody relays: where they are seen, and what the writer does after a commit."""

    once: AsyncOnefold
    sightings: Sightings


Open: TypeAlias = Callable[[Grounds, str], AbstractAsyncContextManager[Way]]


async def measure(grounds: Grounds) -> Outcome:
    effort = grounds.effort
    ways: dict[str, tuple[Open, int, tuple[float, float]]] = {
        "same process, handed to the broker": (_signalled, effort.events, PAUSE_S),
        "same process, seen at NATS": (_signalled_nats, effort.events, PAUSE_S),
        "another process, NOTIFY, seen at NATS": (_notified, effort.events, PAUSE_S),
        "another process, polling, seen at NATS": (_polled, effort.polled_events, PAUSE_POLLED_S),
    }
    places = {name: await fresh_place(grounds) for name in ways}
    rounds: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(effort.rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            grounds.say(f"round {number + 1} of {effort.rounds}: {name}")
            way_of, events, pause_s = ways[name]
            async with way_of(grounds, places[name]) as way:
                await _times_ms(way, WARM_UP, PAUSE_S)
                rounds[name].append(await _times_ms(way, events, pause_s))
    ceilings = {names[0]: CEILING_MS, names[1]: CEILING_MS}
    timed = [Timed(name=name, rounds=tuple(rounds[name]), ceiling_ms=ceilings.get(name)) for name in names]
    return timed_outcome("From COMMIT to publication, idle", timed)


async def _times_ms(way: Way, events: int, pause_s: tuple[float, float]) -> tuple[float, ...]:
    times = []
    for _ in range(events):
        await asyncio.sleep(_chance.uniform(*pause_s))
        async with way.once.transaction() as tx:
            message_id = await tx.publish(TOPIC, ORDER, key=uniform())
        committed_at = time.perf_counter()
        times.append((await way.sightings.of(message_id) - committed_at) * 1000)
    return tuple(times)


@asynccontextmanager
async def _signalled(grounds: Grounds, place: str) -> AsyncIterator[Way]:
    sightings = Sightings()
    async with _relaying(place, lambda: RecordingBroker(sightings)) as once:
        yield Way(once=once, sightings=sightings)


@asynccontextmanager
async def _signalled_nats(grounds: Grounds, place: str) -> AsyncIterator[Way]:
    url = grounds.nats.url
    async with (
        _watching(url, "signalled") as sightings,
        _relaying(place, lambda: NatsBroker(url, stream="signalled")) as once,
    ):
        yield Way(once=once, sightings=sightings)


@asynccontextmanager
async def _elsewhere(grounds: Grounds, place: str, stream: str, *, listens: bool) -> AsyncIterator[Way]:
    """Writers tell of their commits by NOTIFY, whether or not somebody listens."""
    url = grounds.nats.url
    async with _watching(url, stream) as sightings, relay_process(place, url, stream, listens=listens):
        once = AsyncOnefold(place, source=SOURCE)
        yield Way(once=once, sightings=sightings)
        await once.close()


def _notified(grounds: Grounds, place: str) -> AbstractAsyncContextManager[Way]:
    return _elsewhere(grounds, place, "notified", listens=True)


def _polled(grounds: Grounds, place: str) -> AbstractAsyncContextManager[Way]:
    return _elsewhere(grounds, place, "polled", listens=False)


@asynccontextmanager
async def _relaying(place: str, broker: Callable[[], RecordingBroker | NatsBroker]) -> AsyncIterator[AsyncOnefold]:
    """A relay in this process, when it is at work."""
    at_work = asyncio.Event()

    def hear(event: Event) -> None:
        if isinstance(event, BucketsHeld):
            at_work.set()

    once = AsyncOnefold(place, source=SOURCE, broker=broker, listener=hear)
    async with once.relaying():
        await at_work.wait()
        yield once
    await once.close()


@asynccontextmanager
async def _watching(url: str, stream: str) -> AsyncIterator[Sightings]:
    """What a plain subscriber to the stream's subjects sees."""
    sightings = Sightings()

    async def see(msg: Msg) -> None:
        sightings.saw((msg.headers or {}).get("ce-id", ""))

    client = await nats.connect(url)
    await client.subscribe(f"{stream}.>", cb=see)
    await client.flush()
    yield sightings
    await client.close()
