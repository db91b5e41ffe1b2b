"""A handler cannot stop its consumer: not by hanging, not by a cancellation that was not meant for it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel.events import DeadLettered, Failed, Handled
from onefold._kernel.messages import Delivery, Message
from onefold._kernel.transaction import Transaction
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlite import SqliteDatabase
from onefold.db.threads import ThreadedDatabase, off_loop_handle, plain_handle
from onefold.errors import ConfigurationError
from onefold.inbox.model import Consumer
from onefold.worker.consumer import Consuming
from onefold.worker.station import Station
from tests.inbox.worlds import World, message, sqlite_world
from tests.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, MemorySubscription, running, until


def consuming(world: World, broker: MemoryBroker, consumer: Consumer, **settings: Any) -> Consuming:
    return Consuming(
        world.database,
        broker,
        [consumer],
        transaction=lambda lane: Transaction(lane, world.outbox.outgoing),
        listener=world.events.append,
        **settings,
    )


def seen(world: World, kind: type) -> int:
    return sum(isinstance(event, kind) for event in world.events)


def cancelled() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


# --- cancellations that are meant for others -------------------------------------------------------------------


async def test_a_cancellation_out_of_something_awaited_fails_its_message_and_nothing_else(world: World) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await world.write(tx, given.id)
        if int(given.id[1:]) % 2:
            await cancelled()

    broker = MemoryBroker()
    broker.put(*(message(f"m{number:02}") for number in range(40)))
    async with running(consuming(world, broker, world.consumer(handler, attempts=1))):
        await until(lambda: broker.idle)
    assert await world.effects() == [f"m{number:02}" for number in range(0, 40, 2)]
    letters = await world.letters()
    assert sorted(letters) == [f"m{number:02}" for number in range(1, 40, 2)]
    assert all("raised CancelledError" in letter.reason for letter in letters.values())


class Abort(BaseException):
    """What libraries derive so that `except Exception` lets it through."""


async def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(PATIENCE_S)


async def cancel_own_task_at_the_end() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def abort() -> None:
    raise Abort("enough")


async def close_itself() -> None:
    raise GeneratorExit


async def leave() -> None:
    sys.exit(1)


@pytest.mark.parametrize(
    ("give_up", "reason"),
    [
        (cancel_own_task, "cancelled"),
        (cancel_own_task_at_the_end, "cancelled"),
        (abort, "Abort: enough"),
        (close_itself, "GeneratorExit"),
        (leave, "SystemExit"),
    ],
)
async def test_a_handler_that_gives_up_in_an_unusual_way_fails_its_message_and_ends_no_worker(
    world: World, give_up: Callable[[], Coroutine[Any, Any, None]], reason: str
) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await world.write(tx, given.id)
        if int(given.id[1:]) % 2:
            await give_up()

    broker = MemoryBroker()
    broker.put(*(message(f"m{number:02}") for number in range(20)))
    async with running(consuming(world, broker, world.consumer(handler, attempts=1))):
        await until(lambda: broker.idle)
    assert await world.effects() == [f"m{number:02}" for number in range(0, 20, 2)]
    letters = await world.letters()
    assert sorted(letters) == [f"m{number:02}" for number in range(1, 20, 2)]
    assert all(reason in letter.reason for letter in letters.values())


@pytest.mark.parametrize("error", [Abort("enough"), GeneratorExit(), SystemExit(1)], ids=repr)
async def test_so_does_a_plain_function(sqlite_path: Path, error: BaseException) -> None:
    async with sqlite_world(sqlite_path) as world:

        def handler(given: Message) -> None:
            if int(given.id[1:]) % 2:
                raise error

        broker = MemoryBroker()
        broker.put(*(message(f"m{number:02}") for number in range(20)))
        async with running(consuming(world, broker, world.consumer(handler, attempts=1))):
            await until(lambda: broker.idle)
        assert sorted(await world.letters()) == [f"m{number:02}" for number in range(1, 20, 2)]


async def test_a_cancellation_out_of_a_hook_ends_no_worker_and_handles_nothing_twice(world: World) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await world.write(tx, given.id)
        tx.after_commit(cancelled)

    names = [f"m{number}" for number in range(3)]
    broker = MemoryBroker()
    broker.put(*map(message, names))
    async with running(consuming(world, broker, world.consumer(handler, concurrency=1))):
        await until(lambda: broker.idle)
    assert (await world.effects(), await world.ledger(), await world.letters()) == (names, names, {})


class Cancelling(MemoryBroker):
    """A broker whose client cancels what it was asked for, once for each verb."""

    def __init__(self) -> None:
        super().__init__(keep_every_s=0.01)
        self.left = {"subscribe", "receive", "ack", "keep"}

    async def cancel(self, verb: str) -> None:
        if verb in self.left:
            self.left.discard(verb)
            await cancelled()

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> MemorySubscription:
        await self.cancel("subscribe")
        self.check()
        self.subscriptions += 1
        return CancellingSubscription(self)


class CancellingSubscription(MemorySubscription):
    """Its end."""

    _broker: Cancelling

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        await self._broker.cancel("receive")
        return await super().receive(limit, wait_s)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        await super().ack(deliveries)
        await self._broker.cancel("ack")

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        await self._broker.cancel("keep")
        await super().keep(deliveries)


async def test_a_cancellation_out_of_the_broker_s_client_ends_no_worker(world: World) -> None:
    broker = Cancelling()
    leave = asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await world.write(tx, given.id)
        if given.id == "slow":
            await leave.wait()

    async with running(consuming(world, broker, world.consumer(handler))):
        broker.put(message("m1"))
        await until(lambda: broker.acked == ["m1"])
        broker.put(message("slow"))
        await until(lambda: "slow" in broker.kept)
        leave.set()
        await until(lambda: sorted(broker.acked) == ["m1", "slow"])
    assert broker.left == set()


async def test_a_worker_that_something_unforeseen_has_ended_begins_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, failures = MemoryBroker(), 1
    consumers = consuming(world, broker, world.consumer(concurrency=1))
    taken = Station._taken

    def failing(station: Station, slot: Any) -> list[Delivery]:
        nonlocal failures
        if failures:
            failures -= 1
            raise LookupError("a mistake of ours")
        return taken(station, slot)

    monkeypatch.setattr(Station, "_taken", failing)
    broker.put(message("m1"), message("m2"))
    async with running(consumers):
        await until(lambda: broker.idle)
    assert await world.effects() == ["m1", "m2"]
    assert "a worker failed, and begins again" in caplog.text


# --- time limits -----------------------------------------------------------------------------------------------


async def test_a_handler_that_hangs_is_cut_off_and_holds_neither_its_slot_nor_a_lock(world: World) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await world.write(tx, given.id)
        if given.id == "hangs":
            await asyncio.Event().wait()

    broker = MemoryBroker()
    broker.put(message("hangs"), message("m1"))
    consumer = world.consumer(handler, concurrency=1, attempts=1, timeout_s=0.2)
    async with running(consuming(world, broker, consumer)):
        await until(lambda: broker.idle)
    assert await world.effects() == ["m1"]
    [letter] = (await world.letters()).values()
    assert "took longer than timeout_s=0.2" in letter.reason


async def test_without_a_time_limit_of_its_own_a_handler_has_its_lease(world: World) -> None:
    async def handler(given: Message) -> None:
        await asyncio.Event().wait()

    broker = MemoryBroker()
    broker.put(message("m1"))
    async with running(consuming(world, broker, world.consumer(handler, attempts=1, lease_s=0.2))):
        await until(lambda: broker.idle)
    [letter] = (await world.letters()).values()
    assert "lease_s=0.2" in letter.reason


async def test_a_time_out_of_the_handler_s_own_is_told_as_it_is(world: World) -> None:
    async def handler(given: Message) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    broker = MemoryBroker()
    broker.put(message("m1"))
    async with running(consuming(world, broker, world.consumer(handler, attempts=1))):
        await until(lambda: broker.idle)
    [letter] = (await world.letters()).values()
    assert letter.reason.startswith("TimeoutError")


async def test_a_handler_that_ignores_its_cancellation_is_told_by_health(world: World) -> None:
    leave = asyncio.Event()

    async def handler(given: Message) -> None:
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue

    broker = MemoryBroker()
    broker.put(message("m1"))
    consumers = consuming(world, broker, world.consumer(handler, timeout_s=0.05))
    async with running(consumers):
        await until(lambda: "billing: handler of message m1" in consumers.alive())
        leave.set()
        await until(lambda: list(consumers.alive()) == ["billing"])


@pytest.mark.parametrize("limit_s", [0.0, 60.1])
def test_a_time_limit_beyond_the_lease_is_refused(limit_s: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout_s"):
        Consumer(name="billing", topics=("order.placed",), handler=print_message, timeout_s=limit_s)


def print_message(given: Message) -> None: ...


# --- on threads ------------------------------------------------------------------------------------------------


class Threads:
    """A sync consumer over SQLite or Postgres whose handler hangs for some messages."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hangs = {"hangs0", "hangs1"}
        self.leave = threading.Event()
        self.errors: list[Exception] = []

    def handler(self, given: Message, tx: Transaction[Any]) -> None:
        mark = "?" if self.world.dialect == "sqlite" else "%s"
        tx.connection.execute(f"INSERT INTO effects VALUES ({mark})", (given.id,))
        if given.id in self.hangs:
            self.leave.wait(PATIENCE_S)
            try:
                tx.connection.execute("INSERT INTO effects VALUES ('late')")
            except Exception as error:
                self.errors.append(error)
                raise


