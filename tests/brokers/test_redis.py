"""What only Redis Streams do: refusals of a server that forgets, trimming, and entries of others."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from onefold._kernel.messages import Message
from onefold.brokers.redis import RedisBroker, is_idempotent
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused
from onefold.testing.fault_proxy import HOST
from onefold.testing.servers import PrivateValkey
from tests.support.patience import PATIENCE_S

#: Trim whenever something is acknowledged.
AT_ONCE_S = 1e-9


@pytest.fixture
def prefix() -> str:
    return f"p{uuid.uuid4().hex}"


@pytest.fixture
async def client(valkey: PrivateValkey) -> AsyncIterator[Any]:
    async with Redis.from_url(valkey.url, protocol=2) as client:
        yield client


@pytest.fixture(scope="module")
def misconfigured() -> Iterator[PrivateValkey]:
    """A server whose settings are changed. Whoever changes one changes it back."""
    with PrivateValkey() as server:
        yield server


@asynccontextmanager
async def configured(server: PrivateValkey, **settings: str | int) -> AsyncIterator[None]:
    async with Redis.from_url(server.url, protocol=2) as client:
        before: dict[Any, Any] = {}
        for name in settings:
            before |= await client.config_get(name.replace("_", "-"))
        try:
            for name, value in settings.items():
                await client.config_set(name.replace("_", "-"), value)
            yield
        finally:
            for found, value in before.items():
                await client.config_set(found, value)


@asynccontextmanager
async def opened(server: PrivateValkey, prefix: str, **settings: Any) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(server.url, prefix=prefix, **{"confirm_s": PATIENCE_S, **settings})
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


def message(number: int = 0, topic: str = "orders") -> Message:
    return Message(id=f"{uuid.uuid4()}", source="shop", topic=topic, data=b"{}", key="one", version=number)


async def test_a_server_that_keeps_nothing_is_refused_unless_that_is_wanted(misconfigured: PrivateValkey) -> None:
    async with configured(misconfigured, appendonly="no"):
        broker = RedisBroker(misconfigured.url)
        with pytest.raises(ConfigurationError, match=r"appendonly=no.*allow_volatile=True"):
            await broker.open()
        with pytest.raises(BrokerUnavailable, match=r"call open\(\)"):
            await broker.publish([message()])
        async with opened(misconfigured, "onefold", allow_volatile=True) as willing:
            assert await willing.publish([message()]) == [None]


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
async def test_a_server_that_may_evict_streams_is_refused(misconfigured: PrivateValkey, policy: str) -> None:
    async with configured(misconfigured, maxmemory=100_000_000, maxmemory_policy=policy):
        with pytest.raises(ConfigurationError, match=f"maxmemory-policy={policy}"):
            await RedisBroker(misconfigured.url).open()


@pytest.mark.parametrize(("limit", "policy"), [(0, "allkeys-lru"), (100_000_000, "noeviction")])
async def test_a_server_that_evicts_no_stream_is_taken(misconfigured: PrivateValkey, limit: int, policy: str) -> None:
    async with configured(misconfigured, maxmemory=limit, maxmemory_policy=policy), opened(misconfigured, "p"):
        pass


async def test_a_full_server_is_nobodys_fault(misconfigured: PrivateValkey) -> None:
    async with opened(misconfigured, "full") as broker:
        async with configured(misconfigured, maxmemory=1):
            [answer] = await broker.publish([message()])
            assert isinstance(answer, BrokerUnavailable)
            assert "maxmemory" in str(answer)
        assert await broker.publish([message()]) == [None]


async def test_a_key_of_another_kind_refuses_its_messages_alone(
    valkey: PrivateValkey, prefix: str, client: Any
) -> None:
    await client.set(f"{prefix}:taken", "by another")
    async with opened(valkey, prefix) as broker:
        first, taken, last = await broker.publish([message(), message(topic="taken"), message()])
        assert (first, last) == (None, None)
        assert isinstance(taken, MessageRefused)
        with pytest.raises(ConfigurationError, match=f"{prefix}:taken"):
            await broker.subscribe("billing", ["taken"])


async def test_a_key_that_is_forbidden_refuses_its_messages_alone(
    valkey: PrivateValkey, prefix: str, client: Any
) -> None:
    await client.acl_setuser(
        prefix, enabled=True, nopass=True, keys=[f"{prefix}:orders"], categories=["+@all"], commands=[]
    )
    broker = RedisBroker(valkey.url.replace("//", f"//{prefix}:any@"), prefix=prefix)
    await broker.open()
    forbidden, allowed = await broker.publish([message(topic="payments"), message()])
    assert isinstance(forbidden, MessageRefused)
    assert allowed is None
    with pytest.raises(ConfigurationError, match=f"{prefix}:payments"):
        await broker.subscribe("billing", ["payments"])
    await broker.close()


async def test_an_entry_of_others_comes_as_json_of_its_fields(valkey: PrivateValkey, prefix: str, client: Any) -> None:
    async with opened(valkey, prefix) as broker:
        subscription = await broker.subscribe("billing", ["orders"])
        await client.xadd(f"{prefix}:orders", {"a": "é", "b": b"\xff"})
        [found] = await subscription.receive(1, 5.0)
        assert found.message is None
        assert found.problem
        assert json.loads(found.data) == {"a": "é", "b": "\\xff"}


async def test_several_topics_share_the_limit_and_none_is_left_out(valkey: PrivateValkey, prefix: str) -> None:
    topics = [f"t{number}" for number in range(5)]
    async with opened(valkey, prefix) as broker:
        subscription = await broker.subscribe("billing", topics)
        await broker.publish([message(number, topic) for topic in topics for number in range(10)])
        found = []
        while some := await subscription.receive(3, 0.1):
            assert len(some) <= 3
            await subscription.ack(some)
            found += [delivery.message.topic for delivery in some if delivery.message]
        assert sorted(found) == sorted(topics * 10)


async def test_a_group_that_was_destroyed_is_made_again(valkey: PrivateValkey, prefix: str, client: Any) -> None:
    async with opened(valkey, prefix) as broker:
        subscription = await broker.subscribe("billing", ["orders"])
        await client.xgroup_destroy(f"{prefix}:orders", "billing")
        with pytest.raises(BrokerUnavailable, match="NOGROUP"):
            await subscription.receive(1, 1.0)
        await broker.publish([message()])
        assert len(await subscription.receive(1, 5.0)) == 1


async def test_what_every_group_has_acknowledged_is_trimmed_and_nothing_else(
    valkey: PrivateValkey, prefix: str, client: Any
) -> None:
    key = f"{prefix}:orders"
    async with opened(valkey, prefix, trim_every_s=AT_ONCE_S) as broker:
        billing = await broker.subscribe("billing", ["orders"])
        shipping = await broker.subscribe("shipping", ["orders"])
        await broker.publish([message(number) for number in range(1_000)])
        await billing.ack(await billing.receive(1_000, 5.0))
        assert await client.xlen(key) == 1_000, "shipping has had none of them yet"
        found = await shipping.receive(1_000, 5.0)
        await shipping.ack([*found[:250], *found[251:]])
        assert 1_000 - 250 <= await client.xlen(key) < 1_000 - 100, "one of them is not acknowledged yet"
        assert await client.xrange(key, found[250].receipt.entry, count=1)
        await shipping.ack(found[250:251])
        assert await client.xlen(key) < 100


async def test_one_trimming_removes_all_that_is_acknowledged_however_much_it_is(
    valkey: PrivateValkey, prefix: str, client: Any
) -> None:
    key, count = f"{prefix}:orders", 25_000
    async with opened(valkey, prefix) as broker:
        billing = await broker.subscribe("billing", ["orders"])
        pipe = client.pipeline(transaction=False)
        for _ in range(count):
            pipe.xadd(key, {"a": "b"})
        await pipe.execute()
        found = [delivery for _ in range(0, count, 1000) for delivery in await billing.receive(1000, PATIENCE_S)]
        assert len(found) == count
        await billing.ack(found[:-1])
    async with opened(valkey, prefix, trim_every_s=AT_ONCE_S) as broker:
        await (await broker.subscribe("billing", ["orders"])).ack([])
        assert await client.xlen(key) < 200


async def test_readers_that_are_gone_are_forgotten_but_for_what_they_have(
    valkey: PrivateValkey, prefix: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.brokers._redis_group._FORGET_MS", -1)
    async with opened(valkey, prefix, trim_every_s=AT_ONCE_S) as broker:
        holder, done = [await broker.subscribe("billing", ["orders"]) for _ in range(2)]
        await broker.publish([message(), message()])
        assert len(await holder.receive(1, 5.0)) == 1
        found = await done.receive(1, 5.0)
        before = await client.xinfo_consumers(f"{prefix}:orders", "billing")
        await done.ack(found)
        after = await client.xinfo_consumers(f"{prefix}:orders", "billing")
        assert [reader["pending"] for reader in before] == [1, 1]
        assert [reader["pending"] for reader in after] == [1]


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"redis_version": "8.6.0"}, True),
        ({"redis_version": "10.0"}, True),
        ({"redis_version": "8.4.9"}, False),
        ({"redis_version": "7.2.4", "server_name": "valkey"}, False),
        ({"redis_version": "9.1.2", "server_name": "valkey"}, False),
        ({}, False),
    ],
)
def test_only_a_redis_that_can_is_asked_to_store_an_id_once(info: dict[str, str], expected: bool) -> None:
    assert is_idempotent(info) is expected


async def test_the_password_is_not_told() -> None:
    broker = RedisBroker("redis://user:secret@127.0.0.1:1/0")
    with pytest.raises(BrokerUnavailable) as told:
        await broker.open()
    assert "127.0.0.1:1" in str(told.value)
    assert "secret" not in str(told.value)


async def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="http"):
        await RedisBroker("http://127.0.0.1").open()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"confirm_s": 0.0}, "confirm_s=0.0"),
        ({"lease_s": -1.0}, "lease_s=-1.0"),
        ({"redelivery_s": 0.0}, "redelivery_s=0.0"),
        ({"message_bytes_max": 0}, "message_bytes_max=0"),
        ({"trim_every_s": 0.0}, "trim_every_s=0.0"),
        ({"prefix": "a b"}, "prefix='a b'"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        RedisBroker("redis://127.0.0.1", **settings)
    assert named in str(refusal.value)


async def test_a_right_that_is_missing_is_no_stream_that_is_gone(misconfigured: PrivateValkey, prefix: str) -> None:
    async with opened(misconfigured, prefix) as whole:
        await whole.subscribe("mailer", ["orders"])
    async with Redis.from_url(misconfigured.url, protocol=2) as client:
        await client.acl_setuser(
            "reader",
            enabled=True,
            passwords=["+secret"],
            keys=["*"],
            categories=["+@all"],
            commands=["-xgroup|destroy"],
        )
    limited = RedisBroker(f"redis://reader:secret@{HOST}:{misconfigured.port}", prefix=prefix, confirm_s=PATIENCE_S)
    await limited.open()
    try:
        with pytest.raises(BrokerUnavailable, match="permission"):
            await limited.remove("mailer")
        with pytest.raises(BrokerUnavailable, match="permission"):
            await limited.unsubscribe("mailer", ["orders"])
        assert [each.consumer for each in await limited.subscriptions(["mailer"])] == ["mailer"]
    finally:
        await limited.close()


async def test_a_stream_that_is_gone_has_nothing_to_unsubscribe(valkey: PrivateValkey, prefix: str) -> None:
    async with opened(valkey, prefix) as broker:
        await broker.unsubscribe("mailer", ["never-there"])
        assert await broker.remove("mailer") is None
