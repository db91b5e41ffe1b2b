"""A block of consumers begins when they are subscribed: what is published from then on reaches each of them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onefold import AsyncOnefold, Message, Onefold
from onefold._worker import embedded
from onefold.brokers import Broker
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker


def declare(once: Onefold | AsyncOnefold) -> None:
    for name in ("billing", "shipping"):

        @once.consumer(name, topic="order.placed")
        def handle(message: Message) -> None:
            pass


async def test_the_block_of_an_async_application_begins_when_every_consumer_is_subscribed(sqlite_path: Path) -> None:
    broker = MemoryBroker()
    once = AsyncOnefold(sqlite_path, broker=lambda: broker)
    declare(once)
    async with once.consuming():
        assert broker.subscriptions == 2
    await once.close()


def test_the_block_of_a_threaded_application_begins_when_every_consumer_is_subscribed(sqlite_path: Path) -> None:
    broker = MemoryBroker()
    once = Onefold(sqlite_path, broker=lambda: broker)
    declare(once)
    with once.consuming():
        assert broker.subscriptions == 2
    once.close()


async def test_a_broker_that_is_absent_does_not_keep_the_application_from_starting(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_S_MAX", float("inf"))
    broker = MemoryBroker()
    broker.down = True
    once = AsyncOnefold(sqlite_path, broker=lambda: broker)
    declare(once)
    async with once.consuming():
        assert (broker.opened, broker.subscriptions) == (1, 0)
    await once.close()


async def test_a_paused_consumer_does_not_keep_the_application_from_starting(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_S_MAX", float("inf"))
    broker = MemoryBroker()
    once = AsyncOnefold(sqlite_path, broker=lambda: broker)
    declare(once)
    await once.pause_consumer("billing", actor="ada")
    async with once.consuming():
        assert broker.subscriptions == 1
    await once.close()


async def test_a_block_does_not_begin_without_its_consumers(sqlite_path: Path) -> None:
    def absent() -> Broker:
        raise RuntimeError("no broker today")

    once = AsyncOnefold(sqlite_path, broker=absent)
    declare(once)
    with pytest.raises(RuntimeError, match="no broker today"):
        async with once.consuming():
            raise AssertionError("the consumers have ended")
    await once.close()


class Interrupt(BaseException):
    """What a signal's handler raises."""


@pytest.fixture
def interrupt_main() -> Iterator[Callable[[], None]]:
    """Have the main thread raise Interrupt, wherever it is."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_thread_is_not_left_behind_when_its_block_is_interrupted_before_it_begins(
    interrupt_main: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_S_MAX", PATIENCE_S)
    ended: list[str] = []

    async def work(stop: asyncio.Event, begun: Callable[[], None]) -> None:
        interrupt_main()
        await stop.wait()
        ended.append("as told")

    with pytest.raises(Interrupt), embedded.on_a_thread(work, "worker", waits=True):
        raise AssertionError("the work has not begun")
    assert ended == ["as told"]


async def fail(stop: asyncio.Event, begun: Callable[[], None]) -> None:
    raise LookupError("its own")


async def fail_later(stop: asyncio.Event, begun: Callable[[], None]) -> None:
    begun()
    await stop.wait()
    raise LookupError("its own")


async def test_a_block_does_not_begin_whose_work_failed_at_once() -> None:
    with pytest.raises(LookupError, match="its own"):
        async with embedded.as_task(fail, "worker", waits=True):
            raise AssertionError("the work has ended")
    with pytest.raises(LookupError, match="its own"), embedded.on_a_thread(fail, "worker", waits=True):
        raise AssertionError("the work has ended")


async def test_what_the_block_raises_is_not_replaced_by_the_failure_of_its_work() -> None:
    with pytest.raises(KeyError):
        async with embedded.as_task(fail_later, "worker", waits=True):
            raise KeyError
    with pytest.raises(KeyError), embedded.on_a_thread(fail_later, "worker", waits=True):
        raise KeyError
    with pytest.raises(LookupError, match="its own"):
        async with embedded.as_task(fail_later, "worker", waits=True):
            pass
