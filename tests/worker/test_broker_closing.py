"""A broker that does not close keeps nobody from stopping, and a stop is no cancellation because of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, single_principal
from onefold._inbox.consumer import Consumer
from onefold._kernel.messages import Message
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._worker import broker_closing
from onefold._worker.broker_closing import close_broker
from onefold._worker.consumer_runner import ConsumerRunner
from onefold._worker.relay_loop import Relay
from onefold.errors import BrokerUnavailable
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, until


class Closing(MemoryBroker):
    """Its close begins, and waits until `may_close`."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.closing, self.may_close, self.closed = asyncio.Event(), asyncio.Event(), False
        self._error = error

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        self.closed = True
        if self._error is not None:
            raise self._error


async def print_message(message: Message) -> None:
    print(message.id)


async def run_consumer(database: AsyncDatabase[Any], broker: Broker, stop: asyncio.Event) -> None:
    consumer = Consumer(name="billing", topics=("order.placed",), handler=print_message)
    await ConsumerRunner(database, broker, [consumer]).run(stop)


async def run_relay(database: AsyncDatabase[Any], broker: Broker, stop: asyncio.Event) -> None:
    await Relay(database, broker, lease_s=30.0, listens=False, draw=lambda: 0.0).run(stop)


Runs = Callable[[AsyncDatabase[Any], Broker, asyncio.Event], Awaitable[None]]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncDatabase[Any]:
    once = AsyncOnefold(tmp_path / "shop.db", principal=single_principal)
    await once.migrate()
    return once._for_workers()


@pytest.mark.parametrize("run", [run_consumer, run_relay])
async def test_a_stop_ends_as_one_though_the_broker_does_not_close(
    run: Runs, database: AsyncDatabase[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_closing, "CLOSE_S_MAX", 0.05)
    broker, stop = Closing(), asyncio.Event()
    stop.set()
    async with asyncio.timeout(PATIENCE_S):
        await run(database, broker, stop)
    assert not broker.closed
    assert "the broker was not closed within" in caplog.text


@pytest.mark.parametrize("run", [run_consumer, run_relay])
async def test_a_broker_is_closed_also_if_its_runner_is_cancelled_meanwhile(
    run: Runs, database: AsyncDatabase[Any], caplog: pytest.LogCaptureFixture
) -> None:
    broker, stop = Closing(), asyncio.Event()
    stop.set()
    running = asyncio.ensure_future(run(database, broker, stop))
    async with asyncio.timeout(PATIENCE_S):
        await broker.closing.wait()
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        broker.may_close.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert broker.closed
    assert not caplog.records


async def test_what_a_close_raises_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    broker = Closing(BrokerUnavailable("on purpose"))
    broker.may_close.set()
    with pytest.raises(BrokerUnavailable, match="on purpose"):
        await close_broker(broker)


async def test_what_a_close_raises_beside_a_cancellation_is_not_called_unretrieved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "asyncio")
    broker = Closing(BrokerUnavailable("on purpose"))
    closing = asyncio.create_task(close_broker(broker))
    await until(broker.closing.is_set)
    closing.cancel()
    await asyncio.sleep(0)
    broker.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    del closing
    await asyncio.sleep(0)
    assert not caplog.records
