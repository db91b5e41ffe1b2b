"""A relay at work while one queue of RabbitMQ is full: everything else arrives, and the rest when there is room."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import aio_pika
import pytest

from onefold.brokers.rabbitmq import RabbitBroker
from onefold.telemetry import DestinationPaused, DestinationResumed, Event, SetAside
from onefold.testing.servers import PrivateRabbitmq
from tests.outbox.relaying import Stage, opened
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until
from tests.worker.test_relay import running

ROOM = 5


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_full_queue_of_rabbitmq_stops_nothing_else(
    stage: Stage, rabbitmq: PrivateRabbitmq, queue_type: str
) -> None:
    name = f"full-{secrets.token_hex(8)}"
    told: list[Event] = []
    broker = RabbitBroker(rabbitmq.url, exchange=name, queue_prefix=name, confirm_s=PATIENCE_S)
    await broker.open()
    async with await aio_pika.connect(rabbitmq.url) as connection:
        channel = await connection.channel()
        limited = await channel.declare_queue(
            f"{name}.full",
            durable=True,
            arguments={"x-queue-type": queue_type, "x-max-length": ROOM, "x-overflow": "reject-publish"},
        )
        await limited.bind(name, "full")
        healthy = await channel.declare_queue(f"{name}.fine", durable=True, arguments={"x-queue-type": queue_type})
        for number in range(10):
            await healthy.bind(name, f"fine{number}")

        async def take(queue: aio_pika.abc.AbstractQueue, taken: set[str]) -> None:
            while (found := await queue.get(no_ack=True, fail=False)) is not None:
                taken.add(found.message_id or "")

        full = set(await stage.write(*((f"bad{number}", None) for number in range(20)), topic="full"))

        async def is_full() -> bool:
            """A quorum queue counts what it has a little later, and takes more than it has room for until then."""
            full.update(await stage.write((f"bad{len(full)}", None), topic="full"))
            return any(isinstance(event, DestinationPaused) for event in told)

        async with running(stage, broker=broker, listener=told.append, draw=lambda: 0.0, batch_max=100):
            await until(is_full)
            fine: set[str] = set()
            for number in range(400):
                fine |= set(await stage.write((f"good{number}", None), topic=f"fine{number % 10}"))
            arrived: set[str] = set()

            async def all_fine() -> bool:
                await take(healthy, arrived)
                return arrived >= fine

            await until(all_fine)
            assert DestinationResumed("full") not in told  # it was full all the time
            late: set[str] = set()

            async def all_full() -> bool:
                await take(limited, late)
                return late >= full

            await until(all_full)  # there is room again and again: it goes on by itself
    assert {event.destination for event in told if isinstance(event, DestinationPaused)} == {"full"}
    assert not [event for event in told if isinstance(event, SetAside)]
