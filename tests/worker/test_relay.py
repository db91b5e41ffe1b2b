"""The relay as a process: it wakes, waits, pauses, hands over and begins anew, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from onefold._kernel.log_context import ATTRIBUTE
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.wakeup_signals import Signal
from onefold._outbox.destinations import PROBE_ROWS
from onefold._outbox.retention import forget
from onefold._worker import relay_loop as module
from onefold._worker.relay_loop import Relay
from onefold._worker.wakeup import Notifier
from onefold.brokers.nats import NatsBroker
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused
from onefold.telemetry import BucketsHeld, Event, Forgotten, Relayed, RelayPaused, RelayResumed, SetAside
from onefold.testing.servers import PrivateNats, PrivatePostgres
from tests.outbox.relaying import ScriptedBroker, Stage, opened
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


@pytest.fixture
async def on_postgres(postgres_dsn: str) -> AsyncIterator[Stage]:
    stage = Stage(AsyncpgDatabase(postgres_dsn))
    await stage.migrate()
    yield stage
    await stage.database.close()


@asynccontextmanager
async def running(stage: Stage, **settings: Any) -> AsyncIterator[Relay]:
    """A relay at work; stopped in order at the end, and its errors raised."""
    relay = Relay(stage.database, settings.pop("broker", stage.broker), **settings)
    stop = asyncio.Event()
    task = asyncio.create_task(relay.run(stop))
    try:
        yield relay
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await task


@asynccontextmanager
async def dying(stage: Stage, **settings: Any) -> AsyncIterator[Relay]:
    """A relay whose process ends with the block, and does nothing about it."""
    relay = Relay(stage.database, stage.broker, **settings)
    task = asyncio.create_task(relay.run(asyncio.Event()))
    try:
        yield relay
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def never_polling(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Settings under which a relay that waits is woken, or waits for a minute."""
    monkeypatch.setattr(module, "POLL_S_MIN", 60.0)
    return {"poll_s_max": 60.0, "lease_s": 600.0}


# --- at work ------------------------------------------------------------------------------------------------


async def test_a_relay_publishes_what_is_committed_and_leaves_nothing_behind_when_it_stops(stage: Stage) -> None:
    told: list[Event] = []
    await stage.write(("a1", "a"))
    async with running(stage, listener=told.append):
        await until(lambda: stage.broker.names == ["a1"])
        await stage.write(("a2", "a"))
        await until(lambda: stage.broker.names == ["a1", "a2"])
    assert (stage.broker.opened, stage.broker.closed) == (1, 1)
    assert await stage.waiting() == 0
    assert await stage.fetch("SELECT count(*) FROM onefold_relay") == [(0,)]
    assert await stage.fetch("SELECT count(*) FROM onefold_bucket WHERE relay IS NOT NULL") == [(0,)]
    [held] = [event for event in told if isinstance(event, BucketsHeld)]
    assert held.buckets == 64
    assert [event for event in told if isinstance(event, Relayed)] == [Relayed(1, 0), Relayed(1, 0)]


async def test_what_is_in_flight_when_the_relay_is_stopped_is_confirmed_and_marked(stage: Stage) -> None:
    in_flight, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        in_flight.set()
        await go_on.wait()

    stage.broker.before = wait
    await stage.write(("a1", "a"), ("a2", "a"), ("b", "b"))
    stop = asyncio.Event()
    task = asyncio.create_task(Relay(stage.database, stage.broker, batch_max=640).run(stop))
    await asyncio.wait_for(in_flight.wait(), PATIENCE_S)
    stop.set()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(task, PATIENCE_S)
    assert sorted(stage.broker.names) == ["a1", "b"]
    assert await stage.fetch("SELECT data, started FROM onefold_outbox") == [(b"a2", 0)]


