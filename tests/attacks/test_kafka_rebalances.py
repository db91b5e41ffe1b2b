"""Attacks on a Kafka group: members come and go while handlers take longer than the group waits for a member. Every
message is handled once, and in the order of its key."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onefold import AsyncOnefold, Message, Transaction
from onefold.brokers.kafka import KafkaBroker
from onefold.testing.servers import GivenKafka, PrivateKafka
from tests.brokers.kafka_subject import settings
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

KEYS, VERSIONS_PER_ROUND, ROUNDS_MAX = 6, 2, 50

#: A member that has not polled for so long has lost its partitions. Handlers take longer, and are kept.
POLL_MS = 3_000


class Shop:
    """Members of one group, over one database."""

    def __init__(self, dsn: str, cluster: PrivateKafka | GivenKafka, *, order: str, slow_s: float) -> None:
        self.dsn = dsn
        self.cluster = cluster
        self.order: Any = order
        self.slow_s = slow_s
        self.prefix = f"test-{secrets.token_hex(6)}."
        self.group = f"billing-{secrets.token_hex(6)}"
        #: Those that have handled something, of those that were made.
        self.members: set[int] = set()
        self._made = 0
        self.versions = 0
        self.dice = random.Random(11)

    def broker(self) -> KafkaBroker:
        own = {**settings(self.cluster), "max.poll.interval.ms": POLL_MS}
        return KafkaBroker(self.cluster.bootstrap, topic_prefix=self.prefix, confirm_s=PATIENCE_S, settings=own)

    def once(self) -> AsyncOnefold:
        once = AsyncOnefold(self.dsn, source="shop", broker=self.broker)
        self._made += 1
        number = self._made

        @once.consumer(
            self.group, topic="order.placed", order=self.order, concurrency=4, baseline_wait_s=1.0, retry_base_s=0.05
        )
        async def handle(message: Message, tx: Transaction[Any]) -> None:
            self.members.add(number)
            await tx.connection.execute(
                "INSERT INTO handled (key, version) VALUES ($1, $2)", message.key, message.version
            )
            if self.dice.random() < 0.15:
                await asyncio.sleep(self.slow_s)

        return once

    @asynccontextmanager
    async def member(self) -> AsyncIterator[None]:
        once = self.once()
        try:
            async with once.consuming():
                yield
        finally:
            await once.close()

    async def handled(self) -> list[tuple[str, int]]:
        once = self.once()
        try:
            async with once.transaction() as tx:
                return [tuple(row) for row in await tx.connection.fetch("SELECT key, version FROM handled ORDER BY at")]
        finally:
            await once.close()

    async def count(self, enough: int) -> bool:
        return len(await self.handled()) >= enough

    async def prepare(self) -> None:
        once = self.once()
        await once.migrate()
        async with once.transaction() as tx:
            await tx.connection.execute("CREATE TABLE handled (at bigserial, key text, version bigint)")
        await once.close()

    async def publish(self) -> None:
        once = self.once()
        for _ in range(VERSIONS_PER_ROUND):
            self.versions += 1
            async with once.transaction() as tx:
                for key in range(KEYS):
                    await tx.publish("order.placed", {}, key=f"k{key}")
        await once.close()

    async def work_until(self, members: int) -> None:
        """Publish, and have it handled, until so many members have taken part: until partitions have moved."""
        for _ in range(ROUNDS_MAX):
            await self.publish()
            await until(lambda: self.count(KEYS * self.versions))
            if len(self.members) >= members:
                return
        pytest.fail(f"only the members {self.members} were given anything")

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[None]:
        once = self.once()
        try:
            async with once.relaying():
                yield
        finally:
            await once.close()


@pytest.mark.parametrize("order", [pytest.param("none", marks=pytest.mark.soak), "strict"])
async def test_members_come_and_go_during_slow_handlers(
    postgres_dsn: str, kafka: PrivateKafka | GivenKafka, order: str
) -> None:
    shop = Shop(postgres_dsn, kafka, order=order, slow_s=POLL_MS / 1000 + 1.0)
    await shop.prepare()
    async with shop.relay(), shop.member():
        await shop.work_until(members=1)
        async with shop.member():
            await shop.work_until(members=2)
        async with shop.member(), shop.member():
            await shop.work_until(members=3)
        await shop.work_until(members=3)
    found = await shop.handled()
    versions = range(1, shop.versions + 1)
    assert sorted(found) == sorted((f"k{key}", version) for key in range(KEYS) for version in versions)
    if order == "strict":
        for key in range(KEYS):
            assert [version for name, version in found if name == f"k{key}"] == list(versions)
