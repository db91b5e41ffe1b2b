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

from onefold._inbox.consumer import Consumer
from onefold._kernel.effects import Boundary
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.transaction import Transaction
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.db._threaded import ThreadedDatabase, off_loop_handle
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import SqliteDatabase, async_sqlite
from onefold.errors import ConfigurationError
from onefold.telemetry import ConsumerPaused, ConsumerResumed, DeadLettered, Handled
from onefold.testing.servers import PrivatePostgres
from tests.inbox.backends import Backend, create_tables, message, sqlite_backend
from tests.worker.consuming import MemoryBroker, running, until


def consuming(backend: Backend, broker: MemoryBroker, *consumers: Consumer, **settings: Any) -> ConsumerRunner:
    return ConsumerRunner(
        backend.database,
        broker,
        consumers or (backend.consumer(),),
        transaction=lambda executor: OwnedTransaction(executor, backend.outbox.new_buffer),
        listener=backend.events.append,
        **settings,
    )


async def test_what_is_received_is_handled_once_and_acknowledged(backend: Backend) -> None:
    broker = MemoryBroker()
    names = [f"m{number}" for number in range(20)]
    broker.put(*map(message, names + names[:5]))
    broker.put(message("m3"), redelivered=True)
    broker.put_raw(b"?", "no envelope")
    async with running(consuming(backend, broker)):
        await until(lambda: broker.idle)
    assert await backend.effects() == sorted(names)
    assert len(broker.acked) == 27
    assert [failed_message.state for failed_message in (await backend.failed_messages()).values()] == ["dead"]


