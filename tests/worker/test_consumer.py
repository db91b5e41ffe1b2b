"""Consumers as a process: they receive, handle and acknowledge, run what is due, pause, go on and stop."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel.effects import Boundary
from onefold._kernel.events import ConsumerPaused, ConsumerResumed, DeadLettered, Handled
from onefold._kernel.lanes import TaskLane
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import SqliteDatabase, async_sqlite
from onefold.db.threads import ThreadedDatabase, off_loop_handle
from onefold.errors import ConfigurationError
from onefold.inbox.model import Consumer
from onefold.testing.servers import PrivatePostgres
from onefold.worker.consumer import Consuming
from tests.inbox.worlds import World, message, sqlite_world
from tests.worker.consuming import MemoryBroker, running, until


def consuming(world: World, broker: MemoryBroker, *consumers: Consumer, **settings: Any) -> Consuming:
    return Consuming(
        world.database,
        broker,
        consumers or (world.consumer(),),
        transaction=lambda lane: Transaction(lane, world.outbox.outgoing),
        listener=world.events.append,
        **settings,
    )


async def test_what_is_received_is_handled_once_and_acknowledged(world: World) -> None:
    broker = MemoryBroker()
    names = [f"m{number}" for number in range(20)]
    broker.put(*map(message, names + names[:5]))
    broker.put(message("m3"), redelivered=True)
    broker.put_raw(b"?", "no envelope")
    async with running(consuming(world, broker)):
        await until(lambda: broker.idle)
    assert await world.effects() == sorted(names)
    assert len(broker.acked) == 27
    assert [letter.state for letter in (await world.letters()).values()] == ["dead"]


async def test_a_letter_is_run_when_it_is_due(world: World) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        world.calls.append(given.id)
        await world.write(tx, given.id)
        if len(world.calls) < 3:
            raise RuntimeError

    broker = MemoryBroker()
    broker.put(message())
    async with running(consuming(world, broker, world.consumer(handler, retry_base_s=0.01))):
        await until(lambda: Handled("billing", "order.placed") in world.events)
    assert (broker.acked, await world.effects(), len(world.calls)) == (["m1"], ["m1"], 3)


async def test_a_batch_with_a_bad_one_is_handled_one_by_one_and_only_that_one_is_a_letter(world: World) -> None:
    sizes: list[int] = []

    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        sizes.append(len(given))
        for one in given:
            await world.write(tx, one.id)
            if one.id == "bad":
                raise RuntimeError

    broker = MemoryBroker()
    names = [f"m{number}" for number in range(8)]
    broker.put(*map(message, names[:4]), message("bad"), *map(message, names[4:]))
    async with running(consuming(world, broker, world.consumer(handler, batch=100, concurrency=1))):
        await until(lambda: broker.idle)
    assert sizes == [9] + [1] * 9
    assert (await world.effects(), list(await world.letters())) == (names, ["bad"])


async def test_of_one_stream_only_one_is_handled_at_a_time_and_streams_do_not_wait_for_each_other(
    on_postgres: World,
) -> None:
    world = on_postgres
    now: list[str] = []
    together: set[frozenset[str]] = set()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        assert given.key is not None
        assert given.key not in now, "two of one stream at once"
        now.append(given.key)
        together.add(frozenset(now))
        await asyncio.sleep(0.005)
        now.remove(given.key)

    broker = MemoryBroker()
    broker.put(*(message(f"{key}{n}", key=key, version=n) for n in range(1, 6) for key in "abcdefgh"))
    async with running(consuming(world, broker, world.consumer(handler, order="strict", concurrency=4))):
        await until(lambda: broker.idle)
    assert max(map(len, together)) > 1
    assert await world.letters() == {}, "nothing was early, because nothing overtook"


async def test_a_sync_handler_runs_on_a_thread_with_its_own_connection(sqlite_path: Any) -> None:
    async with sqlite_world(sqlite_path) as world:
        seen: list[str] = []

        def handler(given: Message, tx: Transaction[sqlite3.Connection]) -> None:
            seen.append(threading.current_thread().name)
            tx.connection.execute("INSERT INTO effects VALUES (?)", (given.id,))

        database = SqliteDatabase(sqlite_path)
        broker = MemoryBroker()
        broker.put(message("m1"), message("m2"))
        consumers = Consuming(ThreadedDatabase(database, off_loop_handle), broker, [world.consumer(handler)])
        async with running(consumers):
            await until(lambda: broker.idle)
        database.close()
        assert await world.effects() == ["m1", "m2"]
        assert all(name.startswith("onefold-handler") for name in seen)


async def test_what_takes_long_is_kept_at_the_broker(world: World) -> None:
    leave = asyncio.Event()

    async def handler(given: Message) -> None:
        await leave.wait()

    broker = MemoryBroker(keep_every_s=0.01)
    broker.put(message())
    async with running(consuming(world, broker, world.consumer(handler))):
        await until(lambda: broker.kept.count("m1") > 2)
        leave.set()
        await until(lambda: broker.idle)
    assert broker.acked == ["m1"]


async def test_a_stop_finishes_what_is_being_handled_and_gives_back_the_rest(world: World) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await world.write(tx, given.id)
        entered.set()
        await leave.wait()

    broker = MemoryBroker()
    broker.put(message("m1"), message("m2"), message("m3"))
    async with running(consuming(world, broker, world.consumer(handler, concurrency=1))) as stop:
        await entered.wait()
        stop.set()
        leave.set()
    assert (await world.effects(), broker.acked) == (["m1"], ["m1"])
    assert sorted(broker.given_back) == ["m2", "m3"]


async def test_a_handler_that_does_not_end_in_time_is_cut_off_and_rolled_back(world: World) -> None:
    entered = asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await world.write(tx, given.id)
        entered.set()
        await asyncio.Event().wait()

    broker = MemoryBroker()
    broker.put(message())
    async with running(consuming(world, broker, world.consumer(handler), grace_s=0.05)) as stop:
        await entered.wait()
        stop.set()
    assert (await world.effects(), broker.acked) == ([], [])
    assert broker.given_back == ["m1"]


async def test_a_broker_that_is_away_is_waited_for_and_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    broker = MemoryBroker()
    broker.down = True
    async with running(consuming(world, broker)):
        await until(lambda: broker.opened > 1)
        broker.down = False
        broker.put(message("m1"))
        await until(lambda: broker.idle)
        broker.down = True
        broker.put(message("m2"))
        await until(lambda: any(isinstance(event, ConsumerPaused) for event in world.events))
        broker.down = False
        await until(lambda: broker.idle and ConsumerResumed("billing") in world.events)
    assert await world.effects() == ["m1", "m2"]
    assert sum(isinstance(event, ConsumerPaused) for event in world.events) == 1


async def test_letters_are_run_while_the_broker_is_away(world: World) -> None:
    async def failing(given: Message) -> None:
        raise RuntimeError

    await world.deliver(world.inbox(failing), message())
    await world.hours_pass()
    broker = MemoryBroker()
    async with running(consuming(world, broker)):
        await until(lambda: broker.subscriptions == 1)
        broker.down = True
        await until(lambda: Handled("billing", "order.placed") in world.events)
        broker.down = False
    assert await world.effects() == ["m1"]


async def test_a_key_that_cannot_be_written_does_not_stop_the_consumer(world: World) -> None:
    broker = MemoryBroker()
    broker.put(message("m1", key="half \ud800", version=1), message("m2", key="whole", version=1))
    async with running(consuming(world, broker)):
        await until(lambda: broker.idle)
    assert await world.effects() == ["m2"]
    assert [letter.state for letter in (await world.letters()).values()] == ["dead"]


async def test_an_outage_of_the_database_counts_as_nobody_s_failure(mortal_postgres: PrivatePostgres) -> None:
    dsn = mortal_postgres.fresh_database()
    database = AsyncpgDatabase(dsn, acquire_timeout_s=1.0)
    world = World(database)
    await world.prepare()
    broker = MemoryBroker()
    async with running(consuming(world, broker)):
        broker.put(message("m1"))
        await until(lambda: broker.idle)
        mortal_postgres.kill()
        broker.put(message("m2"), message("m3"))
        await until(lambda: any(isinstance(event, ConsumerPaused) for event in world.events))
        await until(lambda: bool(broker.given_back))
        mortal_postgres.restart()
        await until(lambda: broker.idle)
        await until(lambda: sum(isinstance(event, Handled) for event in world.events) == 3)
        await until(lambda: ConsumerResumed("billing") in world.events)
    assert (await world.effects(), await world.letters()) == (["m1", "m2", "m3"], {})
    await database.close()


async def test_a_message_that_was_at_hand_in_every_death_ends_as_a_dead_letter(world: World) -> None:
    """The deaths are told by what they leave: a letter that was started more often than it failed."""

    async def failing(given: Message) -> None:
        raise RuntimeError

    await world.deliver(world.inbox(failing), message())
    await world.change("UPDATE onefold_letter SET started = failed + 3")
    await world.hours_pass()
    async with running(consuming(world, MemoryBroker())):
        await until(lambda: any(isinstance(event, DeadLettered) for event in world.events))
    assert (await world.letters())["m1"].state == "dead"
    assert world.calls == []


async def test_processes_share_the_letters_that_are_due_and_run_each_once(on_postgres: World) -> None:
    world = on_postgres

    async def failing(given: Message) -> None:
        raise RuntimeError

    names = [f"m{number:02}" for number in range(30)]
    for name in names:
        await world.deliver(world.inbox(failing), message(name))
    await world.hours_pass()
    async with running(consuming(world, MemoryBroker())), running(consuming(world, MemoryBroker())):
        await until(lambda: sum(isinstance(event, Handled) for event in world.events) == 30)
    assert (sorted(world.calls), await world.effects(), await world.letters()) == (names, names, {})


async def test_a_lock_that_someone_holds_for_long_is_waited_for_with_the_delivery_in_hand(sqlite_path: Path) -> None:
    async with sqlite_world(sqlite_path) as world:
        database = async_sqlite(sqlite_path, busy_timeout_s=0.05)
        broker = MemoryBroker()
        lane: TaskLane[Any] = TaskLane(world.database)
        async with running(Consuming(database, broker, [world.consumer()])):
            await until(lambda: bool(broker.subscriptions))
            await lane.acquire()
            await lane.batch((Boundary.BEGIN,))
            broker.put(message())
            await until(lambda: bool(broker.out))
            await asyncio.sleep(0.2)  # several times longer than the patience for the lock
            await lane.batch((Boundary.ROLLBACK,))
            await lane.release()
            await until(lambda: broker.idle)
        assert (broker.acked, broker.given_back, await world.effects()) == (["m1"], [], ["m1"])
        await database.close()


@pytest.mark.parametrize("seed", range(2))
async def test_three_processes_keep_the_order_of_every_key_whatever_is_shuffled_and_refused(
    on_postgres: World, seed: int
) -> None:
    world, dice = on_postgres, random.Random(seed)
    await world.change("CREATE TABLE log (at bigserial, key text, version int)")

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        sql = "INSERT INTO log (key, version) VALUES ($1, $2)"
        await tx.connection.execute(sql, given.key, given.version)
        if dice.random() < 0.1:
            raise RuntimeError

    keys, versions = "abcdefgh", range(1, 13)
    given = [message(f"{key}{n}", key=key, version=n) for key in keys for n in versions] * 2
    dice.shuffle(given)
    given.sort(key=lambda one: one.version != 1)
    brokers = [MemoryBroker() for _ in range(3)]
    for one in given:
        dice.choice(brokers).put(one, redelivered=dice.random() < 0.2)
    consumer = world.consumer(handler, order="strict", attempts=100, retry_base_s=0.01, retry_cap_s=0.05, concurrency=3)

    async def done() -> bool:
        return len(await world.rows("SELECT 1 FROM log")) >= len(keys) * len(versions) and not await world.letters()

    async with AsyncExitStack() as stack:
        for broker in brokers:
            await stack.enter_async_context(running(consuming(world, broker, consumer)))
        await until(done)
    for key in keys:
        rows = await world.rows(f"SELECT version FROM log WHERE key = '{key}' ORDER BY at")
        assert [version for (version,) in rows] == list(versions)


async def test_health_is_how_long_ago_a_consumer_got_round(world: World) -> None:
    broker = MemoryBroker()
    consumers = consuming(world, broker)
    async with running(consumers):
        await until(lambda: broker.subscriptions == 1)
        await until(lambda: consumers.alive()["billing"] < 1)


async def test_a_broker_that_is_absent_from_the_start_makes_nobody_unwell(world: World) -> None:
    broker = MemoryBroker()
    broker.down = True
    consumers = consuming(world, broker)
    async with running(consumers):
        await until(lambda: broker.opened > 1)
        stations = [gate.station for gate in consumers._gates]
        began_at = [station.turned_at for station in stations if station is not None]
        await until(lambda: [station.turned_at for station in stations if station is not None] > began_at)
        assert len(began_at) == 1


async def test_trouble_with_our_own_code_is_logged_and_survived(world: World, caplog: pytest.LogCaptureFixture) -> None:
    made: list[Any] = []

    def transaction(lane: Any) -> Transaction[Any]:
        made.append(lane)
        if len(made) == 1:
            raise LookupError("a factory that fails once")
        return Transaction(lane, world.outbox.outgoing)

    broker = MemoryBroker()
    broker.put(message())
    async with running(Consuming(world.database, broker, [world.consumer()], transaction=transaction)):
        await until(lambda: broker.idle)
    assert await world.effects() == ["m1"]
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


def test_a_ledger_that_forgets_before_the_broker_does_is_refused_at_start(world: World) -> None:
    broker = MemoryBroker()
    broker.redelivery_s = 10_000_000.0
    with pytest.raises(ConfigurationError, match="10000000 s"):
        consuming(world, broker)
