"""RabbitMQ as the conformance suite sees it: with classic queues where the server is killed, because a quorum queue
does not survive a kill in the seconds after its declaration (see `test_rabbitmq` for one that had the time)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aio_pika

from onefold.brokers.rabbitmq import QueueType, RabbitBroker
from onefold.testing.conformance.brokers import BrokerSubject
from onefold.testing.servers import PrivateRabbitmq
from tests.support.patience import PATIENCE_S


def rabbitmq_subject(queue_type: QueueType) -> Callable[[PrivateRabbitmq], AbstractAsyncContextManager[BrokerSubject]]:
    @asynccontextmanager
    async def subject(server: PrivateRabbitmq) -> AsyncIterator[BrokerSubject]:
        exchange = f"conformance-{secrets.token_hex(8)}"
        async with await aio_pika.connect(server.url) as connection:
            channel = await connection.channel()
            declared = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)
            # The suite also publishes what nobody asked for, which RabbitMQ refuses where no queue gets it.
            everything = await channel.declare_queue(exchange, durable=True)
            await everything.bind(declared, "#")

        async def inject(topic: str, data: bytes) -> None:
            async with await aio_pika.connect(server.url) as connection:
                channel = await connection.channel()
                to = await channel.get_exchange(exchange)
                await to.publish(aio_pika.Message(data), topic)

        yield BrokerSubject(
            broker=lambda: RabbitBroker(
                server.url, exchange=exchange, queue_type=queue_type, prefetch=1000, confirm_s=PATIENCE_S
            ),
            inject=inject,
            tells_attached=True,
        )

    return subject
