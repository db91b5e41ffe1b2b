"""Producers that know nothing of onefold, on real brokers: each puts bytes and headers where a consumer reads them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aio_pika
import nats as nats_client
from confluent_kafka import Producer
from redis.asyncio import Redis

from onefold._kernel.ports import Broker
from onefold.brokers.kafka import KafkaBroker
from onefold.brokers.nats import NatsBroker
from onefold.brokers.rabbitmq import RabbitBroker
from onefold.brokers.redis import RedisBroker
from onefold.testing.servers import GivenKafka, PrivateKafka, PrivateNats, PrivateRabbitmq, PrivateValkey
from tests.brokers.kafka_subject import settings
from tests.support.patience import PATIENCE_S


class Produce(Protocol):
    """Send one message, past onefold. `key` is Kafka's, `message_id` what a broker's client may set."""

    def __call__(
        self,
        topic: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        key: bytes | None = None,
        message_id: str | None = None,
    ) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A broker, what kind it is, and a foreign producer on it."""

    kind: str
    broker: Callable[[], Broker]
    produce: Produce


class _NoId(str):
    """An empty id, as from a client that sets none. This one makes an id up where it finds nothing."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


@asynccontextmanager
async def on_nats(server: PrivateNats) -> AsyncIterator[Elsewhere]:
    stream = f"foreign-{uuid.uuid4().hex}"
    client = await nats_client.connect(server.url, allow_reconnect=False)

    async def produce(
        topic: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        key: bytes | None = None,
        message_id: str | None = None,
    ) -> None:
        own = {} if message_id is None else {"Nats-Msg-Id": message_id}
        await client.jetstream().publish(f"{stream}.{topic}", data, headers={**(headers or {}), **own} or None)

    try:
        yield Elsewhere("nats", lambda: NatsBroker(server.url, stream=stream, ack_wait_s=2.0), produce)
    finally:
        await client.close()


@asynccontextmanager
async def on_redis(server: PrivateValkey) -> AsyncIterator[Elsewhere]:
    prefix = f"foreign-{uuid.uuid4().hex}"
    async with Redis.from_url(server.url, protocol=2) as client:

        async def produce(
            topic: str,
            data: bytes,
            headers: Mapping[str, str] | None = None,
            *,
            key: bytes | None = None,
            message_id: str | None = None,
        ) -> None:
            fields: dict[Any, Any] = {**(headers or {}), ":data": data}
            await client.xadd(f"{prefix}:{topic}", fields)

        yield Elsewhere("redis", lambda: RedisBroker(server.url, prefix=prefix, lease_s=2.0), produce)


@asynccontextmanager
async def on_kafka(server: PrivateKafka | GivenKafka) -> AsyncIterator[Elsewhere]:
    prefix = f"foreign-{uuid.uuid4().hex}."
    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})

    async def produce(
        topic: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        key: bytes | None = None,
        message_id: str | None = None,
    ) -> None:
        pairs: Any = [(name, value.encode()) for name, value in (headers or {}).items()]
        producer.produce(prefix + topic, data, key=key, headers=pairs)
        assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0

    yield Elsewhere(
        "kafka",
        lambda: KafkaBroker(server.bootstrap, topic_prefix=prefix, confirm_s=15.0, settings=settings(server)),
        produce,
    )


@asynccontextmanager
async def on_rabbitmq(server: PrivateRabbitmq) -> AsyncIterator[Elsewhere]:
    exchange = f"foreign-{uuid.uuid4().hex}"
    async with await aio_pika.connect(server.url) as connection:
        channel = await connection.channel()
        declared = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)

        async def produce(
            topic: str,
            data: bytes,
            headers: Mapping[str, str] | None = None,
            *,
            key: bytes | None = None,
            message_id: str | None = None,
        ) -> None:
            own: Any = dict(headers or {})
            content_type = own.pop("content-type", None)
            sent = aio_pika.Message(data, headers=own, content_type=content_type)
            sent.message_id = message_id or _NoId()
            await declared.publish(sent, topic)

        yield Elsewhere(
            "rabbitmq",
            lambda: RabbitBroker(server.url, exchange=exchange, queue_prefix=exchange, queue_type="classic"),
            produce,
        )


Stage = Callable[[Any], AbstractAsyncContextManager[Elsewhere]]
#: By the name of the fixture that has the server.
BROKERS: dict[str, Stage] = {"nats": on_nats, "valkey": on_redis, "kafka": on_kafka, "rabbitmq": on_rabbitmq}
