"""A consumer that operators pause: nothing is received, in no process and after no restart, until it is resumed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold
from onefold._inbox.pausing import pause, pauses, resume
from onefold._inbox.registry import list_processes
from onefold._kernel.log_context import ATTRIBUTE
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold._worker import pause_gate
from onefold._worker.consumer_admin import remove, survey
from onefold.errors import ConfigurationError, ConsumerActive
from onefold.telemetry import ConsumerPaused, ConsumerResumed
from tests.inbox.backends import Backend, message
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, running, until
from tests.worker.test_consumer import consuming


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_gate, "LOOK_S", 0.02)


async def test_a_consumer_that_starts_while_it_is_paused_waits_until_it_is_resumed(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    assert await backend.flow(pause(backend.dialect, "billing", "ada"))
    broker = MemoryBroker()
    broker.put(message())
    consumers = consuming(backend, broker)
    async with running(consumers):
        await until(lambda: ConsumerPaused("billing", "paused by ada") in backend.events)
        await until(lambda: list(consumers.alive()) == ["billing: paused"])
        assert consumers.alive()["billing: paused"] < 120, "it is well"
        assert (broker.subscriptions, await backend.effects()) == (0, [])
        assert await backend.flow(resume(backend.dialect, "billing", "ada"))
        await until(lambda: broker.idle)
        assert list(consumers.alive()) == ["billing"]
    moves = [event for event in backend.events if isinstance(event, ConsumerPaused | ConsumerResumed)]
    assert moves == [ConsumerPaused("billing", "paused by ada"), ConsumerResumed("billing")]
    lines = [vars(record).get(ATTRIBUTE) for record in caplog.records if record.name == "onefold.consumer"]
    assert lines == [{"event": f"consumer.{move}", "consumer": "billing"} for move in ("paused", "resumed")]
    assert await backend.effects() == ["m1"]


async def test_what_is_under_way_is_finished_and_the_rest_given_back(on_postgres: Backend) -> None:
    backend = on_postgres  # SQLite has one writer, which the handler is
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        entered.set()
        await leave.wait()

    broker = MemoryBroker()
    broker.put(message("m1"), message("m2"))
    async with running(consuming(backend, broker, backend.consumer(handler, concurrency=1))):
        await entered.wait()
        await backend.flow(pause(backend.dialect, "billing", "ada"))
        await until(lambda: any(isinstance(event, ConsumerPaused) for event in backend.events))
        leave.set()
        await until(lambda: "m2" in broker.given_back)
        assert (await backend.effects(), broker.acked) == (["m1"], ["m1"])
        await backend.flow(resume(backend.dialect, "billing", "ada"))
        await until(lambda: broker.idle)
    assert await backend.effects() == ["m1", "m2"]


async def test_failed_messages_wait_too(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        if len(backend.calls) == 1:
            raise RuntimeError("busy")

    broker = MemoryBroker()
    broker.put(message())
    consumer = backend.consumer(handler, retry_base_s=0.3, retry_cap_s=0.3)
    async with running(consuming(backend, broker, consumer)):
        await until(lambda: broker.idle and bool(backend.calls))
        await backend.flow(pause(backend.dialect, "billing", "ada"))
        await until(lambda: any(isinstance(event, ConsumerPaused) for event in backend.events))
        await backend.hours_pass()
        assert list(await backend.failed_messages()) == ["m1"]
        calls = len(backend.calls)
        await backend.flow(resume(backend.dialect, "billing", "ada"))
        await until(lambda: len(backend.calls) == 2)
    assert calls == 1


async def test_all_processes_of_it_pause_and_other_consumers_do_not(backend: Backend) -> None:
    brokers = [MemoryBroker() for _ in range(3)]
    mail = backend.consumer()
    object.__setattr__(mail, "name", "mail")
    processes = [consuming(backend, brokers[0]), consuming(backend, brokers[1]), consuming(backend, brokers[2], mail)]
    async with running(processes[0]), running(processes[1]), running(processes[2]):
        await until(lambda: all(broker.subscriptions == 1 for broker in brokers))
        await backend.flow(pause(backend.dialect, "billing", "ada"))
        await until(lambda: [list(each.alive()) for each in processes] == [["billing: paused"]] * 2 + [["mail"]])
        for number, broker in enumerate(brokers):
            broker.put(message(f"m{number}"))
        await until(lambda: brokers[2].idle)
        assert await backend.effects() == ["m2"]


async def test_before_it_is_known_whether_it_is_paused_it_does_not_run(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    await backend.change("ALTER TABLE onefold_pause RENAME COLUMN actor TO elsewhere")
    broker = MemoryBroker()
    broker.put(message())
    async with running(consuming(backend, broker)):
        await until(lambda: "could not read whether it is paused" in caplog.text)
        assert broker.subscriptions == 0
        await backend.change("ALTER TABLE onefold_pause RENAME COLUMN elsewhere TO actor")
        await until(lambda: broker.idle)
    assert await backend.effects() == ["m1"]


async def test_who_paused_it_is_written_down(backend: Backend) -> None:
    assert [await backend.flow(pause(backend.dialect, "billing", who)) for who in ("ada", "bob")] == [True, False]
    [found] = await backend.flow(pauses(backend.dialect))
    assert (found.consumer, found.actor) == ("billing", "ada")
    assert [await backend.flow(resume(backend.dialect, "billing", who)) for who in ("ada", "bob")] == [True, False]
    assert await backend.flow(pauses(backend.dialect, "billing")) == []
    rows = await backend.rows("SELECT actor, action, consumer FROM onefold_audit ORDER BY id")
    assert [tuple(row) for row in rows] == [("ada", "pause", "billing"), ("ada", "resume", "billing")]
    with pytest.raises(ConfigurationError, match="consumer name 'bill ing'"):
        await backend.flow(pause(backend.dialect, "bill ing", "ada"))


async def test_a_paused_process_is_a_running_one_and_its_consumer_is_not_removed(backend: Backend) -> None:
    broker = MemoryBroker()

    async def running_now() -> int:
        return sum(seen.running for seen in await survey(backend.database, broker))

    async with running(consuming(backend, broker)):
        await until(lambda: broker.subscriptions == 1)
        await backend.flow(pause(backend.dialect, "billing", "ada"))
        await until(lambda: any(isinstance(event, ConsumerPaused) for event in backend.events))
        async with running(consuming(backend, broker)):  # one that starts paused
            await until(_is(running_now, 2))
            with pytest.raises(ConsumerActive, match=r"while 2 process\(es\) of it are running"):
                await remove(backend.database, broker, "billing", "ada")
        await until(_is(running_now, 1))
    assert await running_now() == 0


async def test_a_paused_process_goes_on_saying_that_it_is_there(backend: Backend) -> None:
    await backend.flow(pause(backend.dialect, "billing", "ada"))
    consumers = consuming(backend, MemoryBroker())

    async def alive() -> bool:
        return any(member.alive for member in await backend.flow(list_processes(backend.dialect)))

    async with running(consumers):
        await until(alive)
        await backend.change("DELETE FROM onefold_consumer")
        await until(alive)


async def test_a_removed_consumer_is_paused_no_more(backend: Backend) -> None:
    await backend.flow(pause(backend.dialect, "billing", "ada"))
    await remove(backend.database, MemoryBroker(), "billing", "ada")
    assert await backend.flow(pauses(backend.dialect)) == []
    assert await survey(backend.database, MemoryBroker()) == []


def _is(count: Callable[[], Awaitable[int]], expected: int) -> Callable[[], Awaitable[bool]]:
    async def met() -> bool:
        return await count() == expected

    return met


class Threads:
    """A handler on threads that does not return, told by its messages' ids."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.leave = threading.Event()

    def __call__(self, given: Message) -> None:
        self.entered.append(given.id)
        self.leave.wait(PATIENCE_S)


