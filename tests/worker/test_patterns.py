"""Consumers of patterns of topics: what matches is handled once, under its own topic, from outbox to redrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from onefold import AsyncOnefold, Message, Onefold
from onefold._app.base_app import run_flow
from onefold._inbox.failed_messages import list_failed
from onefold._inbox.redrive import Filter, redrive
from onefold._inbox.registry import ALIVE_S, RunningProcess, judge
from onefold._kernel.ports import Broker
from onefold._outbox.status_report import report
from onefold._worker import membership
from onefold.brokers.kafka import KafkaBroker
from onefold.brokers.nats import NatsBroker
from onefold.brokers.rabbitmq import RabbitBroker
from onefold.brokers.redis import RedisBroker
from onefold.errors import ConfigurationError, MessageInvalid
from onefold.telemetry import DeadLettered, Event, Failed, Handled
from onefold.testing.memory_broker import AsyncMemoryBroker
from tests.worker.consuming import MemoryBroker, until
from tests.worker.test_membership import Place, nobody_starts_again, place
from tests.worker.test_others_deliveries import pass_s

__all__ = ["nobody_starts_again", "place"]

on_brokers_with_patterns = pytest.mark.parametrize(
    "place", ["local-sqlite", "local-postgres", "nats", "rabbitmq"], indirect=True
)


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(request.getfixturevalue("postgres_dsn") if request.param == "postgres" else sqlite_path)


async def test_what_waited_in_the_outbox_leaves_when_a_pattern_is_subscribed_to_that_matches(address: str) -> None:
    once = AsyncOnefold(address, source="shop", broker="local")
    await once.migrate()
    handled: list[str] = []

    @once.consumer("audit", topic=("order.*", "order.placed"))
    async def note(message: Message) -> None:
        handled.append(message.topic)

    async def stopped() -> list[str]:
        return sorted(event.topic for event in (await run_flow(once, report)).stopped)

    async def is_stopped() -> bool:
        return len(await stopped()) == 4

    async def is_left() -> bool:  # one may be under way: a relay looks now and then whether it is wanted
        return await stopped() == ["order.paid.late", "orders"]

    async with once.relaying():
        async with once.transaction() as tx:
            for topic in ("order.placed", "order.paid", "order.paid.late", "orders"):
                await tx.publish(topic, {}, key="ord-1")
        await until(is_stopped)
        async with once.consuming():
            await until(lambda: len(handled) >= 2)
            async with once.transaction() as tx:
                await tx.publish("order.shipped", {})
            await until(lambda: len(handled) >= 3)
        await until(is_left)  # those match nothing
    assert sorted(handled) == ["order.paid", "order.placed", "order.shipped"]
    await once.close()


async def test_a_message_keeps_its_topic_when_it_fails_dies_and_is_redriven(address: str) -> None:
    events: list[Event] = []
    once = AsyncOnefold(address, source="shop", broker="local", listener=events.append)
    await once.migrate()
    broken = True
    handled: list[str] = []

    @once.consumer("audit", topic=("order.>", "*.paid"), attempts=2, retry_base_s=0.01, retry_cap_s=0.01)
    async def note(message: Message) -> None:
        if broken:
            raise ValueError("not yet")
        handled.append(message.topic)

    async def dead() -> bool:
        return len(await run_flow(once, lambda dialect: list_failed(dialect, "audit", state="dead"))) == 1

    async with once.consuming(), once.relaying():
        async with once.transaction() as tx:
            await tx.publish("order.paid", {}, key="ord-1")
        await until(dead)
        [failed_message] = await run_flow(once, lambda dialect: list_failed(dialect, "audit"))
        assert failed_message.topic == "order.paid"
        broken = False
        chosen = Filter(consumer="audit", topic="order.paid")
        job = await run_flow(once, lambda dialect: redrive(dialect, chosen, actor="anna"))
        assert job.failed_messages == 1
        await until(lambda: handled == ["order.paid"])
    told = [event for event in events if isinstance(event, Failed | DeadLettered | Handled)]
    assert [(type(event), event.consumer, event.topic) for event in told] == [
        (kind, "audit", "order.paid") for kind in (Failed, DeadLettered, Handled)
    ]
    await once.close()


async def test_the_broker_in_memory_matches_too(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")

    @once.consumer("audit", topic=("order.*", "order.placed", "*.placed"))
    async def note(message: Message) -> None: ...

    broker = AsyncMemoryBroker(once)
    assert await broker.publish("order.placed", {}) == [Handled("audit", "order.placed")]
    assert await broker.publish("refund.placed", {}) == [Handled("audit", "refund.placed")]
    assert await broker.publish("order.placed.late", {}) == []
    with pytest.raises(MessageInvalid, match=r"'order\.\*' is a pattern, with which consumers subscribe"):
        await broker.publish("order.*", {})
    await once.close()


async def test_nothing_is_published_to_a_pattern(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")
    async with once.transaction() as tx:
        for topic in ("order.*", ">"):
            with pytest.raises(MessageInvalid, match="is a pattern"):
                await tx.publish(topic, {})
    with pytest.raises(MessageInvalid, match="is a pattern"):
        once.recurring("daily", cron="0 6 * * *", topic="order.>")
    await once.close()


@pytest.mark.parametrize(
    ("topic", "why"),
    [("a.>.b", "must be the last token"), ("a*", "whole token"), ("a..*", "is empty"), ("order.>>", "'>>' is neither")],
)
def test_a_pattern_that_is_none_is_refused_where_it_is_written(sqlite_path: Path, topic: str, why: str) -> None:
    once = Onefold(sqlite_path)
    with pytest.raises(ConfigurationError, match=why) as refusal:
        once.consumer("audit", topic=("order.placed", topic))(lambda message: None)
    assert f"consumer 'audit' has the topic {topic!r}" in str(refusal.value)
    once.close()


@pytest.mark.parametrize(
    ("address", "named"),
    [("kafka://localhost:9092", "Kafka"), ("redis://localhost", "Redis"), ("valkey://localhost", "Redis")],
)
def test_a_broker_without_patterns_refuses_them_where_they_are_written(
    sqlite_path: Path, address: str, named: str
) -> None:
    once = Onefold(sqlite_path, broker=address)
    with pytest.raises(ConfigurationError, match=rf"'audit' has the topic 'order\.>'.* {named} has no patterns: name"):
        once.consumer("audit", topic=("order.placed", "order.>"))(lambda message: None)
    once.consumer("audit", topic="order.placed")(lambda message: None)
    once.close()


@pytest.mark.parametrize(
    "make", [lambda: KafkaBroker("localhost:1"), lambda: RedisBroker("redis://localhost:1"), MemoryBroker]
)
async def test_a_broker_that_a_function_makes_refuses_them_at_the_start(
    sqlite_path: Path, make: Callable[[], Broker]
) -> None:
    once = AsyncOnefold(sqlite_path, broker=make)
    once.consumer("audit", topic="order.*")(lambda message: None)
    with pytest.raises(
        ConfigurationError, match=rf"'audit' has the topic 'order\.\*'.* {type(make()).__name__} has no"
    ):
        await once.consume(asyncio.Event())
    await once.close()


async def test_brokers_that_are_asked_directly_refuse_before_they_connect() -> None:
    for broker in (KafkaBroker("localhost:1"), RedisBroker("redis://localhost:1")):
        with pytest.raises(ConfigurationError, match=r"'audit' has the topic 'a\.\*'"):
            await broker.subscribe("audit", ["a.*"])
        await broker.close()
    assert all(broker.matches_patterns for broker in (NatsBroker("nats://localhost"), RabbitBroker("amqp://localhost")))


@on_brokers_with_patterns
@pytest.mark.usefixtures("nobody_starts_again")
async def test_a_release_that_widens_a_topic_to_a_pattern_and_its_rollback_lose_nothing(place: Place) -> None:
    async with place.running("shop.orders"), place.running("shop.*"):
        await send(place, "shop.orders", "shop.refunds")
        await until(lambda: sorted(place.handled) == ["shop.orders", "shop.refunds"])
    await send(place, "shop.orders", "shop.refunds", "shop.orders")

    async def kept() -> bool:
        return len(await place.dead_letters()) == 1  # what was sent to the pattern, and nothing asks for any more

    async with place.running("shop.orders"):
        await until(lambda: place.handled.count("shop.orders") == 3)
        await send(place, "shop.refunds", "shop.orders")
        await until(lambda: place.handled.count("shop.orders") == 4)
        if place.hands_out_what_waits:
            await until(kept)
    assert place.handled.count("shop.refunds") == 1


@on_brokers_with_patterns
async def test_what_a_pattern_still_matches_is_no_dead_letter(place: Place) -> None:
    async with place.running("shop.orders", "shop.refunds"):
        pass
    await send(place, "shop.orders", "shop.refunds")
    async with place.running("shop.*"):
        await until(lambda: sorted(place.handled) == ["shop.orders", "shop.refunds"])
        await send(place, "shop.orders")
        await until(lambda: len(place.handled) == 3)
    assert await place.dead_letters() == []


@pytest.mark.parametrize("place", ["local-sqlite"], indirect=True)
async def test_a_topic_that_was_seen_to_be_dropped_is_unsubscribed_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery had the process look who is there, after one that had the topic had left and before it reconciled."""
    monkeypatch.setattr(membership, "BEAT_S", 0.0)

    async def work(database: Any, broker: Broker) -> None:
        def process(*topics: str) -> membership.Membership:
            [consumer] = place.process(*topics)._consumers
            return membership.Membership(database, broker, consumer)

        first, old, new = process("orders", "refunds"), process("orders", "payments"), process("orders")
        await (await first.subscribe()).close()
        await first.end()
        await (await old.subscribe()).close()
        await (await new.subscribe()).close()  # refunds is former now
        await old.end()
        await pass_s(place, ALIVE_S + 5, of="%refunds%")
        subscription = await broker.subscribe("billing", ["refunds"])
        await broker.publish([Message(id="1", source="shop", topic="refunds", data=b"{}")])
        ours, others, dropped = await new.sift(await subscription.receive(1, 5.0))
        assert (len(ours), len(others), len(dropped)) == (0, 0, 1)
        await new.stay(asyncio.Event())
        [confirm] = await broker.publish([Message(id="2", source="shop", topic="payments", data=b"{}")])
        assert confirm is not None, "payments are still subscribed to"
        await subscription.close()

    await place.manage(work)


