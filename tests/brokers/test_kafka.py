"""What is Kafka's own: its settings, its keys and partitions, and that only what is done up to a point is committed."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as Record

from onefold._kernel.messages import Delivery, Message
from onefold.brokers._kafka_group import KafkaSubscription
from onefold.brokers.kafka import KafkaBroker, Setting
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused
from onefold.testing.servers import GivenKafka, PrivateKafka
from tests.brokers.kafka_subject import settings
from tests.support.patience import PATIENCE_S

Cluster: TypeAlias = PrivateKafka | GivenKafka
MakeBroker: TypeAlias = Callable[..., KafkaBroker]


@pytest.fixture
async def made(kafka: Cluster) -> AsyncIterator[MakeBroker]:
    """Brokers whose topics are the test's own, closed in the end."""
    brokers: list[KafkaBroker] = []
    prefix = f"test-{secrets.token_hex(8)}."

    def make(bootstrap: str = kafka.bootstrap, *, more: dict[str, Setting] | None = None) -> KafkaBroker:
        own = {**settings(kafka), **(more or {})}
        brokers.append(KafkaBroker(bootstrap, topic_prefix=prefix, confirm_s=PATIENCE_S, settings=own))
        return brokers[-1]

    yield make
    for broker in brokers:
        await broker.close()


@pytest.fixture
def group() -> str:
    return f"group-{secrets.token_hex(8)}"


def message(number: int = 0, *, topic: str = "orders", key: str | None = "k") -> Message:
    return Message(id=secrets.token_hex(8), source="shop", topic=topic, data=b"%d" % number, key=key, version=number)


async def collect(subscription: KafkaSubscription, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await subscription.receive(count - len(found), 1.0)
    return found


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.id for delivery in deliveries if delivery.message]


def record(delivery: Delivery) -> Record:
    found: Record = delivery.receipt.record
    return found


def committed(kafka: Cluster, group: str, delivery: Delivery) -> int:
    """The group's offset in the partition of this delivery; below 0 where it has none."""
    topic, partition = record(delivery).topic(), record(delivery).partition()
    assert topic is not None
    assert partition is not None
    watching = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
    [found] = watching.committed([TopicPartition(topic, partition)], PATIENCE_S)
    watching.close()
    return found.offset


async def test_a_message_travels_as_the_binding_for_kafka_says(made: MakeBroker, group: str) -> None:
    broker = made()
    subscription = await broker.subscribe(group, ["orders"])
    sent = replace(message(7, key="Zoë"), content_type="text/plain", headers={"correlation-id": "c-1"})
    assert await broker.publish([sent]) == [None]
    [found] = await collect(subscription, 1)
    assert record(found).key() == "Zoë".encode()
    assert record(found).value() == b"7"
    assert dict(record(found).headers() or []) == {
        "content-type": b"text/plain",
        "correlation-id": b"c-1",
        "ce_specversion": b"1.0",
        "ce_id": sent.id.encode(),
        "ce_source": b"shop",
        "ce_type": b"orders",
        "ce_partitionkey": "Zoë".encode(),
        "ce_sequence": b"7",
    }


async def test_a_key_has_one_partition_and_keys_are_spread(made: MakeBroker, group: str) -> None:
    broker = made()
    subscription = await broker.subscribe(group, ["orders"])
    sent = [message(number, key=f"key-{number % 20}") for number in range(100)]
    assert await broker.publish(sent) == [None] * 100
    partitions: dict[str, set[int | None]] = {}
    for found in await collect(subscription, 100):
        assert found.message is not None
        partitions.setdefault(found.message.key or "", set()).add(record(found).partition())
    assert all(len(numbers) == 1 for numbers in partitions.values())
    assert len(set.union(*partitions.values())) > 1