async def test_threads_that_a_pause_left_behind_count_after_it(on_postgres: Backend) -> None:
    backend, handler = on_postgres, Threads()
    broker = MemoryBroker()
    broker.put(message("m1"))
    consumers = consuming(backend, broker, backend.consumer(handler, concurrency=1), grace_s=0.0)
    async with running(consumers):
        await until(lambda: handler.entered == ["m1"])
        await backend.flow(pause(backend.dialect, "billing", "ada"))
        await until(lambda: list(consumers.alive()) == ["billing: paused"])
        await backend.flow(resume(backend.dialect, "billing", "ada"))
        await until(lambda: broker.subscriptions == 2 and bool(broker.out))
        broker.put(message("m2"))
        await until(lambda: len(broker.out) == 2)
        [gate] = consumers._gates
        assert (handler.entered, gate._calls.room.is_set()) == (["m1"], False)
        handler.leave.set()
        await until(lambda: broker.idle)
    assert (handler.entered, await backend.ledger()) == (["m1", "m1", "m2"], ["m1", "m2"])


async def test_a_message_whose_handler_a_pause_left_behind_is_not_handled_beside_itself(on_postgres: Backend) -> None:
    backend, handler = on_postgres, Threads()
    broker = MemoryBroker()
    broker.put(message("m1"))
    consumers = consuming(backend, broker, backend.consumer(handler, concurrency=2), grace_s=0.0)
    async with running(consumers):
        await until(lambda: handler.entered == ["m1"])
        await backend.flow(pause(backend.dialect, "billing", "ada"))
        await until(lambda: list(consumers.alive()) == ["billing: paused"])
        broker.put(message("m2"), message("m3"))
        await backend.flow(resume(backend.dialect, "billing", "ada"))
        await until(lambda: len(handler.entered) == 2)
        assert "m1" not in handler.entered[1:]
        handler.leave.set()
        await until(lambda: broker.idle)
    assert await backend.ledger() == ["m1", "m2", "m3"]


async def test_both_faces_pause_and_resume(sqlite_path: Path) -> None:
    once, on_threads = AsyncOnefold(sqlite_path), Onefold(sqlite_path)
    assert await once.pause_consumer("billing", actor="ada")
    assert not on_threads.pause_consumer("billing", actor="bob")
    assert on_threads.resume_consumer("billing", actor="bob")
    assert not await once.resume_consumer("billing", actor="ada")
    on_threads.close()
    await once.close()
