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

from onefold._inbox.consumer import Consumer
from onefold._kernel.messages import Delivery, Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.transaction import Transaction
from onefold._worker.consumer_runner import ConsumerRunner
from onefold._worker.consumer_worker import ConsumerWorker
from onefold.db._threaded import ThreadedDatabase, off_loop_handle, plain_handle
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlite import SqliteDatabase
from onefold.errors import ConfigurationError
from onefold.telemetry import DeadLettered, Failed, Handled
from tests.inbox.backends import Backend, message, sqlite_backend
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, MemorySubscription, running, until


def consuming(backend: Backend, broker: MemoryBroker, consumer: Consumer, **settings: Any) -> ConsumerRunner:
    return ConsumerRunner(
        backend.database,
        broker,
        [consumer],
        transaction=lambda executor: OwnedTransaction(executor, backend.outbox.new_buffer),
        listener=backend.events.append,
        **settings,
    )


def seen(backend: Backend, kind: type) -> int:
    return sum(isinstance(event, kind) for event in backend.events)


def cancelled() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


# --- cancellations that are meant for others -------------------------------------------------------------------


async def test_a_cancellation_out_of_something_awaited_fails_its_message_and_nothing_else(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        if int(given.id[1:]) % 2:
            await cancelled()

    broker = MemoryBroker()
    broker.put(*(message(f"m{number:02}") for number in range(40)))
    async with running(consuming(backend, broker, backend.consumer(handler, attempts=1))):
        await until(lambda: broker.idle)
    assert await backend.effects() == [f"m{number:02}" for number in range(0, 40, 2)]
    failed_messages = await backend.failed_messages()
    assert sorted(failed_messages) == [f"m{number:02}" for number in range(1, 40, 2)]
    assert all("raised CancelledError" in failed_message.reason for failed_message in failed_messages.values())


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
    backend: Backend, give_up: Callable[[], Coroutine[Any, Any, None]], reason: str
) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        if int(given.id[1:]) % 2:
            await give_up()

    broker = MemoryBroker()
    broker.put(*(message(f"m{number:02}") for number in range(20)))
    async with running(consuming(backend, broker, backend.consumer(handler, attempts=1))):
        await until(lambda: broker.idle)
    assert await backend.effects() == [f"m{number:02}" for number in range(0, 20, 2)]
    failed_messages = await backend.failed_messages()
    assert sorted(failed_messages) == [f"m{number:02}" for number in range(1, 20, 2)]
    assert all(reason in failed_message.reason for failed_message in failed_messages.values())


@pytest.mark.parametrize("error", [Abort("enough"), GeneratorExit(), SystemExit(1)], ids=repr)
async def test_so_does_a_plain_function(sqlite_path: Path, error: BaseException) -> None:
    async with sqlite_backend(sqlite_path) as backend:

        def handler(given: Message) -> None:
            if int(given.id[1:]) % 2:
                raise error

        broker = MemoryBroker()
        broker.put(*(message(f"m{number:02}") for number in range(20)))
        async with running(consuming(backend, broker, backend.consumer(handler, attempts=1))):
            await until(lambda: broker.idle)
        assert sorted(await backend.failed_messages()) == [f"m{number:02}" for number in range(1, 20, 2)]


