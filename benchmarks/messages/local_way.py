"""What an event costs on its way over `local` on Postgres, for each application and driver, counted on the wire.

One after the other on each, without workers, whose polls would be counted: the relay's tick (claim, deliver, mark), the
consumer's take, the handler's transaction and the acknowledgement. The latency of a quiet system is these round trips,
one after the other, so a driver that needs more of them than another is slower by as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.guards import Counts, Limit, counted_hops
from benchmarks.load import HOST
from benchmarks.messages.places import TOPIC
from benchmarks.messages.wakeup_process import ONEFOLDS, closed, made, publish
from benchmarks.wire import counting_proxy
from onefold._inbox.consumer import Consumer
from onefold._inbox.handling import Inbox
from onefold._kernel.executors import BrokerExecutor, TaskExecutor, run_on
from onefold._kernel.messages import Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession
from onefold._worker.wakeup import Notifier, ThreadNotifier
from onefold.brokers.local import LocalBroker

#: So often until psycopg has prepared every statement.
WARM_UP: Final = 8
COUNTED: Final = 5

#: Through SQLAlchemy each statement of a transaction is a round trip, BEGIN and COMMIT too; a single statement is one.
_ROUND_TRIPS: Final = {
    "asyncpg": 7,
    "psycopg": 7,
    "async engine, asyncpg": 9,
    "async engine, psycopg": 9,
    "threads, psycopg": 7,
    "threads, engine, psycopg2": 9,
    "threads, engine, psycopg": 9,
}

#: Claim, delivery, mark, take and acknowledgement go to a thread each, and the handler's transaction four times: taking
#: a connection, beginning, committing, giving it back.
_HOPS: Final = {name: 9 if name.startswith("threads") else 0 for name in _ROUND_TRIPS}

LOCAL_LIMITS: Final = (
    *(Limit(subject=f"{name}: local event", unit="round trips", most=most) for name, most in _ROUND_TRIPS.items()),
    *(Limit(subject=f"{name}: local event", unit="hops between threads", most=most) for name, most in _HOPS.items()),
)


async def count_local(dsn: str, port: int, counts: Counts) -> None:
    """The most that any event took. To be called `without_notify`."""
    for name in ONEFOLDS:
        async with counting_proxy(HOST, port) as (wire, through):
            once = await made(name, dsn.replace(f":{port}/", f":{through}/"))
            way = _Way(once._for_workers(), name)
            await way.open()
            found = []
            for number in range(WARM_UP + COUNTED):
                await publish(once, number)
                before = wire.cycles
                with counted_hops() as hops:
                    await way.go()
                found.append((wire.cycles - before, len(hops)))
            round_trips, hops_made = zip(*found[WARM_UP:], strict=True)
            counts[f"{name}: local event", "round trips"] = max(round_trips)
            counts[f"{name}: local event", "hops between threads"] = max(hops_made)
            await way.close()
            await closed(once)


@contextmanager
def without_notify() -> Iterator[None]:
    """Nobody made meanwhile tells of its commits: how often that is done depends on the time, and so on the machine."""
    kinds: tuple[Any, ...] = (Notifier, ThreadNotifier)
    kept = [(kind, kind.notify) for kind in kinds]

    def silent(self: object) -> None:
        """Tells nobody."""

    try:
        for kind, _ in kept:
            kind.notify = silent
        yield
    finally:
        for kind, notify in kept:
            kind.notify = notify


class _Way:
    """A relay and a consumer that do nothing by themselves."""

    def __init__(self, database: AsyncDatabase[Any], name: str) -> None:
        self._database = database
        self._broker = LocalBroker(database)
        self._session = RelaySession(f"relay of {name}", database.dialect, RelayConfig(lease_s=3600), lambda: 0.5)
        consumer = Consumer(name="counted", topics=(TOPIC,), handler=_handle)
        self._inbox = Inbox(consumer, database.dialect, draw=lambda: 0.5)

    async def open(self) -> None:
        self._subscription = await self._broker.subscribe(self._inbox.consumer.name, [TOPIC])
        await run_async(self._session.enter(), self._executor())

    async def go(self) -> None:
        await run_on(self._database, self._session.tick(), self._executor())
        [delivery] = await self._subscription.receive(10, 0.0)
        executor: TaskExecutor[Any] = TaskExecutor(self._database)
        await run_async(self._inbox.handle(self._inbox.read(delivery), OwnedTransaction(executor)), executor)
        await self._subscription.ack([delivery])

    async def close(self) -> None:
        await run_async(self._session.leave(), self._executor())
        await self._broker.unsubscribe(self._inbox.consumer.name, [TOPIC])
        await self._subscription.close()

    def _executor(self) -> BrokerExecutor[Any]:
        return BrokerExecutor(self._database, self._broker)


async def _handle(message: Message) -> None:
    """Writes nothing of its own."""
