"""RabbitMQ, on aio-pika: one durable topic exchange for all events, one durable queue for each consumer.

Invariant: a message counts as confirmed when RabbitMQ has confirmed it and has not returned it, so at least one queue
has it for good. What no consumer is subscribed to is refused, not dropped, and waits in the outbox.

Two connections, each made when it is first needed and again when it was lost: a RabbitMQ that is short of memory or
disk stops reading from those that publish, and acknowledgements must not wait behind that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from onefold._kernel.extras import missing_extra

try:
    import aio_pika
except ModuleNotFoundError as error:
    raise missing_extra(error, "rabbitmq") from None
from aio_pika.abc import AbstractChannel, AbstractExchange
from aiormq.exceptions import (
    ChannelClosed,
    ChannelNotFoundEntity,
    ConnectionFrameError,
    DeliveryError,
    PublishError,
)

from onefold._kernel.messages import Confirm, Message, write
from onefold._kernel.ports import SubscriptionSeen
from onefold._policy.ranges import require
from onefold.brokers._addresses import check_address
from onefold.brokers._rabbitmq_channel import (
    PORTS,
    RabbitmqConnection,
    declare_exchange,
    end,
    text_of,
    translate_errors,
)
from onefold.brokers._rabbitmq_queue import PREFIX, QueueType, RabbitSubscription, binding_key
from onefold.errors import BrokerUnavailable, ConfigurationError, ConsumerActive, MessageRefused, TopicNotSubscribed

__all__ = ["QueueType", "RabbitBroker"]


class RabbitBroker:
    """A vhost of a RabbitMQ, named by its URL: amqp(s)://user:password@host/vhost."""

    #: In spans.
    system = "rabbitmq"

    matches_patterns = True

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
        """`url` is amqp:// or amqps://. Events go to the topic exchange `exchange`; the queue of a consumer is called
        `queue_prefix` and its name, and is a quorum queue unless `queue_type` says classic. An event counts as
        published when it is confirmed within `confirm_s`. `prefetch` is how many messages one subscription may have
        that are not settled. Each of them must be settled within RabbitMQ's `consumer_timeout`, half an hour unless it
        is set, counted from when it was fetched.

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
        check_address("RabbitBroker", url, PORTS)
        self._exchange_name = exchange
        self._queue_prefix = queue_prefix
        self._queue_type: QueueType = queue_type
        self._prefetch = prefetch
        self._confirm_s = confirm_s
        self._redelivery_s = redelivery_s
        self._out = RabbitmqConnection(url, confirm_s)
        self._in = RabbitmqConnection(url, confirm_s)
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
        except ConfigurationError as error:  # It was right at the start: the server's settings have changed since.
            raise BrokerUnavailable(str(error)) from error
        answers = await asyncio.gather(*(self._send(outlet, message) for message in messages))
        if not any(isinstance(answer, _Condemned) for answer in answers):
            return [_confirm_of(answer) for answer in answers]
        # RabbitMQ has closed the channel over one message, and all that were on it with that one. One at a time, it
        # is seen which it was. What had arrived all the same arrives twice, under its id.
        return [
            await self._send_alone(message)
            if isinstance(answer, _Condemned | BrokerUnavailable)
            else _confirm_of(answer)
            for message, answer in zip(messages, answers, strict=True)
        ]

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> RabbitSubscription:
        queue = self._queue(consumer)
        if not consumer or len(queue.encode()) > 255:
            raise ConfigurationError(f"consumer={consumer!r} cannot name a queue: {queue!r} has more than 255 bytes")
        if not topics:
            raise ConfigurationError(f"consumer={consumer!r} has no topics: name those that it receives")
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

    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        """Messages in the queue stay there: they cannot be separated by topic."""
        async with self._channel(f"unsubscribing {consumer!r}") as channel:
            queue = await channel.declare_queue(self._queue(consumer), passive=True)
            for topic in topics:
                await queue.unbind(self._exchange_name, binding_key(topic))

    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        """AMQP lists neither queues nor their bindings; only the length of a queue is known."""
        found: list[SubscriptionSeen] = []
        for name in sorted(names):
            async with self._channel(f"looking for {name!r}") as channel:
                queue = await channel.declare_queue(self._queue(name), passive=True)
                counted = queue.declaration_result
                found.append(
                    SubscriptionSeen(
                        consumer=name, topics=None, waiting=counted.message_count, attached=counted.consumer_count
                    )
                )
        return found

    async def remove(self, consumer: str) -> int | None:
        found = await self.subscriptions([consumer])
        if not found:
            return None
        if found[0].attached:
            raise ConsumerActive(
                f"consumer {consumer!r} cannot be removed while {found[0].attached} processes are connected to its "
                "queue: stop them first"
            )
        # Not with its own `if_unused`, over which a quorum queue ends the connection.
        async with self._channel(f"removing {consumer!r}") as channel:
            await channel.queue_delete(self._queue(consumer))
        return found[0].waiting

    def _queue(self, consumer: str) -> str:
        return f"{self._queue_prefix}.{consumer}"

    @asynccontextmanager
    async def _channel(self, doing: str) -> AsyncIterator[AbstractChannel]:
        """A channel of its own: RabbitMQ closes it over a queue that is not there, and the block ends there."""
        channel = await self._in.channel(confirms=False)
        try:
            with suppress(ChannelNotFoundEntity):
                async with translate_errors(doing, but=(ChannelNotFoundEntity,)), asyncio.timeout(self._confirm_s):
                    yield channel
        finally:
            await end(channel)

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
            async with (
                translate_errors(f"publishing to {message.topic!r}", but=about_it),
                asyncio.timeout(self._confirm_s),
            ):
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
            return TopicNotSubscribed(
                f"no queue is bound for topic {message.topic!r} at the exchange {self._exchange_name!r}; the event "
                "waits until a consumer subscribes to it"
            )
        except (DeliveryError, ChannelNotFoundEntity) as error:  # Not confirmed, or the exchange is gone.
            return BrokerUnavailable(f"RabbitMQ did not take message {message.id}: {text_of(error)}")
        except (ChannelClosed, ConnectionFrameError) as error:
            ours = not error.args or error.args[0] is None  # We have closed it ourselves: the server gives a reason.
            return BrokerUnavailable("the channel was closed") if ours else _Condemned(text_of(error))
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
            return _confirm_of(await self._send(outlet, message))
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


def _confirm_of(answer: Confirm | _Condemned) -> Confirm:
    return MessageRefused(f"RabbitMQ refuses it: {answer.reason}") if isinstance(answer, _Condemned) else answer
