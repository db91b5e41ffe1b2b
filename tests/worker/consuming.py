"""A broker in memory for tests of the consumer, with faults to be set, and a stage on which consumers run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from onefold._kernel.messages import Confirm, Delivery, Message
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.errors import BrokerUnavailable
from tests.support.patience import PATIENCE_S


class MemoryBroker:
    """Delivers until acknowledged; what is given back comes again, and says so. One queue, as for one consumer."""

    redelivery_s = 3600.0

    def __init__(self, *, keep_every_s: float = 5.0) -> None:
        self.keep_every_s = keep_every_s
        self._down = False
        self.queue: list[Delivery] = []
        self.out: dict[int, Delivery] = {}
        self.acked: list[str] = []
        self.given_back: list[str] = []
        self.kept: list[str] = []
        self.subscriptions = 0
        self.opened = self.receipts = self.receiving = 0
        self._came = asyncio.Event()

    @property
    def down(self) -> bool:
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        """When it is back, it does not know who had what."""
        self._down = down
        if not down:
            lost, self.out = list(self.out.values()), {}
            for delivery in lost:
                self._offer(replace(delivery, redelivered=True))

    def put(self, *messages: Message, redelivered: bool = False) -> None:
        for message in messages:
            self._offer(Delivery(data=message.data, headers={}, message=message, redelivered=redelivered))

    def put_raw(self, data: bytes, problem: str) -> None:
        self._offer(Delivery(data=data, headers={}, problem=problem))

    def _offer(self, delivery: Delivery) -> None:
        self.receipts += 1
        self.queue.append(replace(delivery, receipt=self.receipts))
        self._came.set()

    def check(self) -> None:
        if self.down:
            raise BrokerUnavailable("the broker was switched off by the test")

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing is out."""
        return not self.queue and not self.out

    async def open(self) -> None:
        self.opened += 1
        self.check()

    async def close(self) -> None:
        """Nothing to close."""

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        raise NotImplementedError

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> MemorySubscription:
        self.check()
        self.subscriptions += 1
        return MemorySubscription(self)


class MemorySubscription:
    """The consumer's end."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        broker = self._broker
        broker.check()
        if not broker.queue:
            broker._came.clear()
            broker.receiving += 1
            try:
                await asyncio.wait_for(broker._came.wait(), wait_s)
            except TimeoutError:
                return []
            finally:
                broker.receiving -= 1
        taken, broker.queue = broker.queue[:limit], broker.queue[limit:]
        for delivery in taken:
            broker.out[delivery.receipt] = delivery
        return taken

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._broker.check()
        for delivery in deliveries:
            if self._broker.out.pop(delivery.receipt, None) is not None:
                self._broker.acked.append(_name(delivery))

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        self._broker.check()
        for delivery in deliveries:
            if self._broker.out.pop(delivery.receipt, None) is not None:
                self._broker.given_back.append(_name(delivery))
                self._broker._offer(replace(delivery, redelivered=True))

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        self._broker.kept += map(_name, deliveries)

    async def close(self) -> None:
        self._broker.check()
        await self.give_back(list(self._broker.out.values()))


def _name(delivery: Delivery) -> str:
    return delivery.message.id if delivery.message is not None else "?"


@asynccontextmanager
async def running(consuming: ConsumerRunner) -> AsyncIterator[asyncio.Event]:
    """The consumers at work while the block lasts; then they are stopped, and must be done soon."""
    stop = asyncio.Event()
    task = asyncio.create_task(consuming.run(stop))
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await task


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for something that must come."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.005)