async def test_only_what_is_done_up_to_a_point_is_committed(made: MakeBroker, kafka: Cluster, group: str) -> None:
    broker = made()
    subscription = await broker.subscribe(group, ["orders"])
    for number in range(6):
        await broker.publish([message(number)])
    found = await collect(subscription, 6)
    assert [record(each).offset() for each in found] == [0, 1, 2, 3, 4, 5]
    for acknowledged, offset in ((found[3:4], -1), (found[:2], 2), (found[4:5], 2), (found[:2], 2), (found[2:3], 5)):
        await subscription.ack(acknowledged)
        assert max(committed(kafka, group, found[0]), -1) == offset
    await subscription.close()
    other = await made().subscribe(group, ["orders"])
    [again] = await collect(other, 1)
    assert (ids([again]), again.redelivered) == (ids(found[5:]), True)


async def test_what_was_there_before_may_have_been_handed_out_and_what_comes_then_was_not(
    made: MakeBroker, group: str
) -> None:
    broker = made()
    await broker.publish([message(number) for number in range(3)])
    subscription = await broker.subscribe(group, ["orders"])
    assert [each.redelivered for each in await collect(subscription, 3)] == [True] * 3
    await broker.publish([message(3)])
    assert [each.redelivered for each in await collect(subscription, 1)] == [False]


async def test_what_is_given_back_comes_first_and_only_once(made: MakeBroker, group: str) -> None:
    broker = made()
    subscription = await broker.subscribe(group, ["orders"])
    for number in range(6):
        await broker.publish([message(number)])
    found = await collect(subscription, 4)
    await subscription.ack(found[:1])
    await subscription.give_back(found[:3])
    await subscription.give_back(found[:3])
    again = await collect(subscription, 4)
    assert [each.data for each in again] == [b"1", b"2", b"4", b"5"]
    assert [each.redelivered for each in again] == [True, True, False, False]


async def test_a_partition_that_moved_takes_its_acknowledgements_along(made: MakeBroker, group: str) -> None:
    broker, rival = made(), made()
    async with asyncio.timeout(3 * PATIENCE_S):
        for attempt in itertools.count():
            if await share_a_group(broker, rival, f"{group}-{attempt}", topic=f"orders-{attempt}"):
                return


async def share_a_group(broker: KafkaBroker, rival: KafkaBroker, group: str, *, topic: str) -> bool:
    """False where the group was dealt out again and again, as one is on a machine too busy for its heartbeats: then
    what was lost may have come back, or Kafka has put the member out, and answers before the client says so."""
    subscription = await broker.subscribe(group, [topic])
    await broker.publish([message(number, topic=topic, key=f"key-{number}") for number in range(40)])
    found = await collect(subscription, 40)
    other = await rival.subscribe(group, [topic])
    moved: list[Delivery] = []
    while not moved:
        moved += await other.receive(40, 0.2)
        if await subscription.receive(1, 0.2):
            return False
    assert all(each.redelivered for each in moved)
    partition = record(moved[0]).partition()
    late = [each for each in found if record(each).partition() == partition]
    with pytest.raises(BrokerUnavailable) as refused:
        await subscription.ack(late)
    if KafkaError(KafkaError.UNKNOWN_MEMBER_ID).str() in str(refused.value):
        return False
    assert "they come again" in str(refused.value)
    await subscription.give_back(late)
    if await subscription.receive(40, 0.2):
        return False
    done = await acknowledged(other, moved)
    for _ in range(50):  # The group was dealt out once more: they come again, as it says, to one of the two.
        if done:
            return True
        done = any([await acknowledged(each, await each.receive(40, 0.2)) for each in (other, subscription)])
    return False


async def acknowledged(subscription: KafkaSubscription, deliveries: Sequence[Delivery]) -> bool:
    try:
        await subscription.ack(deliveries)
    except BrokerUnavailable:
        return False
    return bool(deliveries)


async def test_a_group_that_is_dealt_out_while_a_member_leaves_gives_it_nothing(made: MakeBroker, group: str) -> None:
    """Its last polls are inside of the client's close, and a partition may come with them."""
    subscription = await made().subscribe(group, ["orders"])
    assert subscription._consumer is not None
    consumer: Consumer = subscription._consumer

    class Leaving:
        def close(self) -> None:
            subscription._on_assign(consumer, [TopicPartition("orders", 0)])
            consumer.close()

    subscription._consumer = Leaving()  # type: ignore[assignment]
    await subscription.close()
    assert subscription._shares == {}


