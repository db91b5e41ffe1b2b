"""A verdict that does not arrive is no longer the subscription's affair: the message comes again, and to another."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.ports import Broker
from onefold._kernel.runners import run_async
from onefold.brokers._local_schema import MIGRATIONS
from onefold.brokers.local import LocalBroker
from onefold.brokers.nats import NatsBroker
from onefold.brokers.redis import RedisBroker
from onefold.brokers.sqs import SqsBroker
from onefold.db._migrations import migrate
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import BrokerUnavailable
from onefold.testing.fault_proxy import HOST, FaultProxy
from onefold.testing.servers import PrivateNats, PrivatePostgres, PrivateValkey
from tests.support.moto_server import REGION, PrivateMoto
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

TOPIC = "order.placed"


def message(name: str) -> Message:
    return Message(id=name, source="shop", topic=TOPIC, data=b"{}")


@asynccontextmanager
async def by_nats(server: PrivateNats, proxy: FaultProxy) -> AsyncIterator[Broker]:
    yield NatsBroker(proxy.dsn(server.url), stream=f"s{uuid.uuid4().hex}")


@asynccontextmanager
async def by_valkey(server: PrivateValkey, proxy: FaultProxy) -> AsyncIterator[Broker]:
    yield RedisBroker(proxy.dsn(server.url), prefix=f"p{uuid.uuid4().hex}")


@asynccontextmanager
async def by_sqs(server: PrivateMoto, proxy: FaultProxy) -> AsyncIterator[Broker]:
    url = f"sqs://{REGION}/l{uuid.uuid4().hex[:12]}?endpoint={proxy.dsn(server.url)}"
    yield SqsBroker(url, session=server.session, poll_s=1)


@asynccontextmanager
async def by_local(server: PrivatePostgres, proxy: FaultProxy) -> AsyncIterator[Broker]:
    database = AsyncpgDatabase(proxy.dsn(server.fresh_database()))
    await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
    yield LocalBroker(database)
    await database.close()


#: By the name of the fixture that has the server.
WAYS: dict[str, Callable[[Any, FaultProxy], AbstractAsyncContextManager[Broker]]] = {
    "nats": by_nats,
    "valkey": by_valkey,
    "moto": by_sqs,
    "postgres": by_local,
}


@pytest.mark.parametrize("verdict", ["ack", "give_back"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_receipt_is_dropped_with_its_verdict_whether_or_not_that_arrives(
    way: str, verdict: str, request: pytest.FixtureRequest
) -> None:
    """Each outage would leave some behind, for as long as the subscription lives."""
    server = request.getfixturevalue(way)
    with FaultProxy(HOST, server.port) as proxy:
        async with WAYS[way](server, proxy) as broker:
            await broker.open()
            subscription: Any = await broker.subscribe("billing", [TOPIC])
            assert await broker.publish([message("m1")]) == [None]
            deliveries = await subscription.receive(1, PATIENCE_S)
            receipts = subscription._held if way == "postgres" else subscription._unsettled
            assert len(receipts) == len(deliveries) == 1
            proxy.switch("reset")
            with pytest.raises(BrokerUnavailable):
                await getattr(subscription, verdict)(deliveries)
            proxy.heal()
            assert not receipts
            await subscription.close()
            await broker.close()


async def test_what_another_process_has_by_now_stays_with_it_when_a_subscription_of_redis_ends(
    valkey: PrivateValkey,
) -> None:
    prefix = f"p{uuid.uuid4().hex}"
    with FaultProxy(HOST, valkey.port) as proxy:
        brokers = [RedisBroker(url, prefix=prefix, lease_s=0.5) for url in (proxy.dsn(valkey.url), valkey.url)]
        for broker in brokers:
            await broker.open()
        first, second = [await broker.subscribe("billing", [TOPIC]) for broker in brokers]
        assert await brokers[1].publish([message("m1")]) == [None]
        deliveries = await first.receive(1, PATIENCE_S)
        proxy.switch("reset")
        with pytest.raises(BrokerUnavailable):
            await first.ack(deliveries)
        proxy.heal()
        assert len(await second.receive(1, PATIENCE_S)) == 1
        async with Redis.from_url(valkey.url, protocol=2) as client:
            key, group = brokers[1].key(TOPIC), (await client.xinfo_groups(brokers[1].key(TOPIC)))[0]["name"]

            async def holder() -> object:
                [pending] = await client.xpending_range(key, group, "-", "+", 1)
                return pending["consumer"]

            taken_by = await holder()
            await until(lambda: reaches(brokers[0]))
            await first.close()
            assert await holder() == taken_by
        for broker in brokers:
            await broker.close()


async def reaches(broker: RedisBroker) -> bool:
    try:
        await broker.ask("PING")
    except BrokerUnavailable:
        return False
    return True