async def test_a_failed_message_is_run_when_it_is_due(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        await backend.write(tx, given.id)
        if len(backend.calls) < 3:
            raise RuntimeError

    broker = MemoryBroker()
    broker.put(message())
    async with running(consuming(backend, broker, backend.consumer(handler, retry_base_s=0.01))):
        await until(lambda: Handled("billing", "order.placed") in backend.events)
    assert (broker.acked, await backend.effects(), len(backend.calls)) == (["m1"], ["m1"], 3)


async def test_a_batch_with_a_bad_one_is_handled_one_by_one_and_only_that_one_is_a_failed_message(
    backend: Backend,
) -> None:
    sizes: list[int] = []

    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        sizes.append(len(given))
        for one in given:
            await backend.write(tx, one.id)
            if one.id == "bad":
                raise RuntimeError

    broker = MemoryBroker()
    names = [f"m{number}" for number in range(8)]
    broker.put(*map(message, names[:4]), message("bad"), *map(message, names[4:]))
    async with running(consuming(backend, broker, backend.consumer(handler, batch=100, concurrency=1))):
        await until(lambda: broker.idle)
    assert sizes == [9] + [1] * 9
    assert (await backend.effects(), list(await backend.failed_messages())) == (names, ["bad"])


async def test_of_one_stream_only_one_is_handled_at_a_time_and_streams_do_not_wait_for_each_other(
    on_postgres: Backend,
) -> None:
    backend = on_postgres
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
    async with running(consuming(backend, broker, backend.consumer(handler, order="strict", concurrency=4))):
        await until(lambda: broker.idle)
    assert max(map(len, together)) > 1
    assert await backend.failed_messages() == {}, "nothing was early, because nothing overtook"


async def test_a_sync_handler_runs_on_a_thread_with_its_own_connection(sqlite_path: Any) -> None:
    async with sqlite_backend(sqlite_path) as backend:
        seen: list[str] = []

        def handler(given: Message, tx: Transaction[sqlite3.Connection]) -> None:
            seen.append(threading.current_thread().name)
            tx.connection.execute("INSERT INTO effects VALUES (?)", (given.id,))

        database = SqliteDatabase(sqlite_path)
        broker = MemoryBroker()
        broker.put(message("m1"), message("m2"))
        consumers = ConsumerRunner(ThreadedDatabase(database, off_loop_handle), broker, [backend.consumer(handler)])
        async with running(consumers):
            await until(lambda: broker.idle)
        database.close()
        assert await backend.effects() == ["m1", "m2"]
        assert all(name.startswith("onefold-handler") for name in seen)


async def test_what_takes_long_is_kept_at_the_broker(backend: Backend) -> None:
    leave = asyncio.Event()

    async def handler(given: Message) -> None:
        await leave.wait()

    broker = MemoryBroker(keep_every_s=0.01)
    broker.put(message())
    async with running(consuming(backend, broker, backend.consumer(handler))):
        await until(lambda: broker.kept.count("m1") > 2)
        leave.set()
        await until(lambda: broker.idle)
    assert broker.acked == ["m1"]


async def test_a_stop_finishes_what_is_being_handled_and_gives_back_the_rest(backend: Backend) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        entered.set()
        await leave.wait()

    broker = MemoryBroker()
    broker.put(message("m1"), message("m2"), message("m3"))
    async with running(consuming(backend, broker, backend.consumer(handler, concurrency=1))) as stop:
        await entered.wait()
        stop.set()
        leave.set()
    assert (await backend.effects(), broker.acked) == (["m1"], ["m1"])
    assert sorted(broker.given_back) == ["m2", "m3"]


async def test_a_handler_that_does_not_end_in_time_is_cut_off_and_rolled_back(backend: Backend) -> None:
    entered = asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        entered.set()
        await asyncio.Event().wait()

    broker = MemoryBroker()
    broker.put(message())
    async with running(consuming(backend, broker, backend.consumer(handler), grace_s=0.05)) as stop:
        await entered.wait()
        stop.set()
    assert (await backend.effects(), broker.acked) == ([], [])
    assert broker.given_back == ["m1"]


async def test_a_broker_that_is_away_is_waited_for_and_told_once(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    broker = MemoryBroker()
    broker.down = True
    async with running(consuming(backend, broker)):
        await until(lambda: broker.opened > 1)
        broker.down = False
        broker.put(message("m1"))
        await until(lambda: broker.idle)
        broker.down = True
        broker.put(message("m2"))
        await until(lambda: any(isinstance(event, ConsumerPaused) for event in backend.events))
        broker.down = False
        await until(lambda: broker.idle and ConsumerResumed("billing") in backend.events)
    assert await backend.effects() == ["m1", "m2"]
    assert sum(isinstance(event, ConsumerPaused) for event in backend.events) == 1


async def test_failed_messages_are_run_while_the_broker_is_away(backend: Backend) -> None:
    async def failing(given: Message) -> None:
        raise RuntimeError

    await backend.deliver(backend.inbox(failing), message())
    await backend.hours_pass()
    broker = MemoryBroker()
    async with running(consuming(backend, broker)):
        await until(lambda: broker.subscriptions == 1)
        broker.down = True
        await until(lambda: Handled("billing", "order.placed") in backend.events)
        broker.down = False
    assert await backend.effects() == ["m1"]


async def test_a_key_that_cannot_be_written_does_not_stop_the_consumer(backend: Backend) -> None:
    broker = MemoryBroker()
    broker.put(message("m1", key="half \ud800", version=1), message("m2", key="whole", version=1))
    async with running(consuming(backend, broker)):
        await until(lambda: broker.idle)
    assert await backend.effects() == ["m2"]
    assert [failed_message.state for failed_message in (await backend.failed_messages()).values()] == ["dead"]


async def test_an_outage_of_the_database_counts_as_nobody_s_failure(mortal_postgres: PrivatePostgres) -> None:
    dsn = mortal_postgres.fresh_database()
    database = AsyncpgDatabase(dsn, acquire_timeout_s=1.0)
    create_tables(dsn)
    backend = Backend(database)
    broker = MemoryBroker()
    async with running(consuming(backend, broker)):
        broker.put(message("m1"))
        await until(lambda: broker.idle)
        mortal_postgres.kill()
        broker.put(message("m2"), message("m3"))
        await until(lambda: any(isinstance(event, ConsumerPaused) for event in backend.events))
        await until(lambda: bool(broker.given_back))
        mortal_postgres.restart()
        await until(lambda: broker.idle)
        await until(lambda: sum(isinstance(event, Handled) for event in backend.events) == 3)
        await until(lambda: ConsumerResumed("billing") in backend.events)
    assert (await backend.effects(), await backend.failed_messages()) == (["m1", "m2", "m3"], {})
    await database.close()


async def test_a_message_that_was_at_hand_in_every_death_ends_as_a_dead_letter(backend: Backend) -> None:
    """The deaths are told by what they leave: a failed message that was started more often than it failed."""

    async def failing(given: Message) -> None:
        raise RuntimeError

    await backend.deliver(backend.inbox(failing), message())
    await backend.change("UPDATE onefold_letter SET started = failed + 3")
    await backend.hours_pass()
    async with running(consuming(backend, MemoryBroker())):
        await until(lambda: any(isinstance(event, DeadLettered) for event in backend.events))
    assert (await backend.failed_messages())["m1"].state == "dead"
    assert backend.calls == []


async def test_processes_share_the_failed_messages_that_are_due_and_run_each_once(on_postgres: Backend) -> None:
    backend = on_postgres

    async def failing(given: Message) -> None:
        raise RuntimeError

    names = [f"m{number:02}" for number in range(30)]
    for name in names:
        await backend.deliver(backend.inbox(failing), message(name))
    await backend.hours_pass()
    async with running(consuming(backend, MemoryBroker())), running(consuming(backend, MemoryBroker())):
        await until(lambda: sum(isinstance(event, Handled) for event in backend.events) == 30)
    assert (sorted(backend.calls), await backend.effects(), await backend.failed_messages()) == (names, names, {})


async def test_a_lock_that_someone_holds_for_long_is_waited_for_with_the_delivery_in_hand(sqlite_path: Path) -> None:
    async with sqlite_backend(sqlite_path) as backend:
        database = async_sqlite(sqlite_path, busy_timeout_s=0.05)
        broker = MemoryBroker()
        executor: TaskExecutor[Any] = TaskExecutor(backend.database)
        async with running(ConsumerRunner(database, broker, [backend.consumer()])):
            await until(lambda: bool(broker.subscriptions))
            await executor.acquire()
            await executor.batch((Boundary.BEGIN,))
            broker.put(message())
            await until(lambda: bool(broker.out))
            await asyncio.sleep(0.2)  # several times longer than the patience for the lock
            await executor.batch((Boundary.ROLLBACK,))
            await executor.release()
            await until(lambda: broker.idle)
        assert (broker.acked, broker.given_back, await backend.effects()) == (["m1"], [], ["m1"])
        await database.close()


@pytest.mark.parametrize("seed", range(2))
async def test_three_processes_keep_the_order_of_every_key_whatever_is_shuffled_and_refused(
    on_postgres: Backend, seed: int
) -> None:
    backend, dice = on_postgres, random.Random(seed)
    await backend.change("CREATE TABLE log (at bigserial, key text, version int)")

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
    consumer = backend.consumer(
        handler, order="strict", attempts=100, retry_base_s=0.01, retry_cap_s=0.05, concurrency=3
    )

    async def done() -> bool:
        return (
            len(await backend.rows("SELECT 1 FROM log")) >= len(keys) * len(versions)
            and not await backend.failed_messages()
        )

    async with AsyncExitStack() as stack:
        for broker in brokers:
            await stack.enter_async_context(running(consuming(backend, broker, consumer)))
        await until(done)
    for key in keys:
        rows = await backend.rows(f"SELECT version FROM log WHERE key = '{key}' ORDER BY at")
        assert [version for (version,) in rows] == list(versions)


async def test_health_is_how_long_ago_a_consumer_got_round(backend: Backend) -> None:
    broker = MemoryBroker()
    consumers = consuming(backend, broker)
    async with running(consumers):
        await until(lambda: broker.subscriptions == 1)
        await until(lambda: consumers.alive()["billing"] < 1)


async def test_a_broker_that_is_absent_from_the_start_leaves_workers_well(backend: Backend) -> None:
    broker = MemoryBroker()
    broker.down = True
    consumers = consuming(backend, broker)
    [gate] = consumers._gates
    async with running(consumers):
        await until(lambda: broker.opened > 1 and gate.worker is not None)
        worker = gate.worker
        assert worker is not None
        began_at = worker.turned_at
        await until(lambda: worker.turned_at > began_at)


async def test_trouble_with_our_own_code_is_logged_and_survived(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []

    def transaction(executor: Any) -> OwnedTransaction[Any]:
        made.append(executor)
        if len(made) == 1:
            raise LookupError("a factory that fails once")
        return OwnedTransaction(executor, backend.outbox.new_buffer)

    broker = MemoryBroker()
    broker.put(message())
    async with running(ConsumerRunner(backend.database, broker, [backend.consumer()], transaction=transaction)):
        await until(lambda: broker.idle)
    assert await backend.effects() == ["m1"]
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


def test_a_ledger_that_forgets_before_the_broker_does_is_refused_at_start(backend: Backend) -> None:
    broker = MemoryBroker()
    broker.redelivery_s = 10_000_000.0
    with pytest.raises(ConfigurationError, match="10000000 s"):
        consuming(backend, broker)