def impatient(kafka: Cluster) -> dict[str, Setting]:
    """As soon as possible, a consumer that does not poll loses its partitions. A real Kafka has a lower bound."""
    if isinstance(kafka, PrivateKafka):
        return {"max.poll.interval.ms": 1500}
    return {"max.poll.interval.ms": 7000, "session.timeout.ms": 6000, "heartbeat.interval.ms": 2000}


async def test_a_consumer_that_is_busy_stays_in_its_group_while_it_says_so(
    made: MakeBroker, kafka: Cluster, group: str
) -> None:
    broker = made(more=impatient(kafka))
    subscription = await broker.subscribe(group, ["orders"])
    await broker.publish([message()])
    found = await collect(subscription, 1)
    until = time.monotonic() + 15 * broker.keep_every_s  # Three times what it takes to lose them.
    while time.monotonic() < until:
        await subscription.keep(found)
        await asyncio.sleep(broker.keep_every_s)
    await subscription.ack(found)
    assert committed(kafka, group, found[0]) == 1


async def test_a_consumer_that_is_busy_and_does_not_say_so_loses_its_partitions(
    made: MakeBroker, kafka: Cluster, group: str
) -> None:
    broker = made(more=impatient(kafka))
    subscription = await broker.subscribe(group, ["orders"])
    sent = message()
    await broker.publish([sent])
    found = await collect(subscription, 1)
    other = await made().subscribe(group, ["orders"])
    [again] = await collect(other, 1)
    assert (ids([again]), again.redelivered) == ([sent.id], True)
    with pytest.raises(BrokerUnavailable):
        await subscription.ack(found)
    await other.ack([again])


async def test_a_producer_that_cannot_go_on_is_replaced(made: MakeBroker, group: str) -> None:
    broker = made()
    assert await broker.publish([message()]) == [None]
    before = broker._sender
    assert before is not None
    before.health.fatal = "out of order"  # As the client says it; no server can be made to cause it here.
    assert await broker.publish([message()]) == [None]
    assert broker._sender is not before


async def test_a_message_that_is_too_large_is_refused_and_the_next_is_not(made: MakeBroker, group: str) -> None:
    broker = made()
    large, small = await broker.publish([replace(message(), data=bytes(1_100_000)), message()])
    assert isinstance(large, MessageRefused)
    assert "too large" in str(large).lower()
    assert small is None


async def test_a_topic_that_is_not_there_and_is_not_made_is_refused(kafka: Cluster, group: str) -> None:
    more: dict[str, Setting] = {"allow.auto.create.topics": False}
    broker = KafkaBroker(kafka.bootstrap, topic_prefix=f"{group}.", confirm_s=2.0, settings=more)
    [answer] = await broker.publish([message()])
    assert isinstance(answer, MessageRefused)
    assert f"'{group}.orders'" in str(answer)
    with pytest.raises(ConfigurationError, match=rf"there is no topic '{group}\.orders'"):
        await broker.subscribe(group, ["orders"])
    await broker.close()


async def test_headers_of_others_are_read_as_far_as_they_go(made: MakeBroker, kafka: Cluster, group: str) -> None:
    topic = f"foreign-{group}"
    subscription = await KafkaBroker(kafka.bootstrap).subscribe(group, [topic])
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce(topic, None, headers=[("ce_id", b"1"), ("ce_id", b"2"), ("empty", None), ("odd", b"\xff")])
    assert producer.flush(PATIENCE_S) == 0
    [found] = await collect(subscription, 1)
    assert found.headers == {"ce_id": "2", "empty": "", "odd": "�"}
    assert found.data == b""
    assert "'source'" in (found.problem or "")
    await subscription.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.idempotence", False),
        ("acks", 1),
        ("acks", "0"),
        ("request.required.acks", 1),
        ("enable.auto.commit", True),
        ("auto.offset.reset", "latest"),
        ("isolation.level", "read_uncommitted"),
        ("group.id", "mine"),
        ("message.timeout.ms", 0),
        ("bootstrap.servers", "elsewhere:9092"),
    ],
)
def test_a_setting_that_could_lose_messages_is_refused(name: str, value: Setting) -> None:
    with pytest.raises(ConfigurationError, match=rf"settings\['{name}'\].*leave it out"):
        KafkaBroker("localhost:9092", settings={name: value})


