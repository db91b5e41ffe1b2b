"""Partitions: queues for the deliveries of a consumer; those of one stream are always in the same one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from onefold._kernel.messages import Delivery


class Partition:
    """A queue for several streams. The task that holds `turn` handles one delivery or failed message of it."""

    __slots__ = ("arrived", "queue", "turn")

    def __init__(self) -> None:
        self.queue: deque[Delivery] = deque()
        self.arrived = asyncio.Event()
        self.turn = asyncio.Lock()

    def take_batch(self, limit: int) -> list[Delivery]:
        """The next delivery; or more, as far as they can be handled together."""
        first = self.queue.popleft()
        deliveries = [first]
        while len(deliveries) < limit and self.queue and _plain(first) and _plain(self.queue[0]):
            deliveries.append(self.queue.popleft())
        return deliveries

    def take_stream(self, limit: int) -> list[Delivery]:
        """The next delivery, and those right behind it that are of the same stream."""
        first = self.queue.popleft()
        deliveries = [first]
        stream = delivery_stream(first)
        while len(deliveries) < limit and self.queue and delivery_stream(self.queue[0]) == stream:
            deliveries.append(self.queue.popleft())
        return deliveries

    def drain(self) -> list[Delivery]:
        deliveries = list(self.queue)
        self.queue.clear()
        return deliveries


class Partitions:
    """All partitions of a consumer. Deliveries without a stream are distributed round-robin."""

    __slots__ = ("_next", "_partitions")

    def __init__(self, count: int) -> None:
        self._partitions = [Partition() for _ in range(count)]
        self._next = 0

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions)

    def of(self, delivery: Delivery) -> Partition:
        return self.of_stream(delivery_stream(delivery))

    def of_stream(self, stream: bytes | None) -> Partition:
        if stream is None:
            self._next += 1
            return self._partitions[self._next % len(self._partitions)]
        return self._partitions[int.from_bytes(stream[:4], "big") % len(self._partitions)]


def delivery_stream(delivery: Delivery) -> bytes | None:
    return None if delivery.message is None else delivery.message.stream


def _plain(delivery: Delivery) -> bool:
    return delivery.message is not None and not delivery.redelivered