@contextmanager
def threaded(world: World, request: pytest.FixtureRequest) -> Iterator[ThreadedDatabase[Any, Any]]:
    if world.dialect == "sqlite":
        sqlite = SqliteDatabase(request.getfixturevalue("sqlite_path"))
        yield ThreadedDatabase(sqlite, off_loop_handle)
        sqlite.close()
    else:
        psycopg = PsycopgDatabase(request.getfixturevalue("postgres_dsn"))
        yield ThreadedDatabase(psycopg, plain_handle)
        psycopg.close()


async def test_a_sync_handler_that_hangs_fails_its_message_and_what_it_still_does_is_not_kept(
    world: World, request: pytest.FixtureRequest
) -> None:
    stage, broker = Threads(world), MemoryBroker()
    consumer = world.consumer(stage.handler, concurrency=2, attempts=1, timeout_s=0.3)
    with threaded(world, request) as database:
        consumers = Consuming(database, broker, [consumer], listener=world.events.append)
        async with running(consumers):
            broker.put(message("hangs0"))
            await until(lambda: seen(world, DeadLettered) == 1)
            broker.put(message("m1"), message("m2"))  # its thread is still there, and others go on
            await until(lambda: broker.idle)
            assert list(consumers.alive()) == ["billing", "billing: handler of message hangs0"]
            stage.leave.set()
            await until(lambda: bool(stage.errors))
            await until(lambda: list(consumers.alive()) == ["billing"])
    assert await world.effects() == ["m1", "m2"]
    [letter] = (await world.letters()).values()
    assert "its thread cannot be stopped" in letter.reason


