"""Waking between processes: whatever the application and the driver, a commit is told and heard, without any polling.

Nothing here is timed: where something must come by a signal, polling is switched off.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

import asyncpg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Message, Onefold
from onefold._app.base_app import run_flow
from onefold._inbox.pausing import pause
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message as Sent
from onefold._kernel.runners import run_async
from onefold._kernel.wakeup_signals import DELIVERY_CHANNEL, Wakeups
from onefold._kernel.wakeup_signals import OUTBOX_CHANNEL as CHANNEL
from onefold._worker import notify_listener, wakeup
from onefold._worker.notify_listener import listening
from onefold._worker.relay_loop import Relay
from onefold._worker.worker_settings import RelaySettings
from onefold.brokers import local
from onefold.brokers._local_schema import MIGRATIONS
from onefold.brokers.local import LocalBroker
from onefold.db._drivers import async_database
from onefold.db._migrations import migrate
from onefold.db.psycopg import AsyncPsycopgDatabase
from tests.outbox.relaying import ScriptedBroker
from tests.outbox.test_write import void
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

NEVER_S: Final = 100_000.0

#: A relay that looks by itself once a minute only.
SELDOM: Final[RelaySettings] = {"poll_s_max": 60.0, "lease_s": 600.0}

#: Less than that, and generous all the same.
SOON_S: Final = 40.0

AnyOnefold: TypeAlias = Onefold | AsyncOnefold


#: Both applications over every driver that Postgres offers.
ONEFOLDS: Final[dict[str, Callable[[str], AnyOnefold]]] = {
    "asyncpg": lambda dsn: AsyncOnefold(dsn, source="shop", broker="local"),
    "psycopg": lambda dsn: AsyncOnefold(
        AsyncConnectionPool(dsn, open=False, min_size=0, max_size=8), source="shop", broker="local"
    ),
    "async engine over asyncpg": lambda dsn: AsyncOnefold(
        create_async_engine(engine_url(dsn, "asyncpg")), source="shop", broker="local"
    ),
    "async engine over psycopg": lambda dsn: AsyncOnefold(
        create_async_engine(engine_url(dsn, "psycopg")), source="shop", broker="local"
    ),
    "threads over psycopg": lambda dsn: Onefold(dsn, source="shop", broker="local"),
    "engine over psycopg2": lambda dsn: Onefold(
        create_engine(engine_url(dsn, "psycopg2")), source="shop", broker="local"
    ),
    "engine over psycopg": lambda dsn: Onefold(
        create_engine(engine_url(dsn, "psycopg")), source="shop", broker="local"
    ),
}


def engine_url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


@pytest.fixture(params=ONEFOLDS)
async def once(request: pytest.FixtureRequest, postgres_dsn: str) -> AsyncIterator[AnyOnefold]:
    async with made(ONEFOLDS[request.param], postgres_dsn) as once:
        yield once


@asynccontextmanager
async def made(make: Callable[[str], AnyOnefold], dsn: str) -> AsyncIterator[AnyOnefold]:
    once = make(dsn)
    pool = getattr(once._database, "_pool", None)
    if isinstance(pool, AsyncConnectionPool):
        await pool.open()
    if isinstance(once, Onefold):
        await asyncio.to_thread(once.migrate)
        yield once
        await asyncio.to_thread(once.close)
    else:
        await once.migrate()
        yield once
        await once.close()
    if isinstance(pool, AsyncConnectionPool):
        await pool.close()
    engine = getattr(once._database, "_engine", None)
    if engine is not None:
        disposed = engine.dispose()
        if disposed is not None:
            await disposed


async def publish(once: AnyOnefold, data: int) -> None:
    if isinstance(once, AsyncOnefold):
        async with once.transaction() as tx:
            await tx.publish("order.placed", data)
    else:
        await asyncio.to_thread(publish_on_thread, once, data)


def publish_on_thread(once: Onefold, data: int) -> None:
    with once.transaction() as tx:
        void(tx.publish("order.placed", data))


async def test_a_commit_is_told_to_other_processes(once: AnyOnefold, postgres_dsn: str) -> None:
    heard = asyncio.Event()
    listener = await asyncpg.connect(postgres_dsn)
    await listener.add_listener(CHANNEL, lambda *_: heard.set())
    await publish(once, 1)
    async with asyncio.timeout(PATIENCE_S):
        await heard.wait()
    await listener.close()


async def test_a_commit_of_another_process_is_heard(once: AnyOnefold, postgres_dsn: str) -> None:
    """On a connection that is replaced when it is lost, and does not go back to its pool."""
    heard, wakeups = Wakeups(), Wakeups()
    signal = heard.listen()
    database = once._for_workers()
    teller = await asyncpg.connect(postgres_dsn)
    async with listening(database, heard.set, wakeups=wakeups):
        for _ in range(2):
            await until(lambda: bool(wakeups.listeners))
            signal.clear()
            await teller.execute(f"NOTIFY {CHANNEL}")
            assert await signal.wait(PATIENCE_S)
            await teller.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%' AND pid <> "
                "pg_backend_pid()"
            )
            await until(lambda: not wakeups.listeners)
    assert not wakeups.listeners
    await teller.close()


async def test_what_a_process_tells_others_it_does_not_hear_itself(
    once: AnyOnefold, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its relay has been told by a signal: woken twice, it would look in vain while the consumer is at work."""
    judge, wakeups = notify_listener._NotifyListener._dispatch, Wakeups()
    judged: list[str] = []
    heard: list[int] = []

    def note(listener: Any, *senders: str) -> None:
        judge(listener, *senders)
        judged.extend(told for told in senders if told != listener._probe)

    monkeypatch.setattr(notify_listener._NotifyListener, "_dispatch", note)
    sender = once._notifier.sender
    async with listening(once._for_workers(), lambda: heard.append(1), sender=sender, wakeups=wakeups):
        await until(lambda: bool(wakeups.listeners))
        await publish(once, 1)
        await until(lambda: judged == [sender])
        assert heard == [1], "when it began to listen, and not again"
        teller = await asyncpg.connect(postgres_dsn)
        await teller.execute(f"NOTIFY {CHANNEL}")
        await until(lambda: judged == [sender, ""])
        assert heard == [1, 1]
        await teller.close()


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("size", [1, 2])
async def test_a_listener_that_is_cancelled_twice_gives_its_connection_back(
    size: int, turns: int, postgres_dsn: str
) -> None:
    """The second time while it ends its LISTEN, or waits for its probe: its pool missed the connection for ever."""

    async def listen(database: AsyncPsycopgDatabase, heard: asyncio.Event) -> None:
        async with listening(database, heard.set):
            await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_S), AsyncConnectionPool(postgres_dsn, min_size=size, max_size=size) as pool:
        heard = asyncio.Event()
        task = asyncio.create_task(listen(AsyncPsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S), heard))
        await heard.wait()
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert [each for each in asyncio.all_tasks() if "run_async" in repr(each.get_coro())] == []
        for connection in [await pool.getconn() for _ in range(size)]:
            await pool.putconn(connection)


