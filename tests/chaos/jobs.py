"""What a child does: be a relay or a consumer, struck at a crossing, until enough has happened or it is told to end.

Beside the real ones there are three planted mistakes that the same campaigns must find: a relay that marks before it
publishes, a consumer that acknowledges before it commits, and the relay of the tutorials, a loop over SKIP LOCKED.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import asyncpg

from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import new_id
from onefold._kernel.messages import Confirm, Delivery, Message
from onefold._kernel.ports import Broker, Subscription
from onefold._outbox.claimed_rows import COLUMNS, read
from onefold._outbox.relay_session import RelaySession, TickResult
from onefold._worker import consumer_runner, consumer_worker, relay_loop
from onefold._worker.relay_loop import Relay
from onefold.errors import MessageRefused
from onefold.telemetry import Event, Handled, Relayed
from tests.chaos.places import LEASE_S, Place, shop
from tests.support.crash import Act, Crossing, Edge, kill_process, stop_process
from tests.support.crash_brokers import BrokerBoundaries

Role: TypeAlias = Literal["relay", "consumer", "relay that marks first", "consumer that acks first", "textbook relay"]
#: A crossing by its verb, its edge, and the how-manieth of these it is. Several tasks cross at once: a number alone
#: would mean another crossing each time.
Occurrence: TypeAlias = tuple[str, Edge, int]
Say: TypeAlias = Callable[[Any], object]

_ACTS: dict[str, Act] = {"kill": kill_process, "stop": stop_process}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a child is to do. `enough` is after how many events it ends by itself; 0: when it is told to."""

    role: Role
    place: Place
    act: Literal["kill", "stop"] | None = None
    at: Occurrence = ("", "before", 0)
    enough: int = 0
    refuses: float = 0.0
    """How many of the publishes are refused, in front of the broker."""
    seed: int = 0


def occurrences(crossings: Sequence[Crossing]) -> list[Occurrence]:
    times: Counter[tuple[str, Edge]] = Counter()
    found = []
    for crossing in crossings:
        times[crossing.verb, crossing.edge] += 1
        found.append((crossing.verb, crossing.edge, times[crossing.verb, crossing.edge]))
    return found


@asynccontextmanager
async def _unmeasured(*_: object) -> AsyncIterator[None]:
    """What is measured beside a relay or a consumer is not part of what campaigns count and strike."""
    yield


def perform(job: Job, say: Say) -> None:
    """In the child."""
    for module in (relay_loop, consumer_runner):
        vars(module)["measuring"] = _unmeasured
    consumer_worker.RECEIVE_WAIT_S = 0.1  # type: ignore[misc]  # how long an idle receive holds up the end
    asyncio.run(_perform(job, say))


async def _perform(job: Job, say: Say) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    told: Counter[str] = Counter()
    times: Counter[tuple[str, Edge]] = Counter()

    def listener(event: Event) -> None:
        told[type(event).__name__] += event.published if isinstance(event, Relayed) else 1
        done = told["Relayed"] if "relay" in job.role else told["Handled"]
        if isinstance(event, Relayed | Handled) and job.enough and done >= job.enough:
            stop.set()

    def act(crossing: Crossing) -> None:
        times[crossing.verb, crossing.edge] += 1
        if job.act is not None and job.at == (crossing.verb, crossing.edge, times[crossing.verb, crossing.edge]):
            say({"struck": (crossing.number, crossing.verb, crossing.edge)})
            _ACTS[job.act](crossing)

    boundaries = BrokerBoundaries(act)
    bare = job.place.open()
    database = boundaries.around_async(bare)

    def broker() -> Broker:
        found = boundaries.around_broker(job.place.reach(database))
        if job.refuses:
            found = Refusing(found, random.Random(job.seed), job.refuses)
        return AckingFirst(found) if job.role == "consumer that acks first" else found

    once = shop(job.place, database, broker, listener=listener, boundaries=boundaries)
    match job.role:
        case "relay":
            await once.relay(stop, lease_s=LEASE_S, poll_s_max=0.2)
        case "relay that marks first":
            await MarkingRelay(database, broker(), lease_s=LEASE_S, poll_s_max=0.05, listener=listener).run(stop)
        case "consumer" | "consumer that acks first":
            await once.consume(stop)
        case "textbook relay":
            await textbook_relay(job.place, broker(), stop)
    await bare.close()
    crossings = [(crossing.number, crossing.verb, crossing.edge) for crossing in boundaries.crossings]
    say({"crossings": crossings if job.enough else [], "told": told})


class Passing:
    """A broker that is passed on as it is; what stands in front of one changes a verb or two."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.keep_every_s = broker.keep_every_s
        self.redelivery_s = broker.redelivery_s

    async def open(self) -> None:
        await self._broker.open()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return await self._broker.publish(messages)

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        return await self._broker.subscribe(consumer, topics)

    async def close(self) -> None:
        await self._broker.close()


class Refusing(Passing):
    """Refuses some messages, by chance, and passes the others on."""

    def __init__(self, broker: Broker, chance: random.Random, share: float) -> None:
        super().__init__(broker)
        self._chance = chance
        self._share = share

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        refused = [self._chance.random() < self._share for _ in messages]
        passed = [message for message, no in zip(messages, refused, strict=True) if not no]
        answers = iter(await super().publish(passed))
        return [MessageRefused("refused on purpose") if no else next(answers) for no in refused]


# --- planted mistakes ----------------------------------------------------------------------------------------


class AckingFirst(Passing):
    """What a consumer with automatic acknowledgement does."""

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        subscription: Any = await super().subscribe(consumer, topics)
        receive = subscription.receive

        async def received(limit: int, wait_s: float) -> Sequence[Delivery]:
            deliveries: Sequence[Delivery] = await receive(limit, wait_s)
            if deliveries:
                await subscription.ack(deliveries)
            return deliveries

        subscription.receive = received
        return subscription  # type: ignore[no-any-return]


class MarkingFirst(RelaySession):
    """Marks what it is about to publish."""

    async def tick(self, *, rows_max: int | None = None, probing: bool = False) -> TickResult:
        rows = await with_connection(lambda: self._claim(rows_max or self._settings.batch_max, touring=probing))
        if not rows:
            return TickResult()
        sent = TickResult(claimed=len(rows), confirmed=[row.position for row in rows])
        await with_connection(lambda: self._mark(sent))
        await self._publish(rows)
        return sent


class MarkingRelay(Relay):
    """Whose every life is such a one."""

    def _new_session(self, former: RelaySession | None = None) -> RelaySession:
        return MarkingFirst(new_id(wall_ms()), self._database.dialect, self._settings, self._draw)


_CLAIM: Final = f"""
SELECT bucket, {COLUMNS} FROM onefold_outbox WHERE published_at IS NULL AND due_at IS NULL
ORDER BY position LIMIT 10 FOR UPDATE SKIP LOCKED
"""


async def textbook_relay(place: Place, broker: Broker, stop: asyncio.Event) -> None:
    """What every tutorial does."""
    await broker.open()
    async with asyncpg.create_pool(place.database, min_size=1, max_size=1) as pool:
        while not stop.is_set():
            async with pool.acquire() as connection, connection.transaction():
                rows = [read(tuple(row)) for row in await connection.fetch(_CLAIM)]
                messages = [row.message for row in rows if isinstance(row.message, Message)]
                confirms = await broker.publish(messages) if messages else ()
                done = [row.position for row, confirm in zip(rows, confirms, strict=True) if confirm is None]
                await connection.execute("DELETE FROM onefold_outbox WHERE position = ANY ($1)", done)
            if not rows:
                await asyncio.sleep(0.01)
    await broker.close()
