"""Brokers that cost nothing, so that what is measured is not them: one that takes, one that tells when, one that gives.

All implement the Broker port. The NATS one is real, and knows when it was subscribed to.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import new_id
from onefold._kernel.messages import Confirm, Delivery, Message, read_delivery, write
from onefold.brokers.nats import NatsBroker
from onefold.brokers.nats._subscription import NatsSubscription
from onefold.errors import ProgrammerError

SEEN_S_MAX: Final = 30.0


class NullBroker:
    """Confirms everything at once: what is left is the database's part of relaying."""

    keep_every_s = 10.0
    redelivery_s = 3600.0

    async def open(self) -> None:
        pass

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return [None] * len(messages)

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> MemorySubscription:
        raise ProgrammerError(f"{consumer!r} cannot subscribe to {topics}: nothing is kept here")

    async def close(self) -> None:
        pass


class Sightings:
    """When each message was first seen, and waiting for it."""

    def __init__(self) -> None:
        self._seen_at: dict[str, float] = {}
        self._seen = asyncio.Event()

    def saw(self, message_id: str) -> None:
        self._seen_at.setdefault(message_id, time.perf_counter())
        self._seen.set()

    async def of(self, message_id: str) -> float:
        """When, on `time.perf_counter`."""
        async with asyncio.timeout(SEEN_S_MAX):
            while message_id not in self._seen_at:
                self._seen.clear()
                await self._seen.wait()
        return self._seen_at[message_id]


class RecordingBroker(NullBroker):
    """Notes when a message is handed to it."""

    def __init__(self, sightings: Sightings) -> None:
        self._sightings = sightings

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        for message in messages:
            self._sightings.saw(message.id)
        return [None] * len(messages)


class MemoryBroker(NullBroker):
    """Delivers what it was given, from memory, to one subscriber."""

    def __init__(self) -> None:
        self.subscribed_at = 0.0
        self._deliveries: deque[Delivery] = deque()

    async def put(self, messages: Sequence[Message]) -> None:
        self._deliveries.extend(delivery_of(message) for message in messages)

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> MemorySubscription:
        self.subscribed_at = time.perf_counter()
        return MemorySubscription(self._deliveries)


class MemorySubscription:
    """The one subscriber's end."""

    def __init__(self, deliveries: deque[Delivery]) -> None:
        self._deliveries = deliveries

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        if not self._deliveries:
            await asyncio.sleep(wait_s)
        return [self._deliveries.popleft() for _ in range(min(limit, len(self._deliveries)))]

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        pass

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries.extendleft(reversed(deliveries))

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        pass

    async def close(self) -> None:
        pass


class ClockedNats(NatsBroker):
    """NATS JetStream, which is filled before the clock starts: with the subscription."""

    subscribed_at = 0.0

    async def put(self, messages: Sequence[Message]) -> None:
        await self.open()
        try:
            refused = [answer for answer in await self.publish(messages) if answer is not None]
        finally:
            await self.close()
        if refused:
            raise SystemExit(f"NATS did not take {len(refused)} of {len(messages)} messages: {refused[0]}")

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> NatsSubscription:
        subscription = await super().subscribe(consumer, topics)
        self.subscribed_at = time.perf_counter()
        return subscription


def delivery_of(message: Message) -> Delivery:
    """What an adapter hands over: headers and all."""
    return read_delivery(write(message), message.data, redelivered=False, receipt=message.id)


def messages_of(count: int, *, source: str, topic: str, data: bytes) -> list[Message]:
    """New messages, the first of as many keys."""
    now_ms = wall_ms()
    return [
        Message(id=id_, source=source, topic=topic, data=data, time="2026-11-15T12:00:00Z", key=id_, epoch=1, version=1)
        for id_ in (new_id(now_ms) for _ in range(count))
    ]
