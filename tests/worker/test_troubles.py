"""What keeps a consumer from working: it ends by itself, whatever else is away, and is told once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest

from onefold import Depends
from onefold._inbox.failed_messages import DEATHS_MAX
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.transaction import Transaction
from onefold._worker import consumer_worker, failed_message_loop
from onefold._worker.consumer_health import QUIET_S, ConsumerHealth
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.errors import ConnectionLost, StoreError
from onefold.telemetry import ConsumerPaused, ConsumerResumed, DeadLettered, Event, Failed, Handled, Parked
from tests.inbox.backends import Backend, message
from tests.worker.consuming import MemoryBroker, running, until


class Hiccups:
    """A database that answers those who look, and not the next `left` transactions of handlers."""

    def __init__(self, backend: Backend, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = left
        self._backend = backend
        self._acquire = backend.database.acquire
        self._next_is_lost = False
        monkeypatch.setattr(backend.database, "acquire", self.acquire)

    def transaction(self, executor: TaskExecutor[Any]) -> OwnedTransaction[Any]:
        """What it is asked for next is the connection of this transaction."""
        self._next_is_lost, self.left = self.left > 0, self.left - 1
        return OwnedTransaction(executor, self._backend.outbox.new_buffer)

    async def acquire(self) -> Any:
        if self._next_is_lost:
            self._next_is_lost = False
            raise ConnectionLost("the database had a hiccup")
        return await self._acquire()

    def consuming(self, broker: MemoryBroker) -> ConsumerRunner:
        backend = self._backend
        return ConsumerRunner(
            backend.database, broker, [backend.consumer()], transaction=self.transaction, listener=backend.events.append
        )


def told(events: list[Any]) -> list[type]:
    return [type(event) for event in events if isinstance(event, ConsumerPaused | ConsumerResumed)]


async def test_failed_messages_go_on_after_a_hiccup_of_the_database_while_the_broker_is_away(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(given: Message) -> None:
        raise RuntimeError

    await backend.deliver(backend.inbox(failing), message())
    await backend.hours_pass()
    broker = Away()
    async with running(Hiccups(backend, 1, monkeypatch).consuming(broker)):
        await until(lambda: Handled("billing", "order.placed") in backend.events)
    assert await backend.effects() == ["m1"]


class Away(MemoryBroker):
    """Can be opened, and then is away: nothing can be subscribed to."""

    async def open(self) -> None:
        await super().open()
        self.down = True


async def test_what_cannot_be_handled_is_told_once_though_the_database_can_be_read_all_the_time(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_message_loop, "POLL_S_MAX", 0.05)
    broker = MemoryBroker()
    broker.put(message())
    async with running(Hiccups(backend, 4, monkeypatch).consuming(broker)):
        await until(lambda: Handled("billing", "order.placed") in backend.events)
        await until(lambda: ConsumerResumed("billing") in backend.events)
    assert told(backend.events) == [ConsumerPaused, ConsumerResumed]
    assert broker.given_back.count("m1") >= 4


async def test_handling_that_failed_and_is_not_asked_for_again_is_over_after_a_while() -> None:
    now, events = 0.0, list[Event]()
    troubles = ConsumerHealth("billing", events.append, now=lambda: now)
    troubles.note_failure("handling", ConnectionLost("gone"))
    troubles.note_success("failed messages")
    assert told(events) == [ConsumerPaused], "the failed messages can be read: that says nothing of handling"
    now = QUIET_S - 1.0
    troubles.note_failure("handling", ConnectionLost("gone"))
    now += QUIET_S - 1.0
    troubles.note_success("failed messages")
    assert told(events) == [ConsumerPaused]
    now += 2.0
    troubles.note_success("failed messages")
    assert told(events) == [ConsumerPaused, ConsumerResumed]


async def test_each_trouble_is_over_by_itself_and_all_of_them_are_told_as_one() -> None:
    events = list[Event]()
    troubles = ConsumerHealth("billing", events.append)
    troubles.note_failure("broker", StoreError("away"))
    assert troubles.healthy.is_set(), "what is at hand can be handled without the broker"
    troubles.note_failure("handling", ConnectionLost("gone"))
    troubles.note_failure("failed messages", ConnectionLost("gone"))
    assert not troubles.healthy.is_set()
    await until(troubles.healthy.is_set)
    troubles.note_success("broker")
    troubles.note_success("failed messages")
    assert told(events) == [ConsumerPaused]
    troubles.note_success("handling")
    assert told(events) == [ConsumerPaused, ConsumerResumed]


async def test_a_reaper_that_fails_stops_no_handler_and_is_logged_once_a_time(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = asyncio.Event()

    async def failing(*_: Any, **__: Any) -> int:
        tried.set()
        raise StoreError("canceling statement due to statement timeout")

    monkeypatch.setattr(consumer_worker, "reap", failing)
    broker = MemoryBroker()
    async with running(Hiccups(backend, 0, monkeypatch).consuming(broker)):
        await asyncio.wait_for(tried.wait(), 60)
        broker.put(message())
        await until(lambda: broker.idle)
    assert told(backend.events) == []
    assert [record.levelno for record in caplog.records if "statement timeout" in record.getMessage()][:1] == [
        logging.WARNING
    ]


async def test_a_consumer_whose_handlers_take_long_is_well_however_much_it_has_received(backend: Backend) -> None:
    """It receives no more then. A restart would cut its handlers off, and three of them make a dead letter."""
    leave = asyncio.Event()

    async def handler(given: Message) -> None:
        await leave.wait()

    broker = MemoryBroker()
    broker.put(*(message(f"m{number}") for number in range(consumer_worker.PREFETCH + 1)))
    consumers = ConsumerRunner(backend.database, broker, [backend.consumer(handler, concurrency=1)])
    [gate] = consumers._gates
    async with running(consumers):
        await until(lambda: len(broker.out) == consumer_worker.PREFETCH)
        full_at, worker = time.monotonic(), gate.worker
        assert worker is not None
        await until(lambda: worker.turned_at > full_at)
        assert len(broker.queue) == 1, "it is full"
        leave.set()
        await until(lambda: broker.idle)


@pytest.mark.parametrize("times", [1, 100])
async def test_a_connection_that_is_lost_inside_a_handler_is_an_outage_unless_it_is_lost_each_time(
    on_postgres: Backend, times: int
) -> None:
    calls = 0

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        nonlocal calls
        calls += 1
        await on_postgres.write(tx, given.id)
        if calls <= times:
            await tx.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    def transaction(executor: TaskExecutor[Any]) -> OwnedTransaction[Any]:
        return OwnedTransaction(executor, on_postgres.outbox.new_buffer)

    broker = MemoryBroker()
    broker.put(message())
    consumer, listener = on_postgres.consumer(handler, attempts=1), on_postgres.events.append
    runner = ConsumerRunner(on_postgres.database, broker, [consumer], transaction=transaction, listener=listener)
    end = Handled if times == 1 else DeadLettered
    async with running(runner):
        await until(lambda: any(isinstance(event, end) for event in on_postgres.events) and broker.idle)
    assert not any(isinstance(event, Failed) for event in on_postgres.events)
    assert await on_postgres.effects() == (["m1"] if times == 1 else [])
    # Once as a delivery, which is given back; then as a failed message that is started.
    assert calls == (2 if times == 1 else 1 + DEATHS_MAX)
    assert broker.acked == ["m1"]


async def test_a_connection_that_is_lost_while_a_key_catches_up_is_counted(on_postgres: Backend) -> None:
    """Version 2 was handled, and those behind it are run one by one: dependencies are opened for each."""
    calls: list[int | None] = []
    failing = True

    async def handler(given: Message, tx: Transaction[Any], number: int) -> None:
        calls.append(given.version)
        if failing and given.version == 2:
            raise RuntimeError("not yet")
        if given.version == 3:
            await tx.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    async def number() -> AsyncIterator[int]:
        yield 1

    handler.__annotations__["number"] = Annotated[int, Depends(number)]

    def transaction(executor: TaskExecutor[Any]) -> OwnedTransaction[Any]:
        return OwnedTransaction(executor, on_postgres.outbox.new_buffer)

    broker, listener = MemoryBroker(), on_postgres.events.append
    broker.put(*(message(f"m{number}", key="k", version=number) for number in range(1, 5)))
    consumer = on_postgres.consumer(handler, order="strict", retry_base_s=0.05, retry_cap_s=0.05, attempts=1000)
    runner = ConsumerRunner(on_postgres.database, broker, [consumer], transaction=transaction, listener=listener)
    async with running(runner):
        await until(lambda: sum(isinstance(event, Parked) for event in on_postgres.events) == 2)
        failing = False
        await until(lambda: any(isinstance(event, DeadLettered) for event in on_postgres.events))
    assert calls.count(3) == DEATHS_MAX