async def test_a_cancellation_out_of_a_hook_ends_no_worker_and_handles_nothing_twice(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        tx.after_commit(cancelled)

    names = [f"m{number}" for number in range(3)]
    broker = MemoryBroker()
    broker.put(*map(message, names))
    async with running(consuming(backend, broker, backend.consumer(handler, concurrency=1))):
        await until(lambda: broker.idle)
    assert (await backend.effects(), await backend.ledger(), await backend.failed_messages()) == (names, names, {})


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


async def test_a_cancellation_out_of_the_broker_s_client_ends_no_worker(backend: Backend) -> None:
    broker = Cancelling()
    leave = asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        if given.id == "slow":
            await leave.wait()

    async with running(consuming(backend, broker, backend.consumer(handler))):
        broker.put(message("m1"))
        await until(lambda: broker.acked == ["m1"])
        broker.put(message("slow"))
        await until(lambda: "slow" in broker.kept)
        leave.set()
        await until(lambda: sorted(broker.acked) == ["m1", "slow"])
    assert broker.left == set()


async def test_a_worker_that_something_unforeseen_has_ended_begins_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, failures = MemoryBroker(), 1
    consumers = consuming(backend, broker, backend.consumer(concurrency=1))
    take = ConsumerWorker._take

    def failing(worker: ConsumerWorker, partition: Any) -> list[Delivery]:
        nonlocal failures
        if failures:
            failures -= 1
            raise LookupError("a mistake of ours")
        return take(worker, partition)

    monkeypatch.setattr(ConsumerWorker, "_take", failing)
    broker.put(message("m1"), message("m2"))
    async with running(consumers):
        await until(lambda: broker.idle)
    assert await backend.effects() == ["m1", "m2"]
    assert "a worker failed, and is restarted" in caplog.text


# --- time limits -----------------------------------------------------------------------------------------------


async def test_a_handler_that_hangs_is_cut_off_and_holds_neither_its_slot_nor_a_lock(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        if given.id == "hangs":
            await asyncio.Event().wait()

    broker = MemoryBroker()
    broker.put(message("hangs"), message("m1"))
    consumer = backend.consumer(handler, concurrency=1, attempts=1, timeout_s=0.2)
    async with running(consuming(backend, broker, consumer)):
        await until(lambda: broker.idle)
    assert await backend.effects() == ["m1"]
    [failed_message] = (await backend.failed_messages()).values()
    assert "took longer than timeout_s=0.2" in failed_message.reason


@pytest.mark.parametrize("fails", [False, True])
async def test_a_hook_that_hangs_is_cut_off_and_does_not_hold_its_slot(
    backend: Backend, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        (tx.after_rollback if fails else tx.after_commit)(hang)
        if fails:
            raise RuntimeError("as you wish")

    names = [f"m{number}" for number in range(2)]
    broker = MemoryBroker()
    broker.put(*map(message, names))
    consumer = backend.consumer(handler, concurrency=1, attempts=1, timeout_s=2.0)
    async with running(consuming(backend, broker, consumer)):
        await until(lambda: broker.idle)
    assert await backend.effects() == ([] if fails else names)
    assert sorted(await backend.failed_messages()) == (names if fails else [])
    told = [record.getMessage() for record in caplog.records if "a hook after" in record.getMessage()]
    assert len(told) == 2
    assert all("hang" in text for text in told)
    assert caplog.text.count("the time limit of its handler, 2 s, and is not waited for") == 2


async def test_without_a_time_limit_of_its_own_a_handler_has_its_lease(backend: Backend) -> None:
    async def handler(given: Message) -> None:
        await asyncio.Event().wait()

    broker = MemoryBroker()
    broker.put(message("m1"))
    async with running(consuming(backend, broker, backend.consumer(handler, attempts=1, lease_s=0.2))):
        await until(lambda: broker.idle)
    [failed_message] = (await backend.failed_messages()).values()
    assert "lease_s=0.2" in failed_message.reason


async def test_a_time_out_of_the_handler_s_own_is_told_as_it_is(backend: Backend) -> None:
    async def handler(given: Message) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    broker = MemoryBroker()
    broker.put(message("m1"))
    async with running(consuming(backend, broker, backend.consumer(handler, attempts=1))):
        await until(lambda: broker.idle)
    [failed_message] = (await backend.failed_messages()).values()
    assert failed_message.reason.startswith("TimeoutError")


async def test_a_handler_that_ignores_its_cancellation_is_told_by_health(backend: Backend) -> None:
    leave = asyncio.Event()

    async def handler(given: Message) -> None:
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue

    broker = MemoryBroker()
    broker.put(message("m1"))
    consumers = consuming(backend, broker, backend.consumer(handler, timeout_s=0.05))
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

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.hangs = {"hangs0", "hangs1"}
        self.leave = threading.Event()
        self.errors: list[Exception] = []

    def handler(self, given: Message, tx: Transaction[Any]) -> None:
        mark = "?" if self.backend.dialect == "sqlite" else "%s"
        tx.connection.execute(f"INSERT INTO effects VALUES ({mark})", (given.id,))
        if given.id in self.hangs:
            self.leave.wait(PATIENCE_S)
            try:
                tx.connection.execute("INSERT INTO effects VALUES ('late')")
            except Exception as error:
                self.errors.append(error)
                raise


@contextmanager
def threaded(backend: Backend, request: pytest.FixtureRequest) -> Iterator[ThreadedDatabase[Any, Any]]:
    if backend.dialect == "sqlite":
        sqlite = SqliteDatabase(request.getfixturevalue("sqlite_path"))
        yield ThreadedDatabase(sqlite, off_loop_handle)
        sqlite.close()
    else:
        psycopg = PsycopgDatabase(request.getfixturevalue("inbox_dsn"))
        yield ThreadedDatabase(psycopg, plain_handle)
        psycopg.close()


async def test_a_sync_handler_that_hangs_fails_its_message_and_what_it_still_does_is_not_kept(
    backend: Backend, request: pytest.FixtureRequest
) -> None:
    stage, broker = Threads(backend), MemoryBroker()
    consumer = backend.consumer(stage.handler, concurrency=2, attempts=1, timeout_s=0.3)
    with threaded(backend, request) as database:
        consumers = ConsumerRunner(database, broker, [consumer], listener=backend.events.append)
        async with running(consumers):
            broker.put(message("hangs0"))
            await until(lambda: seen(backend, DeadLettered) == 1)
            broker.put(message("m1"), message("m2"))  # its thread is still there, and others go on
            await until(lambda: broker.idle)
            assert list(consumers.alive()) == ["billing", "billing: handler of message hangs0"]
            stage.leave.set()
            await until(lambda: bool(stage.errors))
            await until(lambda: list(consumers.alive()) == ["billing"])
    assert await backend.effects() == ["m1", "m2"]
    [failed_message] = (await backend.failed_messages()).values()
    assert "its thread cannot be stopped" in failed_message.reason


async def test_with_as_many_threads_left_behind_as_may_be_a_consumer_stands_still_until_one_returns(
    backend: Backend, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    stage, broker = Threads(backend), MemoryBroker()
    consumer = backend.consumer(stage.handler, concurrency=2, attempts=1, timeout_s=0.3)
    with threaded(backend, request) as database:
        consumers = ConsumerRunner(database, broker, [consumer], listener=backend.events.append)
        async with running(consumers):
            broker.put(message("hangs0"), message("hangs1"))
            await until(lambda: seen(backend, DeadLettered) == 2)
            broker.put(message("m1"))
            await until(lambda: bool(broker.out))
            assert len(consumers.alive()) == 3
            assert "handles nothing: 2 of its handlers" in caplog.text
            assert seen(backend, Handled) == 0
            stage.leave.set()
            await until(lambda: broker.idle)
    assert await backend.effects() == ["m1"]


async def test_a_hanging_sync_handler_does_not_keep_others_from_writing_to_sqlite(sqlite_path: Path) -> None:
    async with sqlite_backend(sqlite_path) as backend:
        stage, broker = Threads(backend), MemoryBroker()
        database = SqliteDatabase(sqlite_path)
        consumer = backend.consumer(stage.handler, attempts=2, retry_base_s=60, timeout_s=0.2)
        broker.put(message("hangs0"))
        async with running(
            ConsumerRunner(
                ThreadedDatabase(database, off_loop_handle), broker, [consumer], listener=backend.events.append
            )
        ):
            await until(lambda: seen(backend, Failed) == 1)
            with sqlite3.connect(sqlite_path, timeout=PATIENCE_S) as other:
                other.execute("INSERT INTO effects VALUES ('other')")
            stage.leave.set()
        other.close()
        database.close()
        assert await backend.effects() == ["other"]
