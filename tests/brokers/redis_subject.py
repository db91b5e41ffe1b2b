"""Redis Streams (on Valkey), as the conformance suite sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from onefold.brokers.redis import RedisBroker
from onefold.testing.conformance.brokers import BrokerSubject
from onefold.testing.servers import PrivateValkey
from tests.support.patience import PATIENCE_S

LEASE_S = 2.0
BYTES_MAX = 200_000


@asynccontextmanager
async def redis_subject(server: PrivateValkey) -> AsyncIterator[BrokerSubject]:
    async def inject(topic: str, data: bytes) -> None:
        async with Redis.from_url(server.url) as client:
            await client.xadd(f"onefold:{topic}", {"payload": data})

    yield BrokerSubject(
        broker=lambda: RedisBroker(server.url, confirm_s=PATIENCE_S, lease_s=LEASE_S, message_bytes_max=BYTES_MAX),
        inject=inject,
        too_large_bytes=BYTES_MAX,
        lease_s=LEASE_S,
    )
