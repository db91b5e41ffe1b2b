"""NATS JetStream, as the conformance suite sees it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

import nats

from onefold._kernel.public_drivers import PUBLIC_ONLY
from onefold.brokers.nats import NatsBroker
from onefold.testing.conformance.brokers import BrokerSubject
from onefold.testing.servers import PrivateNats
from tests.support.patience import PATIENCE_S

STREAM = "conformance"
LEASE_S = 2.0


@asynccontextmanager
async def nats_subject(server: PrivateNats) -> AsyncIterator[BrokerSubject]:
    async def inject(topic: str, data: bytes) -> None:
        client = await nats.connect(server.url, allow_reconnect=False)
        try:
            await client.jetstream().publish(f"{STREAM}.{topic}", data)
        finally:
            await client.close()

    yield BrokerSubject(
        broker=lambda: NatsBroker(server.url, stream=STREAM, confirm_s=PATIENCE_S, ack_wait_s=LEASE_S),
        inject=inject,
        too_large_bytes=1_048_576,
        deduplicates=True,
        lease_s=LEASE_S,
    )


@asynccontextmanager
async def nats_by_public_names(server: PrivateNats) -> AsyncIterator[BrokerSubject]:
    """Without the fast path of publishing."""
    with patch.dict(os.environ, {PUBLIC_ONLY: "1"}):
        async with nats_subject(server) as subject:
            yield subject
