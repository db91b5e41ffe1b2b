"""RabbitMQ, on aio-pika: one durable topic exchange for all events, one durable queue for each consumer.

Invariant: a message counts as confirmed when RabbitMQ has confirmed it and has not returned it, so at least one queue
has it for good. What nobody is subscribed to is refused, not dropped.

Two connections, each made when it is first needed and again when it was lost: a RabbitMQ that is short of memory or
disk stops reading from those that publish, and acknowledgements must not wait behind that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage
from aiormq.abc import AbstractChannel as Channel
from aiormq.exceptions import (
    ChannelClosed,
    ChannelNotFoundEntity,
    ConnectionFrameError,
    DeliveryError,
    PublishError,
)

from onefold._kernel.messages import Confirm, Delivery, Message, received, write
from onefold.brokers.rabbitmq_line import PORTS, UNFIT, Line, declare_exchange, end, said, translated
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused
from onefold.policy.ranges import require

PREFIX: Final = "cloudEvents_"
"""Of the CloudEvents binding for AMQP. `cloudEvents:`, which it also knows, is understood."""

_OTHER_PREFIX: Final = "cloudEvents:"
#: What RabbitMQ writes into the headers of a message that it delivers again.
_NOTES: Final = ("x-delivery-count", "x-acquired-count", "x-death", "x-first-death-", "x-last-death-")
#: The first version that throws away what a quorum queue has delivered 20 times, unless it is told not to.
_DELIVERY_LIMIT_SINCE: Final = 4

QueueType = Literal["quorum", "classic"]


class RabbitBroker:
    """A vhost of a RabbitMQ, named by its URL: amqp(s)://user:password@host/vhost."""

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "onefold",
        queue_prefix: str = "onefold",
        queue_type: QueueType = "quorum",
        prefetch: int = 200,
        confirm_s: float = 10.0,
        redelivery_s: float = 7 * 86_400,
    ) -> None:
        """`prefetch` is how many messages one subscription may have that are not settled. Each of them must be settled
        within RabbitMQ's `consumer_timeout`, half an hour unless it is set, counted from when it was fetched.

        `redelivery_s` is for how long a message may lie in a queue, which only you know: RabbitMQ knows no end."""
        require("prefetch", prefetch, least=1, most=65_535)
        require("confirm_s", confirm_s, least=0.1, most=600)
        require("redelivery_s", redelivery_s, least=1, most=10 * 366 * 86_400)
        if queue_type not in ("quorum", "classic"):
            raise ConfigurationError(f"queue_type={queue_type!r} is unknown: choose 'quorum' or 'classic'")
        for name, value in (("exchange", exchange), ("queue_prefix", queue_prefix)):
            if not value or len(value) > 100 or value.startswith("amq."):
                raise ConfigurationError(
                    f"{name}={value!r} cannot be used: give 1 to 100 characters that do not begin with 'amq.'"
                )
        if urlsplit(url).scheme not in PORTS:
            raise ConfigurationError("the URL of RabbitMQ must begin with amqp:// or amqps://")
        self._exchange_name = exchange
        self._queue_prefix = queue_prefix
        self._queue_type: QueueType = queue_type
        self._prefetch = prefetch
        self._confirm_s = confirm_s
        self._redelivery_s = redelivery_s
        self._out = Line(url, confirm_s)
        self._in = Line(url, confirm_s)
        self._outlet: _Outlet | None = None
        self._opening = asyncio.Lock()
        self._flying: dict[str, asyncio.Event] = {}
        self._subscriptions: set[RabbitSubscription] = set()

    @property
    def keep_every_s(self) -> float:
        """As good as never: RabbitMQ delivers again when the connection ends, or after its `consumer_timeout`."""
        return 600.0

    @property
    def redelivery_s(self) -> float:
        return self._redelivery_s

    async def open(self) -> None:
        self._out.allow()
        self._in.allow()
        await self._open_outlet()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        if not messages:
            return []
        try:
            outlet = await self._open_outlet()
        except ConfigurationError as error:  # It was right at the start: somebody is changing the server.
            raise BrokerUnavailable(str(error)) from error
        answers = await asyncio.gather(*(self._send(outlet, message) for message in messages))
        if not any(isinstance(answer, _Condemned) for answer in answers):
            return [_settled(answer) for answer in answers]
        # RabbitMQ has closed the channel over one message, and all that were on it with that one. One at a time, it
        # is seen which it was. What had arrived all the same arrives twice, under its id.
        return [
            await self._send_alone(message) if isinstance(answer, _Condemned | BrokerUnavailable) else _settled(answer)
            for message, answer in zip(messages, answers, strict=True)
        ]

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> RabbitSubscription:
        queue = f"{self._queue_prefix}.{consumer}"
        if not consumer or len(queue.encode()) > 255:
            raise ConfigurationError(f"consumer={consumer!r} makes no name of a queue: {queue!r} must have 255 bytes")
        if not topics:
            raise ConfigurationError(f"consumer={consumer!r} has no topics: name those it shall get")
        subscription = RabbitSubscription(
            self._in,
            exchange=self._exchange_name,
            queue=queue,
            queue_type=self._queue_type,
            topics=topics,
            prefetch=self._prefetch,
        )
        try:
            await subscription.attach()
        except BaseException:
            await subscription.close()
            raise
        self._subscriptions = {*(each for each in self._subscriptions if not each.closed), subscription}
        return subscription

    async def close(self) -> None:
        for subscription in tuple(self._subscriptions):
            await subscription.close()
        self._outlet = None
        await self._out.close()
        await self._in.close()

    async def _open_outlet(self) -> _Outlet:
        """The exchange, on a channel with confirms; a new one where the last was closed."""
        async with self._opening:
            if self._outlet is None or self._outlet.channel.is_closed:
                self._outlet = await self._fresh_outlet()
            return self._outlet

    async def _fresh_outlet(self) -> _Outlet:
        channel = await self._out.channel(confirms=True)
        return _Outlet(channel, await declare_exchange(channel, self._exchange_name, self._confirm_s))

    async def _send(self, outlet: _Outlet, message: Message) -> Confirm | _Condemned:
        headers = write(message, prefix=PREFIX, percent=False)
        sent = aio_pika.Message(
            message.data,
            content_type=headers.pop("content-type"),
            message_id=message.id,
            headers={**headers},
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        try:
            about_it = (ChannelClosed, ConnectionFrameError, DeliveryError)
            async with translated(f"publishing to {message.topic!r}", but=about_it), asyncio.timeout(self._confirm_s):
                # What is returned is known by its id alone: the same id must not be under way twice.
                while (earlier := self._flying.get(message.id)) is not None:
                    await earlier.wait()
                landed = self._flying[message.id] = asyncio.Event()
                try:
                    await outlet.exchange.publish(sent, message.topic, mandatory=True)
                finally:
                    del self._flying[message.id]
                    landed.set()
        except PublishError:
            return MessageRefused(
                f"no queue is bound for topic {message.topic!r} at the exchange {self._exchange_name!r}: "
                "subscribe a consumer to it first"
            )
        except (DeliveryError, ChannelNotFoundEntity) as error:  # Not confirmed, or the exchange is gone.
            return BrokerUnavailable(f"RabbitMQ did not take message {message.id}: {said(error)}")
        except (ChannelClosed, ConnectionFrameError) as error:
            ours = not error.args or error.args[0] is None  # We have closed it ourselves: the server gives a reason.
            return BrokerUnavailable("the channel was closed") if ours else _Condemned(said(error))
        except (ValueError, TypeError) as error:
            return MessageRefused(f"message {message.id} does not fit into AMQP: {error}")
        except BrokerUnavailable as error:
            return error
        return None

    async def _send_alone(self, message: Message) -> Confirm:
        try:
            outlet = await self._fresh_outlet()
        except (BrokerUnavailable, ConfigurationError) as error:
            return BrokerUnavailable(str(error))
        try:
            return _settled(await self._send(outlet, message))
        finally:
            await end(outlet.channel)


@dataclass(frozen=True, slots=True)
class _Outlet:
    channel: AbstractChannel
    exchange: AbstractExchange


@dataclass(frozen=True, slots=True)
class _Condemned:
    """RabbitMQ closed the channel, or the connection, for a reason that lies in some message on it."""

    reason: str


def _settled(answer: Confirm | _Condemned) -> Confirm:
    return MessageRefused(f"RabbitMQ refuses it: {answer.reason}") if isinstance(answer, _Condemned) else answer


@dataclass(slots=True, eq=False)
class _Feed:
    """What arrives over one channel. Its tags mean nothing on any other: they die with it."""

    channel: Channel
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
        self, line: Line, *, exchange: str, queue: str, queue_type: QueueType, topics: Sequence[str], prefetch: int
    ) -> None:
        self._line = line
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
                self._channel = await self._line.channel(confirms=False)
                async with translated(f"subscribing to {self._queue!r}"), asyncio.timeout(self._line.patience_s):
                    self._feed = await self._consume(self._channel)
            return self._feed

    async def _consume(self, channel: AbstractChannel) -> _Feed:
        arguments: dict[str, Any] = {"x-queue-type": self._queue_type}
        if self._queue_type == "quorum" and self._line.major >= _DELIVERY_LIMIT_SINCE:
            arguments["x-delivery-limit"] = -1
        await channel.set_qos(prefetch_count=self._prefetch)
        exchange = await declare_exchange(channel, self._exchange, self._line.patience_s)
        try:
            queue = await channel.declare_queue(self._queue, durable=True, arguments=arguments)
        except UNFIT as error:
            raise ConfigurationError(
                f"the queue {self._queue!r} is not one that onefold can use: {said(error)}; delete it once it is "
                "empty, choose its queue_type, or choose another queue_prefix"
            ) from error
        for topic in self._topics:
            await queue.bind(exchange, topic)
        feed = _Feed(await channel.get_underlay_channel())
        feed.channel.on_consumer_cancel_callbacks.add(lambda _: feed.end("RabbitMQ has ended the delivery"))
        channel.close_callbacks.add(lambda _, error: feed.end(said(error)))
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
            async with translated(f"acknowledging to {self._queue!r}"):
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
            async with translated(f"giving back to {self._queue!r}"):
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


def _by_feed(deliveries: Sequence[Delivery]) -> dict[_Feed, set[int]]:
    found: dict[_Feed, set[int]] = {}
    for delivery in deliveries:
        found.setdefault(delivery.receipt.feed, set()).add(delivery.receipt.tag)
    return found


def _delivery(message: AbstractIncomingMessage, feed: _Feed) -> Delivery:
    return received(
        _headers(message.headers, message.content_type),
        message.body,
        redelivered=bool(message.redelivered),
        receipt=_Receipt(feed, message.delivery_tag or 0),
        prefix=PREFIX,
        percent=False,
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
