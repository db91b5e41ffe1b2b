"""A consumer's queue at RabbitMQ, fetched from ahead of time.

Invariant: what was delivered over a channel is settled on that channel or not at all; RabbitMQ takes it back with it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.abc import AbstractChannel as Channel

from onefold._kernel.messages import Delivery, Origin, read_delivery
from onefold._kernel.topics import MORE
from onefold.brokers._rabbitmq_channel import (
    UNFIT,
    RabbitmqConnection,
    declare_exchange,
    end,
    text_of,
    translate_errors,
)
from onefold.errors import BrokerUnavailable, ConfigurationError

PREFIX: Final = "cloudEvents_"
"""Of the CloudEvents binding for AMQP. `cloudEvents:`, which it also knows, is understood."""

_OTHER_PREFIX: Final = "cloudEvents:"
#: What RabbitMQ writes into the headers of a message that it delivers again.
_NOTES: Final = ("x-delivery-count", "x-acquired-count", "x-death", "x-first-death-", "x-last-death-")
#: The first version that drops what a quorum queue has delivered 20 times, by default.
_DELIVERY_LIMIT_SINCE: Final = 4

QueueType = Literal["quorum", "classic"]


@dataclass(slots=True, eq=False)
class _Feed:
    """The deliveries of one channel. Their tags are valid on that channel only."""

    channel: Channel
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    arrived: deque[AbstractIncomingMessage] = field(default_factory=deque)
    unsettled: dict[int, None] = field(default_factory=dict)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    """Something arrived, or nothing will any more."""
    ended: str | None = None

    async def arrive(self, message: AbstractIncomingMessage) -> None:
        self.unsettled[message.delivery_tag or 0] = None
        self.arrived.append(message)
        self.stirred.set()

    def end(self, why: str) -> None:
        self.ended = self.ended or why
        self.arrived.clear()
        self.stirred.set()

    def take(self, limit: int) -> list[Delivery]:
        taken = [self.arrived.popleft() for _ in range(min(limit, len(self.arrived)))]
        if not self.arrived and self.ended is None:
            self.stirred.clear()
        return [_delivery(message, self) for message in taken]


@dataclass(frozen=True, slots=True)
class _Receipt:
    feed: _Feed
    tag: int


class RabbitSubscription:
    """A consumer's queue, fetched from ahead of time. Made by `RabbitBroker.subscribe`."""

    def __init__(
        self,
        connection: RabbitmqConnection,
        *,
        exchange: str,
        queue: str,
        queue_type: QueueType,
        topics: Sequence[str],
        prefetch: int,
    ) -> None:
        self._connection = connection
        self._exchange = exchange
        self._queue = queue
        self._queue_type: QueueType = queue_type
        self._topics = tuple(topics)
        self._prefetch = prefetch
        self._channel: AbstractChannel | None = None
        self._feed: _Feed | None = None
        self._attaching = asyncio.Lock()
        self.closed = False

    async def attach(self) -> _Feed:
        """Have the queue delivered, where it is not."""
        async with self._attaching:
            if self._feed is None or self._feed.ended is not None:
                await self._detach()
                self._channel = await self._connection.channel(confirms=False)
                async with (
                    translate_errors(f"subscribing to {self._queue!r}"),
                    asyncio.timeout(self._connection.patience_s),
                ):
                    self._feed = await self._consume(self._channel)
            return self._feed

    async def _consume(self, channel: AbstractChannel) -> _Feed:
        arguments: dict[str, Any] = {"x-queue-type": self._queue_type}
        if self._queue_type == "quorum" and self._connection.major >= _DELIVERY_LIMIT_SINCE:
            arguments["x-delivery-limit"] = -1
        await channel.set_qos(prefetch_count=self._prefetch)
        exchange = await declare_exchange(channel, self._exchange, self._connection.patience_s)
        try:
            queue = await channel.declare_queue(self._queue, durable=True, arguments=arguments)
        except UNFIT as error:
            raise ConfigurationError(
                f"the queue {self._queue!r} is not one that onefold can use: {text_of(error)}; delete it once it is "
                "empty, choose its queue_type, or choose another queue_prefix"
            ) from error
        for topic in self._topics:
            await queue.bind(exchange, binding_key(topic))
        feed = _Feed(await channel.get_underlay_channel())
        feed.channel.on_consumer_cancel_callbacks.add(lambda _: feed.end("RabbitMQ has ended the delivery"))
        channel.close_callbacks.add(lambda _, error: feed.end(text_of(error)))
        await queue.consume(feed.arrive)
        return feed

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        if self.closed:
            raise BrokerUnavailable(f"the subscription to {self._queue!r} is closed")
        try:
            feed = await self.attach()
        except ConfigurationError as error:
            raise BrokerUnavailable(f"{self._queue!r} cannot be subscribed to again: {error}") from error
        try:
            async with asyncio.timeout(wait_s):
                await feed.stirred.wait()
        except TimeoutError:
            return []
        if feed.ended is not None:
            raise BrokerUnavailable(f"the delivery from {self._queue!r} has ended: {feed.ended}")
        return feed.take(limit)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        late = 0
        for feed, tags in _by_feed(deliveries).items():
            if feed.ended is not None:
                late += len(tags)
                continue
            async with translate_errors(f"acknowledging to {self._queue!r}"):
                # What lies before all else that is unsettled goes in one frame.
                first = 0
                for tag in tuple(feed.unsettled):
                    if tag not in tags:
                        break
                    first = tag
                rest = [tag for tag in feed.unsettled if tag > first and tag in tags]
                for tag in [tag for tag in feed.unsettled if tag <= first] + rest:
                    del feed.unsettled[tag]
                if first:
                    await feed.channel.basic_ack(first, multiple=True, wait=not rest)
                for tag in rest:
                    await feed.channel.basic_ack(tag, wait=tag == rest[-1])
        if late:
            raise BrokerUnavailable(
                f"the connection was lost before {late} messages were acknowledged: they come again"
            )

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        for feed, tags in _by_feed(deliveries).items():
            if feed.ended is not None:
                continue  # RabbitMQ has taken them back by itself.
            async with translate_errors(f"giving back to {self._queue!r}"):
                for tag in [tag for tag in feed.unsettled if tag in tags]:
                    del feed.unsettled[tag]
                    await feed.channel.basic_nack(tag, requeue=True)

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: a message stays with its connection."""

    async def close(self) -> None:
        self.closed = True
        await self._detach()

    async def _detach(self) -> None:
        channel, self._channel = self._channel, None
        if self._feed is not None:
            self._feed.end("it was closed")
        if channel is not None:
            await end(channel)


def binding_key(topic: str) -> str:
    """A topic, or pattern, as an exchange has it: `*` means the same, `#` is none or more."""
    return f"{topic.removesuffix(MORE)}*.#" if topic.endswith(MORE) else topic


def _by_feed(deliveries: Sequence[Delivery]) -> dict[_Feed, set[int]]:
    found: dict[_Feed, set[int]] = {}
    for delivery in deliveries:
        found.setdefault(delivery.receipt.feed, set()).add(delivery.receipt.tag)
    return found


def _delivery(message: AbstractIncomingMessage, feed: _Feed) -> Delivery:
    tag = message.delivery_tag or 0
    topic = message.routing_key or ""
    return read_delivery(
        _headers(message.headers, message.content_type),
        message.body,
        redelivered=bool(message.redelivered),
        receipt=_Receipt(feed, tag),
        origin=Origin(
            broker="rabbitmq", subject=topic, topic=topic, id=message.message_id or None, prefix=PREFIX, percent=False
        ),
        tag=f"{feed.name}/{tag}",
    )


def _headers(table: Mapping[str, Any], content_type: str | None) -> dict[str, str]:
    found = {} if content_type is None else {"content-type": content_type}
    for name, value in table.items():
        if name.startswith(_NOTES):
            continue
        if name.startswith(_OTHER_PREFIX):
            name = PREFIX + name[len(_OTHER_PREFIX) :]
        found[name] = value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
    return found