async def test_with_as_many_threads_left_behind_as_may_be_a_consumer_stands_still_until_one_returns(
    world: World, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    stage, broker = Threads(world), MemoryBroker()
    consumer = world.consumer(stage.handler, concurrency=2, attempts=1, timeout_s=0.3)
    with threaded(world, request) as database:
        consumers = Consuming(database, broker, [consumer], listener=world.events.append)
        async with running(consumers):
            broker.put(message("hangs0"), message("hangs1"))
            await until(lambda: seen(world, DeadLettered) == 2)
            broker.put(message("m1"))
            await until(lambda: bool(broker.out))
            assert len(consumers.alive()) == 3
            assert "stands still: 2 of its handlers" in caplog.text
            assert seen(world, Handled) == 0
            stage.leave.set()
            await until(lambda: broker.idle)
    assert await world.effects() == ["m1"]


async def test_a_hanging_sync_handler_does_not_keep_others_from_writing_to_sqlite(sqlite_path: Path) -> None:
    async with sqlite_world(sqlite_path) as world:
        stage, broker = Threads(world), MemoryBroker()
        database = SqliteDatabase(sqlite_path)
        consumer = world.consumer(stage.handler, attempts=2, retry_base_s=60, timeout_s=0.2)
        broker.put(message("hangs0"))
        async with running(
            Consuming(ThreadedDatabase(database, off_loop_handle), broker, [consumer], listener=world.events.append)
        ):
            await until(lambda: seen(world, Failed) == 1)
            with sqlite3.connect(sqlite_path, timeout=PATIENCE_S) as other:
                other.execute("INSERT INTO effects VALUES ('other')")
            stage.leave.set()
        other.close()
        database.close()
        assert await world.effects() == ["other"]
