"""Kafka as the conformance suite sees it: librdkafka's mock, which forgets everything when it is killed, or the cluster
that KAFKA_BOOTSTRAP names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from confluent_kafka import Producer

from onefold.brokers.kafka import KafkaBroker
from onefold.testing.conformance.brokers import BrokerSubject
from onefold.testing.servers import GivenKafka, PrivateKafka
from tests.support.patience import PATIENCE_S

# The mock waits out a session before it takes anyone into a group that somebody has left. A real Kafka does not, and
# accepts no session this short.
SHORT_SESSIONS: Mapping[str, int] = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 200}


def settings(server: PrivateKafka | GivenKafka) -> Mapping[str, int]:
    return SHORT_SESSIONS if isinstance(server, PrivateKafka) else {}


@asynccontextmanager
async def kafka_subject(server: PrivateKafka | GivenKafka) -> AsyncIterator[BrokerSubject]:
    def inject(topic: str, data: bytes) -> None:
        producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
        producer.produce(topic, data)
        assert producer.flush(PATIENCE_S) == 0

    yield BrokerSubject(
        broker=lambda: KafkaBroker(server.bootstrap, confirm_s=15.0, settings=settings(server)),
        inject=lambda topic, data: asyncio.to_thread(inject, topic, data),
        too_large_bytes=1_100_000,
        warm_up_s=2.0,
    )