async def test_a_commit_in_the_same_process_wakes_the_relay(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    signal = Signal()
    stage.outbox.committed.append(signal.set)
    async with running(stage, signal=signal, listens=False, **never_polling(monkeypatch)):
        for number in range(1, 4):
            await asyncio.to_thread(lambda: None)
            await stage.write((str(number), "a"))
            await until(lambda number=number: len(stage.broker.taken) == number)  # type: ignore[misc]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_commit_in_another_process_wakes_the_relay_by_notify(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    writer = Stage(AsyncpgDatabase(postgres_dsn))
    await writer.migrate()
    notifier = Notifier(writer.database)
    writer.outbox.committed.append(notifier.notify)
    database: Any = AsyncpgDatabase(postgres_dsn) if driver == "asyncpg" else AsyncPsycopgDatabase(postgres_dsn)
    relays = Stage(database)

    async def listens() -> bool:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        return await writer.fetch(asked) == [(1,)]

    async with running(relays, **never_polling(monkeypatch)):
        await until(listens)
        for number in range(1, 4):
            await writer.write((str(number), "a"))
            await until(lambda number=number: len(relays.broker.taken) == number)  # type: ignore[misc]
    await notifier.close()
    await relays.database.close()
    await writer.database.close()


async def test_a_delayed_event_leaves_when_it_is_due(stage: Stage) -> None:
    async with running(stage, poll_s_max=0.05):
        due_at = datetime.now(UTC) + timedelta(seconds=1)
        await stage.write(("later", None), not_before=due_at)
        await until(lambda: stage.broker.names == ["later"])
        assert datetime.now(UTC) >= due_at


async def test_a_refused_event_is_tried_again_by_itself(stage: Stage) -> None:
    refused: list[Message] = []

    def answer(message: Message) -> Confirm:
        if message.data == b"a1" and len(refused) < 1:
            refused.append(message)
            return MessageRefused("not yet")
        return None

    stage.broker.answer = answer
    await stage.write(("a1", "a"), ("a2", "a"), ("b1", "b"))
    async with running(stage, draw=lambda: 0.0, poll_s_max=0.05):
        await until(lambda: len(stage.broker.taken) == 3)
    assert stage.broker.names == ["b1", "a1", "a2"]


async def test_what_is_kept_is_forgotten_in_time(stage: Stage) -> None:
    told: list[Event] = []
    await stage.write(("a", "a"), ("b", "b"))
    async with running(stage, keep_published_s=0.2, poll_s_max=0.05, listener=told.append):
        await until(lambda: Forgotten(2) in told)
    assert await stage.fetch("SELECT count(*) FROM onefold_outbox") == [(0,)]


async def test_what_was_kept_by_an_earlier_setting_is_forgotten_too(stage: Stage) -> None:
    told: list[Event] = []
    await stage.write(("a", "a"), ("b", "b"))
    async with running(stage, keep_published_s=3600, poll_s_max=0.05):
        await until(lambda: len(stage.broker.taken) == 2)
    assert await stage.fetch("SELECT count(*) FROM onefold_outbox") == [(2,)]
    async with running(stage, keep_published_s=0, poll_s_max=0.05, listener=told.append):
        await until(lambda: Forgotten(2) in told)
    assert await stage.fetch("SELECT count(*) FROM onefold_outbox") == [(0,)]


async def test_many_that_were_kept_are_forgotten_in_one_go(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deleted at a time is bounded; how long it waits for the next time is not to depend on how seldom the
    relay looks."""
    told: list[Event] = []
    await stage.write(*((name, name) for name in "abcde"))
    async with running(stage, keep_published_s=3600, poll_s_max=0.05):
        await until(lambda: len(stage.broker.taken) == 5)
    monkeypatch.setattr(module, "forget", functools.partial(forget, limit=1, batches_max=1))
    monkeypatch.setattr(module, "FORGET_MAX", 1)
    async with running(stage, keep_published_s=0, poll_s_max=60, listener=told.append):
        await until(lambda: told.count(Forgotten(1)) == 5)
    assert await stage.fetch("SELECT count(*) FROM onefold_outbox") == [(0,)]


# --- outages ------------------------------------------------------------------------------------------------


async def test_an_outage_of_the_broker_is_told_once_and_ends_by_itself(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Event] = []
    down = True
    stage.broker.answer = lambda message: BrokerUnavailable("nobody answers") if down else None
    await stage.write(*((str(number), "a") for number in range(30)), *((str(number), None) for number in range(30)))
    async with running(stage, listener=told.append, batch_max=640, draw=lambda: 0.0):
        await until(lambda: len(stage.broker.calls) >= 4)
        assert all(len(call) <= PROBE_ROWS for call in stage.broker.calls[1:])
        assert await stage.fetch("SELECT sum(started), sum(finished) FROM onefold_outbox") == [(0, 0)]
        down = False
        await until(lambda: len(stage.broker.taken) == 60)
    pauses = [event for event in told if isinstance(event, RelayPaused | RelayResumed)]
    assert [type(event) for event in pauses] == [RelayPaused, RelayResumed]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert stage.broker.first_versions()["a"] == list(range(1, 31))


async def test_a_broker_that_is_away_at_the_start_is_waited_for(stage: Stage) -> None:
    class Late(ScriptedBroker):
        async def open(self) -> None:
            await super().open()
            if self.opened < 3:
                raise BrokerUnavailable("not up yet")

    broker = Late()
    await stage.write(("a", "a"))
    async with running(stage, broker=broker, draw=lambda: 0.0):
        await until(lambda: broker.names == ["a"])
    assert broker.opened == 3


async def test_a_broker_with_unsafe_settings_ends_the_relay(stage: Stage) -> None:
    class Unsafe(ScriptedBroker):
        async def open(self) -> None:
            raise ConfigurationError("acks=1")

    with pytest.raises(ConfigurationError, match="acks=1"):
        await Relay(stage.database, Unsafe()).run(asyncio.Event())


async def test_a_relay_survives_its_database(
    mortal_postgres: PrivatePostgres, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Event] = []
    dsn = mortal_postgres.fresh_database()
    stage = Stage(AsyncpgDatabase(dsn, acquire_timeout_s=2.0))
    await stage.migrate()
    await stage.write(("a1", "a"), ("a2", "a"), ("b", "b"))

    async def die_once() -> None:
        stage.broker.before = None
        await asyncio.to_thread(mortal_postgres.kill)

    stage.broker.before = die_once
    async with running(stage, listener=told.append, batch_max=640, draw=lambda: 0.0):
        await until(lambda: any(isinstance(event, RelayPaused) for event in told))
        await asyncio.to_thread(mortal_postgres.restart)
        await until(lambda: any(isinstance(event, RelayResumed) for event in told))
        await stage.write(("a3", "a"))
        await until(lambda: "a3" in stage.broker.names)
    # What was confirmed while the database was away was marked when it came back, and not published again.
    assert sorted(stage.broker.names) == ["a1", "a2", "a3", "b"]
    assert stage.broker.first_versions()["a"] == [1, 2, 3]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    await stage.database.close()


async def test_a_relay_without_tables_says_so_once_and_waits_for_them(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(AsyncpgDatabase(postgres_dsn))
    async with running(stage, draw=lambda: 0.0):
        await until(lambda: "onefold migrate" in caplog.text)
        await stage.migrate()
        await stage.write(("a", "a"))
        await until(lambda: stage.broker.names == ["a"])
    await stage.database.close()


# --- several ------------------------------------------------------------------------------------------------


async def test_a_relay_that_was_taken_for_dead_begins_anew_under_another_id(stage: Stage) -> None:
    told: list[Event] = []
    async with running(stage, lease_s=0.6, listener=told.append):
        await until(lambda: bool(told))
        await stage.execute("DELETE FROM onefold_relay")
        await stage.write(("a", "a"))
        await until(lambda: stage.broker.names == ["a"])
        relays = await stage.fetch("SELECT relay FROM onefold_relay")
    [first] = [event for event in told if isinstance(event, BucketsHeld)]
    assert relays != [(first.relay,)]


def held_of(told: list[Event]) -> int | None:
    """How many buckets a relay holds, as it last told."""
    return next((event.buckets for event in reversed(told) if isinstance(event, BucketsHeld)), None)


async def test_when_a_relay_dies_another_has_its_buckets_as_soon_as_its_lease_is_over(stage: Stage) -> None:
    told: list[Event] = []
    async with running(stage, lease_s=0.6, listener=told.append):
        async with dying(stage, lease_s=0.6):
            await until(lambda: held_of(told) == 32)
        await stage.write(*((str(number), f"k{number}") for number in range(64)))
        await until(lambda: len(stage.broker.taken) == 64)
        await until(lambda: held_of(told) == 64)


async def test_when_a_relay_stops_another_has_its_buckets_at_once(stage: Stage) -> None:
    # On a machine that stands still for longer than the lease, there is no other that could have them: again, then.
    for _ in range(5):
        if (held := await held_after_one_of_two_stopped(stage)) == [(1, 64)]:
            break
    assert held == [(1, 64)]


async def held_after_one_of_two_stopped(stage: Stage) -> list[tuple[Any, ...]]:
    """By how many relays, and how many buckets."""
    told: list[Event] = []
    async with running(stage, lease_s=1.5, listener=told.append):
        async with running(stage, broker=ScriptedBroker(), lease_s=1.5):
            await until(lambda: held_of(told) == 32)
        return await stage.fetch("SELECT count(DISTINCT relay), count(relay) FROM onefold_bucket")


class Killed(BaseException):
    """As good as the death of the process: nothing catches it."""


async def test_an_event_that_kills_every_relay_is_set_aside_and_told(
    on_postgres: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = on_postgres
    told: list[Event] = []
    await stage.write(("killer", "a"), ("fine", "b"))

    def answer(message: Message) -> Confirm:
        if message.data == b"killer":
            raise Killed
        return None

    stage.broker.answer = answer
    for _ in range(3):
        relay = Relay(stage.database, stage.broker, lease_s=0.5, listener=told.append, batch_max=640)
        with pytest.raises(Killed):
            await asyncio.wait_for(relay.run(asyncio.Event()), PATIENCE_S)
    async with running(stage, lease_s=0.5, listener=told.append):
        await until(lambda: any(isinstance(event, SetAside) for event in told))
        await until(lambda: "fine" in stage.broker.names)
    [aside] = [event for event in told if isinstance(event, SetAside)]
    assert aside.topic == "t"
    fields = [vars(record).get(ATTRIBUTE) for record in caplog.records if record.levelno == logging.ERROR]
    assert {"event": "event.dead", "topic": "t", "message_id": aside.id} in fields
    assert [row[0] for row in await stage.fetch("SELECT data FROM onefold_outbox")] == [b"killer"]


async def test_a_pool_is_not_used_up_by_a_relay(postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=2) as pool:
        stage = Stage(AsyncpgDatabase(pool))
        await stage.migrate()
        async with running(stage):
            await stage.write(*((str(number), f"k{number}") for number in range(50)))
            await until(lambda: len(stage.broker.taken) == 50)


async def test_over_nats_every_event_arrives_once_and_in_the_order_of_its_key(
    on_postgres: Stage, nats: PrivateNats
) -> None:
    publishes, consumes = (NatsBroker(nats.url, stream="test-relay") for _ in range(2))
    await consumes.open()
    subscription = await consumes.subscribe("test-relay", ["t"])
    await on_postgres.write(*((str(number), f"k{number % 7}") for number in range(100)))
    arrived = ScriptedBroker()
    async with running(on_postgres, broker=publishes), asyncio.timeout(PATIENCE_S):
        while len(arrived.taken) < 100:
            deliveries = await subscription.receive(100, 1.0)
            arrived.taken += [delivery.message for delivery in deliveries if delivery.message is not None]
            await subscription.ack(deliveries)
    assert len({message.id for message in arrived.taken}) == 100
    assert all(versions == sorted(versions) for versions in arrived.first_versions().values())
    assert await on_postgres.waiting() == 0
    await subscription.close()
    await consumes.close()
