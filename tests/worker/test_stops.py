"""What a stop cuts off, and what a consumer does before its broker is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold._worker import broker_closing, consumer_worker, failed_message_loop, pause_gate
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import ConfigurationError
from onefold.telemetry import Handled
from onefold.testing.fault_proxy import FaultProxy
from tests.inbox.backends import Backend, message
from tests.support.fork_server import ROOT
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, MemorySubscription, running, until


async def fail(given: Message) -> None:
    raise RuntimeError


async def keep_due(backend: Backend, given: Message, **settings: Any) -> None:
    await backend.deliver(backend.inbox(fail, **settings), given)
    await backend.hours_pass()


class Hanging:
    """A handler that does not end."""

    def __init__(self, backend: Backend) -> None:
        self.entered = asyncio.Event()
        self.calls: list[str] = []
        self._backend = backend

    async def __call__(self, given: Message, tx: Transaction[Any]) -> None:
        await self._backend.write(tx, given.id)
        self.entered.set()
        self.calls.append(given.id)
        await asyncio.Event().wait()


async def stopped_in(backend: Backend, broker: MemoryBroker, **settings: Any) -> None:
    """A consumer that is stopped while its handler hangs, and has hardly any time to end."""
    handler = Hanging(backend)

    async def handle(given: Message, tx: Transaction[Any]) -> None:
        await handler(given, tx)

    consumer = backend.consumer(handle, lease_s=3600, **settings)
    async with running(ConsumerRunner(backend.database, broker, [consumer], grace_s=0.05)) as stop:
        async with asyncio.timeout(PATIENCE_S):
            await handler.entered.wait()
        stop.set()


async def test_a_failed_message_that_a_stop_cuts_off_counts_as_not_started(backend: Backend) -> None:
    """Three deployments would make it a suspect, and a dead letter that is said to kill its process."""
    await keep_due(backend, message())
    await stopped_in(backend, MemoryBroker())
    failed_message = (await backend.failed_messages())["m1"]
    assert (failed_message.started, failed_message.failed, failed_message.state) == (1, 1, "waiting")
    assert await backend.run_due(backend.inbox()) == [Handled("billing", "order.placed")]
    assert await backend.effects() == ["m1"]


async def test_a_redelivery_that_a_stop_cuts_off_counts_as_not_started(backend: Backend) -> None:
    broker = MemoryBroker()
    broker.put(message(), redelivered=True)
    await stopped_in(backend, broker)
    failed_message = (await backend.failed_messages())["m1"]
    assert (failed_message.started, failed_message.failed, failed_message.state) == (0, 0, "waiting")


async def test_a_strict_key_that_a_stop_cuts_off_goes_on_where_it_was(backend: Backend) -> None:
    """One is handled, those behind it are started together, and the stop comes while the next one runs."""
    given = [message(f"m{number}", key="k", version=number) for number in range(1, 5)]
    for each in given:
        await backend.deliver(backend.inbox(fail, order="strict"), each)
    await backend.hours_pass()
    handler = Hanging(backend)

    async def handle(one: Message, tx: Transaction[Any]) -> None:
        if one.id == "m3":
            await handler(one, tx)
        await backend.write(tx, one.id)

    consumer = backend.consumer(handle, lease_s=3600, order="strict")
    async with running(ConsumerRunner(backend.database, MemoryBroker(), [consumer], grace_s=0.05)) as stop:
        async with asyncio.timeout(PATIENCE_S):
            await handler.entered.wait()
        stop.set()
    failed_messages = await backend.failed_messages()
    assert [failed_messages[name].started - failed_messages[name].failed for name in sorted(failed_messages)] == [
        0
    ] * len(failed_messages)
    await backend.run_due(backend.inbox(order="strict"))
    assert await backend.effects() == ["m1", "m2", "m3", "m4"]


async def test_a_consumer_that_is_cancelled_while_it_stops_leaves_neither_tasks_nor_its_subscription(
    backend: Backend,
) -> None:
    """The task that keeps deliveries at the broker would do so for as long as the loop lives."""
    handler, broker, stop = Hanging(backend), MemoryBroker(), asyncio.Event()

    async def handle(given: Message, tx: Transaction[Any]) -> None:
        await handler(given, tx)

    broker.put(message())
    before = asyncio.all_tasks()
    consumers = ConsumerRunner(backend.database, broker, [backend.consumer(handle, lease_s=3600)], grace_s=3600)
    task = asyncio.create_task(consumers.run(stop))
    async with asyncio.timeout(PATIENCE_S):
        await handler.entered.wait()
        stop.set()
        await until(lambda: not broker.receiving)  # it waits for the handler
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    await until(lambda: asyncio.all_tasks() == before)  # a connection that was cut off is disposed of meanwhile
    assert broker.given_back == ["m1"], "it was closed"


async def test_a_delivery_and_a_failed_message_are_cut_off_at_one_deadline(
    on_postgres: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second grace for the failed message would outlast what an orchestrator allows a process."""
    backend, grace_s = on_postgres, 3.0
    monkeypatch.setattr(failed_message_loop, "POLL_S_MIN", PATIENCE_S)  # the stop itself ends the wait
    cut_off_at: dict[str, float] = {}
    entered: set[str] = set()

    async def handle(given: Message) -> None:
        entered.add(given.id)
        try:
            await asyncio.Event().wait()
        finally:
            cut_off_at[given.id] = time.monotonic()

    await keep_due(backend, message("failed"))
    broker = MemoryBroker()
    broker.put(message("delivery"))
    consumer = backend.consumer(handle, lease_s=3600, concurrency=4)
    async with running(ConsumerRunner(backend.database, broker, [consumer], grace_s=grace_s)) as stop:
        await until(lambda: len(entered) == 2)
        stop.set()
    assert abs(cut_off_at["delivery"] - cut_off_at["failed"]) < grace_s
    failed_message = (await backend.failed_messages())["failed"]
    assert failed_message.started == failed_message.failed


