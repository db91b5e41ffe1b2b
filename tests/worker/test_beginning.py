"""A block of consumers begins when they are subscribed: what is published from then on reaches each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold import AsyncOnefold, Message, Onefold
from onefold._worker import embedded
from onefold.brokers import Broker
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


async def test_consumers_that_end_at_once_do_not_keep_the_block_from_beginning(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_S_MAX", float("inf"))

    def absent() -> Broker:
        raise RuntimeError("no broker today")

    once = AsyncOnefold(sqlite_path, broker=absent)
    declare(once)
    with pytest.raises(RuntimeError, match="no broker today"):
        async with once.consuming():
            pass
    await once.close()