async def send(place: Place, *topics: str) -> None:
    """Past `place.publish`, whose other consumer has none of these."""

    async def work(database: Any, broker: Broker) -> None:
        await (await broker.subscribe("archive", [">"])).close()
        sent = [Message(id=str(uuid4()), source="shop", topic=topic, data=b"{}") for topic in topics]
        assert list(await broker.publish(sent)) == [None] * len(sent)

    await place.manage(work)


def member(process: str, *topics: str, started: int, ended: bool = False) -> RunningProcess:
    return RunningProcess(
        consumer="c", process=process, topics=frozenset(topics), started_ms=started, seen_s=0.0, ended=ended
    )


def test_what_was_wanted_and_is_no_longer_is_asked_of_patterns() -> None:
    narrowed = judge(
        [member("old", "order.*", "paid.>", started=1, ended=True), member("new", "order.placed", started=2)]
    )
    assert not narrowed.drops("order.placed")
    assert not narrowed.drops("never")
    assert not narrowed.drops(None)
    assert narrowed.drops("order.paid")
    assert narrowed.drops("paid.in.full")
    assert narrowed.outdated == ()
    widened = judge([member("old", "order.placed", started=1, ended=True), member("new", "order.*", started=2)])
    assert (set(widened.former), widened.outdated) == ({"order.placed"}, ("old",))
    assert not widened.drops("order.placed")