async def test_a_connection_that_is_listened_on_no_more_leaves_without_a_word(
    once: AnyOnefold, postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool of psycopg warns of connections that come back closed, and nothing was wrong."""
    wakeups = Wakeups()
    async with listening(once._for_workers(), lambda: None, wakeups=wakeups):
        await until(lambda: bool(wakeups.listeners))
    await publish(once, 1)  # on the same connection, where it has gone back
    teller = await asyncpg.connect(postgres_dsn)
    found = await teller.fetch("SELECT 1 FROM pg_stat_activity WHERE query ILIKE 'LISTEN%' AND pid <> pg_backend_pid()")
    await teller.close()
    assert found == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
async def test_a_thread_that_listens_hears_at_once(
    driver: str, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not when it has waited for as long as it does at a time."""
    monkeypatch.setattr(notify_listener, "_WAIT_S", NEVER_S)
    heard = threading.Event()
    connected = await asyncio.to_thread(import_module(driver).connect, postgres_dsn)
    connected.autocommit = True
    connected.cursor().execute(f"LISTEN {CHANNEL}")
    wait = notify_listener._wait if driver == "psycopg" else notify_listener._wait_psycopg2

    def listen() -> None:
        if wait(connected):
            heard.set()

    threading.Thread(target=listen, daemon=True).start()
    teller = await asyncpg.connect(postgres_dsn)
    await teller.execute(f"NOTIFY {CHANNEL}")
    await teller.close()
    assert await asyncio.to_thread(heard.wait, PATIENCE_S)
    connected.close()


class Desk:
    """A consumer, and what it has handled."""

    def __init__(self, once: AnyOnefold) -> None:
        self.handled: list[Any] = []

        if isinstance(once, Onefold):

            @once.consumer("fulfilment", topic="order.placed")
            def ship(message: Message) -> None:
                self.handled.append(message.json())

        else:

            @once.consumer("fulfilment", topic="order.placed")
            async def ship_async(message: Message) -> None:
                self.handled.append(message.json())

    async def see(self, *wanted: int) -> None:
        async with asyncio.timeout(SOON_S):
            await until(lambda: self.handled == list(wanted))


@asynccontextmanager
async def at_work(once: AnyOnefold, worker: Any) -> AsyncIterator[None]:
    if isinstance(once, AsyncOnefold):
        async with worker:
            yield
        return
    await asyncio.to_thread(worker.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(worker.__exit__, None, None, None)


async def subscribed(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)

    async def is_there() -> bool:
        return bool(await connection.fetchval("SELECT count(*) FROM onefold_subscription"))

    await until(is_there)
    await connection.close()


@pytest.mark.usefixtures("no_polls")
async def test_within_a_process_a_publish_wakes_a_local_consumer(once: AnyOnefold, postgres_dsn: str) -> None:
    desk = Desk(once)
    async with at_work(once, once.consuming()):
        await subscribed(postgres_dsn)
        async with at_work(once, once.relaying(**SELDOM)):
            for number in range(3):
                await publish(once, number)
                await desk.see(*range(number + 1))


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("driver", ONEFOLDS)
async def test_between_processes_both_the_relay_and_the_consumer_are_woken(driver: str, postgres_dsn: str) -> None:
    """Three of them that share nothing but the database."""
    async with AsyncExitStack() as stack:
        writer, session, consumer = [
            await stack.enter_async_context(made(ONEFOLDS[driver], postgres_dsn)) for _ in range(3)
        ]
        desk = Desk(consumer)
        await stack.enter_async_context(at_work(consumer, consumer.consuming()))
        await subscribed(postgres_dsn)
        await stack.enter_async_context(at_work(session, session.relaying(**SELDOM)))
        for number in range(3):
            await publish(writer, number)
            await desk.see(*range(number + 1))


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("kind", [AsyncOnefold, Onefold])
async def test_the_same_within_a_process_on_sqlite(kind: type[AnyOnefold], sqlite_path: Path) -> None:
    once = kind(sqlite_path, source="shop")
    desk = Desk(once)
    async with at_work(once, once.consuming()):
        await until(lambda: bool(once._wakeups._signals))
        async with at_work(once, once.relaying(**SELDOM)):
            for number in range(3):
                await publish(once, number)
                await desk.see(*range(number + 1))
    if isinstance(once, AsyncOnefold):
        await once.close()
    else:
        once.close()


class Clock:
    """Time as the local broker sees it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("heard", "looks_max"), [(True, 5), (False, 620)])
async def test_an_idle_consumer_looks_seldom_however_often_it_is_asked(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch, heard: bool, looks_max: int
) -> None:
    """In a minute: every 15 seconds, which is half a lease, where it hears of other processes, ten times a second where
    it does not."""
    database, clock, wakeups = async_database(str(sqlite_path)), Clock(), Wakeups()
    await run_async(migrate("sqlite", MIGRATIONS["sqlite"]), TaskExecutor(database))
    if heard:
        wakeups.listeners.add("a listener")
    broker = LocalBroker(database, wakeups=wakeups)
    subscription = await broker.subscribe("fulfilment", ["order.placed"])
    looks = 0
    take = broker._take

    async def counting(consumer: str, holder: str, limit: int) -> Any:
        nonlocal looks
        looks += 1
        return await take(consumer, holder, limit)

    monkeypatch.setattr(broker, "_take", counting)
    monkeypatch.setattr(local, "time", clock)
    for _ in range(6000):
        assert await subscription.receive(10, 0.0) == []
        clock.now += 0.01
    assert 0 < looks <= looks_max
    await broker.publish([Sent(id="m1", source="shop", topic="order.placed", data=b"{}")])
    clock.now -= 0.01  # it is not time to look
    assert len(await subscription.receive(10, PATIENCE_S)) == 1, "what was signalled is looked for at once"
    looks = 0
    for _ in range(500):
        assert await subscription.receive(10, 0.0) == []
        clock.now += 0.01
    assert looks == 0 if heard else looks > 40, "what is heard of needs one look, and no others to be sure"
    await subscription.close()
    await database.close()


async def test_a_burst_of_commits_on_threads_is_told_once_or_twice(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "NOTIFY_EVERY_S", 0.3)
    heard: list[object] = []
    listener = await asyncpg.connect(postgres_dsn)
    await listener.add_listener(CHANNEL, lambda *_: heard.append(1))
    once = Onefold(postgres_dsn, source="shop")
    await asyncio.to_thread(once.migrate)
    for _ in range(50):
        once._notifier.notify()
    await until(lambda: bool(heard))
    await asyncio.to_thread(once.close)
    assert len(heard) <= 2
    assert not any(thread.name == "onefold-notifier" for thread in threading.enumerate())
    await listener.close()


async def test_a_relay_that_hears_of_commits_looks_once_for_each_and_seldom_by_itself(postgres_dsn: str) -> None:
    """Beside one that does not listen, as a control: it looks again and again, less and less often."""
    async with made(ONEFOLDS["asyncpg"], postgres_dsn) as once:
        looks = {True: 0, False: 0}

        class Counted(Relay):
            async def _tick(self) -> Any:
                looks[self._listens] += 1
                return await super()._tick()

        stop = asyncio.Event()
        relays = {
            listens: Counted(once._for_workers(), ScriptedBroker(), listens=listens, poll_s_max=0.1, lease_s=600.0)
            for listens in looks
        }
        running = [asyncio.create_task(relay.run(stop)) for relay in relays.values()]
        await until(lambda: bool(relays[True]._wakeups.listeners))
        await until(lambda: looks[False] > 10)
        for listens in looks:
            looks[listens] = 0
        await publish(once, 1)
        await until(lambda: looks[False] >= 40)
        stop.set()
        await asyncio.gather(*running)
        assert 1 <= looks[True] <= 10


@pytest.mark.parametrize(
    ("driver", "error"),
    [
        ("asyncpg", RuntimeError("a hook of the pool")),
        ("asyncpg", asyncio.CancelledError()),
        ("threads over psycopg", RuntimeError("a hook of the pool")),
    ],
)
async def test_who_cannot_listen_at_first_listens_later(
    driver: str, error: BaseException, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CancelledError out of a driver is not the listener's own end, and no other error is, either."""
    monkeypatch.setattr(notify_listener, "RELISTEN_S", 0.01)
    errors, wakeups = [error], Wakeups()
    async with made(ONEFOLDS[driver], postgres_dsn) as once:
        database = once._for_workers()
        asked: Any = getattr(database, "database", database)
        acquire = asked.acquire

        def acquire_later() -> Any:
            if errors:
                raise errors.pop()
            return acquire()

        monkeypatch.setattr(asked, "acquire", acquire_later)
        async with listening(database, lambda: None, wakeups=wakeups):
            await until(lambda: bool(wakeups.listeners))
    assert not errors


async def test_an_ear_that_hears_nothing_does_not_count(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As through a pooler that shares sessions between clients: LISTEN is taken, and what is told goes elsewhere."""
    heard, wakeups = asyncio.Event(), Wakeups()
    monkeypatch.setattr(notify_listener, "_NOTIFY", "SELECT $1::text, $2::text")
    make = ONEFOLDS["asyncpg"]
    async with made(make, postgres_dsn) as once, listening(once._for_workers(), heard.set, wakeups=wakeups):
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        heard.clear()
        await publish(once, 1)
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        assert not wakeups.listeners


@pytest.mark.usefixtures("no_polls")
async def test_an_operators_action_wakes_relays_and_consumers_of_other_processes(postgres_dsn: str) -> None:
    async with made(ONEFOLDS["asyncpg"], postgres_dsn) as once:
        wakeups, heard = Wakeups(), asyncio.Event()
        acted = wakeups.actions.listen()
        async with (
            listening(once._for_workers(), heard.set, wakeups=Wakeups()),
            listening(once._for_workers(), lambda: None, channel=DELIVERY_CHANNEL, wakeups=wakeups),
        ):
            await until(lambda: bool(wakeups.listeners))
            heard.clear()
            assert await run_flow(once, lambda dialect: pause(dialect, "fulfilment", "ada"))
            await asyncio.wait_for(heard.wait(), PATIENCE_S)
            assert await acted.wait(PATIENCE_S)