def test_the_pages_say_how_long_a_stop_may_take() -> None:
    grace_s = signature(ConsumerRunner).parameters["grace_s"].default
    parts = (
        grace_s,
        failed_message_loop.PUT_BACK_S_MAX,
        consumer_worker.ACK_S_MAX,
        pause_gate.END_S_MAX,
        broker_closing.CLOSE_S_MAX,
    )
    *most, last = (f"{part:g}" for part in parts)
    docs = ROOT / "docs"
    assert f"{sum(parts):g} in all" in (docs / "containers.md").read_text()
    assert f"a consumer may take {sum(parts):g}" in (docs / "deployment.md").read_text()
    assert f"a consumer may take {', '.join(most)} and {last} of them" in (docs / "production.md").read_text()


@pytest.mark.parametrize("trouble", ["locked", "black hole"])
async def test_a_stop_keeps_its_deadline_though_the_database_does_not_answer(
    inbox_dsn: str, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(failed_message_loop, "PUT_BACK_S_MAX", 0.1)
    monkeypatch.setattr(pause_gate, "END_S_MAX", 0.1)
    server, operator = urlsplit(inbox_dsn), await asyncpg.connect(inbox_dsn)
    try:
        with FaultProxy(server.hostname or "", server.port or 5432) as proxy:
            async with asyncpg.create_pool(proxy.dsn(inbox_dsn), min_size=0) as pool:
                backend, broker = Backend(AsyncpgDatabase(pool)), MemoryBroker()
                broker.put(message())
                runner = ConsumerRunner(backend.database, broker, [backend.consumer()], grace_s=0.5)
                async with running(runner) as stop:
                    await until(lambda: bool(broker.acked))
                    if trouble == "locked":
                        await operator.execute("BEGIN; LOCK TABLE onefold_letter IN ACCESS EXCLUSIVE MODE")
                    else:
                        proxy.switch("black_hole")
                    await asyncio.sleep(2 * failed_message_loop.POLL_S_MAX)  # it has looked for failed messages
                    stop.set()
                proxy.switch("pass")
                pool.terminate()
    finally:
        await operator.close()


async def test_what_a_stop_cuts_off_is_put_back_whatever_the_broker_does(on_postgres: Backend) -> None:
    """A process that is killed while it waits for the broker would have left suspects."""
    backend = on_postgres

    class Stalling(MemoryBroker):
        """At the end it answers when the test says so."""

        answers = asyncio.Event()

        async def subscribe(self, consumer: str, topics: Sequence[str]) -> MemorySubscription:
            subscription = await super().subscribe(consumer, topics)
            close = subscription.close

            async def stall() -> None:
                await self.answers.wait()
                await close()

            subscription.close = stall  # type: ignore[method-assign]
            return subscription

    async def none_is_started() -> bool:
        return all(each.started == each.failed for each in (await backend.failed_messages()).values())

    handler, broker = Hanging(backend), Stalling()

    async def handle(given: Message, tx: Transaction[Any]) -> None:
        await handler(given, tx)

    await keep_due(backend, message("failed"))
    broker.put(message("delivery"), redelivered=True)
    consumer = backend.consumer(handle, lease_s=3600, concurrency=4)
    async with running(ConsumerRunner(backend.database, broker, [consumer], grace_s=0.05)) as stop:
        await until(lambda: len(handler.calls) == 2)
        assert not await none_is_started()
        stop.set()
        await until(none_is_started)
        broker.answers.set()
    assert broker.given_back == ["delivery"]


@pytest.mark.parametrize("turns", [0, 30, 80, 200, 400])
async def test_what_is_cut_off_is_put_back_however_often_the_consumer_is_cancelled(
    on_postgres: Backend, turns: int
) -> None:
    """An application's shutdown may be cancelled again while it waits for the end."""
    backend, handler, broker = on_postgres, Hanging(on_postgres), MemoryBroker()

    async def handle(given: Message, tx: Transaction[Any]) -> None:
        await handler(given, tx)

    await keep_due(backend, message("failed"))
    broker.put(message("delivery"), redelivered=True)
    consumer = backend.consumer(handle, lease_s=3600, concurrency=4)
    task = asyncio.create_task(ConsumerRunner(backend.database, broker, [consumer]).run(asyncio.Event()))
    await until(lambda: len(handler.calls) == 2)
    for _ in range(3):
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([task])
    found = (await backend.failed_messages()).values()
    assert [each.started - each.failed for each in found] == [0, 0]
    assert broker.given_back == ["delivery"]


async def test_a_broker_is_closed_however_often_the_consumer_is_cancelled(on_postgres: Backend) -> None:
    """What is cut off in its close leaves a connection, and the tasks of its client."""

    class Closing(MemoryBroker):
        entered, leave, closed = asyncio.Event(), asyncio.Event(), False

        async def close(self) -> None:
            self.entered.set()
            await self.leave.wait()
            self.closed = True

    broker = Closing()
    task = asyncio.create_task(
        ConsumerRunner(on_postgres.database, broker, [on_postgres.consumer()]).run(asyncio.Event())
    )
    await until(lambda: broker.subscriptions == 1)
    async with asyncio.timeout(PATIENCE_S):
        task.cancel()
        await broker.entered.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        broker.leave.set()
        await asyncio.wait([task])
    assert task.cancelled()
    assert broker.closed


class AnsweringLate:
    """A connection to a database that has written what is marked, and answers when the test says so."""

    def __init__(self, connection: Any, mark: str, written: asyncio.Event, answers: asyncio.Event) -> None:
        self._connection = connection
        self._mark = mark
        self._written = written
        self._answers = answers
        self._is_marked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def batch(self, items: Sequence[Any]) -> int:
        self._is_marked |= any(self._mark in str(item) for item in items)
        return int(await self._connection.batch(items))

    async def fetch(self, statement: Any) -> Any:
        self._is_marked |= self._mark in str(statement)
        return await self._connection.fetch(statement)

    async def release(self) -> None:
        await self._connection.release()
        if self._is_marked:
            self._written.set()
            await self._answers.wait()


@pytest.mark.parametrize(
    ("kind", "mark"), [("failed", "SET started = started"), ("delivery", "INSERT INTO onefold_letter")]
)
async def test_what_is_started_in_the_moment_of_a_cancellation_counts_as_not_started(
    kind: str, mark: str, on_postgres: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, broker, acquire = on_postgres, MemoryBroker(), on_postgres.database.acquire
    written, answers = asyncio.Event(), asyncio.Event()
    if kind == "failed":
        await keep_due(backend, message())
    else:
        broker.put(message(), redelivered=True)

    async def acquire_late() -> Any:
        return AnsweringLate(await acquire(), mark, written, answers)

    with monkeypatch.context() as patch:
        patch.setattr(backend.database, "acquire", acquire_late)
        task = asyncio.create_task(ConsumerRunner(backend.database, broker, [backend.consumer()]).run(asyncio.Event()))
        async with asyncio.timeout(PATIENCE_S):
            await written.wait()
            task.cancel()
            for _ in range(100):  # it comes through several tasks
                await asyncio.sleep(0)
            answers.set()
            await asyncio.wait([task])
    [failed_message] = (await backend.failed_messages()).values()
    assert failed_message.started == failed_message.failed


class Late(MemoryBroker):
    """Cannot be opened while it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = True


async def test_failed_messages_are_run_before_the_broker_can_be_opened(backend: Backend) -> None:
    await keep_due(backend, message())
    broker = Late()
    async with running(ConsumerRunner(backend.database, broker, [backend.consumer()], listener=backend.events.append)):
        await until(lambda: Handled("billing", "order.placed") in backend.events)
        assert broker.subscriptions == 0
        broker.down = False
        broker.put(message("m2"))
        await until(lambda: broker.acked == ["m2"])
    assert await backend.effects() == ["m1", "m2"]


async def test_of_several_consumers_that_cannot_run_one_is_raised_and_the_others_are_logged(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(MemoryBroker):
        waiting = asyncio.Event()

        async def subscribe(self, consumer: str, topics: Sequence[str]) -> MemorySubscription:
            if consumer == "billing":
                await self.waiting.wait()
            else:
                try:
                    self.waiting.set()
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
            raise ConfigurationError(f"{consumer} is refused")

    consumers = [backend.consumer(), replace(backend.consumer(), name="mail")]
    with pytest.raises(ConfigurationError, match="billing is refused"):
        async with asyncio.timeout(PATIENCE_S):
            await ConsumerRunner(backend.database, Refusing(), consumers).run(asyncio.Event())
    assert "a further task of the consumers failed, too: mail is refused" in caplog.text


async def test_a_broker_that_is_refused_ends_the_consumers_at_once(backend: Backend) -> None:
    class Unsafe(MemoryBroker):
        async def open(self) -> None:
            raise ConfigurationError("acks=1")

    with pytest.raises(ConfigurationError, match="acks=1"):
        async with asyncio.timeout(PATIENCE_S):
            await ConsumerRunner(backend.database, Unsafe(), [backend.consumer()], grace_s=3600).run(asyncio.Event())