def test_a_setting_that_says_what_must_be_is_accepted() -> None:
    said: dict[str, Setting] = {"acks": -1, "enable.idempotence": "true", "enable.auto.commit": "False"}
    KafkaBroker("localhost:9092", settings=said)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"no.such.setting": 1}, "no.such.setting"),
        ({"max.in.flight.requests.per.connection": 100}, "max.in.flight"),
        ({"security.protocol": "odd"}, "security.protocol"),
    ],
)
async def test_what_the_client_does_not_take_is_refused_at_start(wrong: dict[str, Setting], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await KafkaBroker("localhost:9092", settings=wrong).open()


@pytest.mark.parametrize(
    ("bootstrap", "given", "said"),
    [
        (" ", {}, "bootstrap=''"),
        ("localhost", {"confirm_s": 0.0}, r"confirm_s=0\.0"),
        ("localhost", {"redelivery_s": 0.0}, r"redelivery_s=0\.0"),
        ("localhost", {"topic_prefix": "x" * 50}, "topic_prefix="),
    ],
)
def test_settings_out_of_range_are_refused(bootstrap: str, given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        KafkaBroker(bootstrap, **given)  # type: ignore[arg-type]


async def test_a_broker_that_is_closed_connects_no_more_until_it_is_opened(made: MakeBroker, group: str) -> None:
    broker = made()
    subscription = await broker.subscribe(group, ["orders"])
    waiting = asyncio.create_task(subscription.receive(1, PATIENCE_S))
    await asyncio.wait([waiting], timeout=0.2)
    await broker.close()
    with pytest.raises(BrokerUnavailable, match="is closed"):
        await waiting
    with pytest.raises(BrokerUnavailable, match="this broker is closed"):
        await broker.publish([message()])
    with pytest.raises(BrokerUnavailable, match="this broker is closed"):
        await broker.subscribe(group, ["orders"])
    await broker.open()
    assert await broker.publish([message()]) == [None]


async def test_a_consumer_needs_a_name_and_topics() -> None:
    broker = KafkaBroker("localhost:9092")
    with pytest.raises(ConfigurationError, match="consumer=''"):
        await broker.subscribe("", ["orders"])
    with pytest.raises(ConfigurationError, match="has no topics"):
        await broker.subscribe("billing", [])


async def test_an_acknowledgement_while_kafka_is_away_says_so_soon(group: str) -> None:
    with PrivateKafka(brokers=1) as cluster:
        broker = KafkaBroker(cluster.bootstrap, confirm_s=2.0, settings=settings(cluster))
        subscription = await broker.subscribe(group, ["orders"])
        await broker.publish([message()])
        found = await collect(subscription, 1)
        cluster.kill()
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            await subscription.ack(found)
        assert time.monotonic() - started < 10.0
        cluster.restart()
        await broker.close()


async def test_what_nobody_listens_to_is_unavailable_soon() -> None:
    broker = KafkaBroker("127.0.0.1:1", confirm_s=1.0)
    with pytest.raises(BrokerUnavailable, match="no server of Kafka answers"):
        await broker.open()
    with pytest.raises(BrokerUnavailable):
        await broker.subscribe("billing", ["orders"])
    started = time.monotonic()
    for _ in range(2):
        try:
            answers = await broker.publish([message()])
        except BrokerUnavailable:
            continue
        assert isinstance(answers[0], BrokerUnavailable)
    assert time.monotonic() - started < 8.0
    await broker.close()
