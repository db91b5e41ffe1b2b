"""What is RabbitMQ's own: what it returns, what it closes a channel over, its queues, and what it is told at start."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeAlias

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from onefold._kernel.messages import Confirm, Delivery, Message
from onefold._kernel.topics import matches
from onefold.brokers._rabbitmq_queue import RabbitSubscription, binding_key
from onefold.brokers.rabbitmq import RabbitBroker
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused, TopicNotSubscribed
from onefold.testing.servers import PrivateRabbitmq
from tests.support.patience import PATIENCE_S
from tests.testing.servers.missing import unless_missing

MEBIBYTE = 1024 * 1024

MakeBroker: TypeAlias = Callable[..., RabbitBroker]


@pytest.fixture
async def made(rabbitmq: PrivateRabbitmq) -> AsyncIterator[MakeBroker]:
    """Brokers on an exchange of the test's own, closed in the end."""
    brokers: list[RabbitBroker] = []
    name = f"test-{secrets.token_hex(8)}"

    def make(url: str = rabbitmq.url, **settings: object) -> RabbitBroker:
        own = {"exchange": name, "queue_prefix": name, "confirm_s": PATIENCE_S}
        brokers.append(RabbitBroker(url, **{**own, **settings}))  # type: ignore[arg-type]
        return brokers[-1]

    yield make
    for broker in brokers:
        await broker.close()


@asynccontextmanager
async def channel(server: PrivateRabbitmq) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(server.url) as connection:
        yield await connection.channel()


def message(number: int = 0, *, topic: str = "orders") -> Message:
    return Message(id=secrets.token_hex(8), source="shop", topic=topic, data=b"%d" % number, key="k", version=number)


async def collect(subscription: RabbitSubscription, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await subscription.receive(count - len(found), 1.0)
    return found


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.id for delivery in deliveries if delivery.message]


async def test_what_no_queue_is_bound_for_waits_for_a_consumer_and_the_others_are_confirmed(made: MakeBroker) -> None:
    broker = made()
    subscription = await broker.subscribe("billing", ["orders"])
    first, nowhere, last = message(1), message(2, topic="orders.late"), message(3)
    answers = await broker.publish([first, nowhere, last])
    assert [answers[0], answers[2]] == [None, None]
    assert isinstance(answers[1], TopicNotSubscribed)  # a plain refusal would become a dead letter after some attempts
    assert "no queue is bound for topic 'orders.late'" in str(answers[1])
    assert ids(await collect(subscription, 2)) == [first.id, last.id]


async def test_the_same_id_twice_in_one_call_is_answered_for_each(made: MakeBroker) -> None:
    broker = made()
    await broker.subscribe("billing", ["orders"])
    routed = message()
    unrouted = replace(routed, topic="nowhere")
    for pair in ((routed, unrouted), (unrouted, routed), (unrouted, unrouted), (routed, routed)):
        answers = await broker.publish(pair)
        assert [answer is None for answer in answers] == [each is routed for each in pair]


async def test_a_message_that_is_too_large_is_refused_and_its_neighbours_come(made: MakeBroker) -> None:
    broker = made()
    subscription = await broker.subscribe("billing", ["orders"])
    first, last = message(1), message(3)
    large = replace(message(2), data=bytes(128 * MEBIBYTE + 1))  # By default that is one too many up to version 3.
    answers = await broker.publish([first, large, last])
    assert [answers[0], answers[2]] == [None, None]
    assert isinstance(answers[1], MessageRefused)
    assert "larger than" in str(answers[1])
    # What was on the channel that the large one closed may have come before, and comes again.
    assert set(ids(await collect(subscription, 2))) <= {first.id, last.id}


async def test_headers_that_fit_no_frame_are_refused_and_its_neighbours_come(made: MakeBroker) -> None:
    broker = made()
    await broker.subscribe("billing", ["orders"])
    large = replace(message(2), headers={"x-large": "x" * 200_000})
    answers = await broker.publish([message(1), large, message(3)])
    assert [answer is None for answer in answers] == [True, False, True]
    assert isinstance(answers[1], MessageRefused)


async def test_an_id_that_amqp_has_no_room_for_is_refused(made: MakeBroker) -> None:
    broker = made()
    await broker.subscribe("billing", ["orders"])
    refused, confirmed = await broker.publish([replace(message(), id="x" * 256), message()])
    assert isinstance(refused, MessageRefused)
    assert confirmed is None


async def test_a_message_travels_as_the_binding_for_amqp_says(made: MakeBroker, rabbitmq: PrivateRabbitmq) -> None:
    subscription = await made(exchange="binding", queue_prefix="binding").subscribe("billing", ["orders"])
    await subscription.close()
    broker = made(exchange="binding")
    sent = replace(message(7), key="Zoë", content_type="text/plain", headers={"correlation-id": "c-1"})
    assert await broker.publish([sent]) == [None]
    async with channel(rabbitmq) as raw:
        found = await (await raw.get_queue("binding.billing")).get(no_ack=True)
    assert found is not None
    assert (found.body, found.content_type, found.message_id) == (b"7", "text/plain", sent.id)
    assert found.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    own = {name: value for name, value in found.headers.items() if name != "x-delivery-count"}
    assert own == {
        "cloudEvents_specversion": "1.0",
        "cloudEvents_id": sent.id,
        "cloudEvents_source": "shop",
        "cloudEvents_type": "orders",
        "cloudEvents_partitionkey": "Zoë",
        "cloudEvents_sequence": "7",
        "correlation-id": "c-1",
    }


async def test_the_other_prefix_and_headers_that_are_no_text_are_read(
    made: MakeBroker, rabbitmq: PrivateRabbitmq
) -> None:
    subscription = await made(exchange="foreign").subscribe("billing", ["orders"])
    headers: dict[str, str | bytearray | int] = {
        "cloudEvents:id": "1",
        "cloudEvents:source": bytearray(b"shop"),
        "cloudEvents:type": "orders",
        "tries": 3,
    }
    async with channel(rabbitmq) as raw:
        exchange = await raw.get_exchange("foreign")
        await exchange.publish(aio_pika.Message(b"x", headers={**headers}), "orders")
    [found] = await collect(subscription, 1)
    assert found.message == Message(
        id="1",
        source="shop",
        topic="orders",
        data=b"x",
        content_type="application/octet-stream",
        headers={"tries": "3"},
    )


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
async def test_a_message_may_be_given_back_any_number_of_times(made: MakeBroker, queue_type: str) -> None:
    broker = made(queue_type=queue_type)
    subscription = await broker.subscribe("billing", ["orders"])
    sent = message()
    await broker.publish([sent])
    for _ in range(30):  # Beyond the 20 after which newer versions throw a message away if they are not told otherwise.
        [found] = await collect(subscription, 1)
        await subscription.give_back([found])
    [found] = await collect(subscription, 1)
    assert found.message == sent  # Without what RabbitMQ notes in the headers.


async def test_messages_are_acknowledged_in_any_order_and_twice_does_no_harm(
    made: MakeBroker, rabbitmq: PrivateRabbitmq
) -> None:
    broker = made(queue_prefix="any-order")
    subscription = await broker.subscribe("billing", ["orders"])
    await broker.publish([message(number) for number in range(10)])
    found = await collect(subscription, 10)
    for some in (found[7:8], found[:3], found[5:9], found[:3], found[8:]):
        await subscription.ack(some)
    await subscription.give_back(found[:3])
    await subscription.close()
    async with channel(rabbitmq) as raw:
        queue = await raw.declare_queue("any-order.billing", passive=True)
        left = [await queue.get(no_ack=True) for _ in range(2)]
        assert sorted(each.body for each in left) == sorted(each.data for each in found[3:5])
        assert await queue.get(no_ack=True, fail=False) is None


async def test_no_more_is_fetched_than_the_prefetch_allows(made: MakeBroker) -> None:
    broker = made(prefetch=3)
    subscription = await broker.subscribe("billing", ["orders"])
    other = await made().subscribe("billing", ["orders"])
    await broker.publish([message(number) for number in range(10)])
    first = await collect(subscription, 3)
    assert await subscription.receive(10, 0.2) == []
    rest = await collect(other, 7)
    assert len({*ids(first), *ids(rest)}) == 10


async def test_a_queue_that_is_deleted_is_made_again(made: MakeBroker, rabbitmq: PrivateRabbitmq) -> None:
    broker = made(queue_prefix="deleted")
    subscription = await broker.subscribe("billing", ["orders"])
    # It waits when that happens: one that comes later makes the queue again at once.
    receiving = asyncio.create_task(subscription.receive(1, PATIENCE_S))
    async with channel(rabbitmq) as raw:
        await raw.queue_delete("deleted.billing")
    with pytest.raises(BrokerUnavailable, match="ended"):
        await receiving
    assert await subscription.receive(1, 0.0) == []
    sent = message()
    assert await broker.publish([sent]) == [None]
    assert ids(await collect(subscription, 1)) == [sent.id]


async def test_an_exchange_that_is_deleted_is_made_again(made: MakeBroker, rabbitmq: PrivateRabbitmq) -> None:
    broker = made(exchange="deleted")
    await broker.open()
    async with channel(rabbitmq) as raw:
        await raw.exchange_delete("deleted")
    [answer] = await broker.publish([message()])
    assert isinstance(answer, BrokerUnavailable)
    await broker.subscribe("billing", ["orders"])
    assert await broker.publish([message()]) == [None]


async def test_an_exchange_of_another_kind_is_refused_at_start(made: MakeBroker, rabbitmq: PrivateRabbitmq) -> None:
    async with channel(rabbitmq) as raw:
        await raw.declare_exchange("of-another-kind", aio_pika.ExchangeType.TOPIC, durable=False)
    with pytest.raises(ConfigurationError, match=r"exchange='of-another-kind' is not a durable topic exchange"):
        await made(exchange="of-another-kind").open()


async def test_a_queue_of_another_kind_is_refused_at_start(made: MakeBroker) -> None:
    await made(queue_type="classic").subscribe("billing", ["orders"])
    with pytest.raises(ConfigurationError, match=r"billing' is not one that onefold can use.*queue_type"):
        await made(queue_type="quorum").subscribe("billing", ["orders"])


async def test_a_wrong_password_is_refused_at_start_and_not_repeated(
    made: MakeBroker, rabbitmq: PrivateRabbitmq
) -> None:
    with pytest.raises(ConfigurationError, match="user and password") as refused:
        await made(rabbitmq.url.replace("@", "wr0ng@")).open()
    assert "wr0ng" not in str(refused.value)
    with pytest.raises(BrokerUnavailable, match="vhost 'nowhere'"):
        await made(rabbitmq.url + "nowhere").open()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prefetch": 0}, "prefetch=0"),
        ({"prefetch": 65_536}, "prefetch=65536"),
        ({"confirm_s": 0.0}, r"confirm_s=0\.0"),
        ({"redelivery_s": 0.0}, r"redelivery_s=0\.0"),
        ({"queue_type": "stream"}, "queue_type='stream'"),
        ({"exchange": ""}, "exchange=''"),
        ({"exchange": "amq.topic"}, r"exchange='amq\.topic'"),
        ({"queue_prefix": "x" * 101}, "queue_prefix="),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RabbitBroker("amqp://localhost/", **settings)  # type: ignore[arg-type]


def test_a_url_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="amqp://"):
        RabbitBroker("http://localhost/")


async def test_a_broker_that_is_closed_connects_no_more_until_it_is_opened(made: MakeBroker) -> None:
    broker = made()
    await broker.subscribe("billing", ["orders"])
    await broker.close()
    with pytest.raises(BrokerUnavailable, match="this broker is closed"):
        await broker.publish([message()])
    with pytest.raises(BrokerUnavailable, match="this broker is closed"):
        await broker.subscribe("billing", ["orders"])
    await broker.open()
    assert await broker.publish([message()]) == [None]


def test_a_pattern_is_bound_as_an_exchange_of_topics_reads_it() -> None:
    """There `*` is one word, and `#` none or more."""
    topics = [".".join(words) for length in range(1, 5) for words in itertools.product("ab", repeat=length)]
    for pattern in ("a", "a.b", "a.*", "*.b", "a.>", "*.>", "a.*.>", "*", ">"):
        expression = re.escape(binding_key(pattern)).replace(r"\.\#", r"(\.[^.]+)*").replace(r"\*", "[^.]+")
        bound = [topic for topic in topics if re.fullmatch(expression, topic)]
        assert bound == [topic for topic in topics if matches(pattern, topic)], pattern
    assert binding_key("a.>") == "a.*.#"


async def test_a_consumer_needs_a_name_and_topics() -> None:
    broker = RabbitBroker("amqp://localhost/")
    with pytest.raises(ConfigurationError, match="consumer=''"):
        await broker.subscribe("", ["orders"])
    with pytest.raises(ConfigurationError, match="255 bytes"):
        await broker.subscribe("x" * 255, ["orders"])
    with pytest.raises(ConfigurationError, match="has no topics"):
        await broker.subscribe("billing", [])


async def outcome(broker: RabbitBroker, sent: Message) -> Confirm:
    try:
        [answer] = await broker.publish([sent])
    except BrokerUnavailable as error:
        return error
    return answer


async def publish_in_the_end(broker: RabbitBroker, messages: Sequence[Message]) -> None:
    left = list(messages)
    async with asyncio.timeout(PATIENCE_S * 3):
        while left:
            try:
                answers: Sequence[Confirm] = await broker.publish(left)
            except BrokerUnavailable:
                await asyncio.sleep(0.05)
                continue
            left = [each for each, answer in zip(left, answers, strict=True) if answer is not None]


@pytest.fixture(scope="module")
def mortal() -> Iterator[PrivateRabbitmq]:
    with unless_missing(PrivateRabbitmq), PrivateRabbitmq() as server:
        yield server


async def test_a_quorum_queue_keeps_what_was_confirmed_over_a_kill(
    mortal: PrivateRabbitmq, caplog: pytest.LogCaptureFixture
) -> None:
    broker = RabbitBroker(mortal.url)
    subscription = await broker.subscribe("billing", ["orders"])
    mortal.restart()  # RabbitMQ has made a new queue last only after a clean stop, or some seconds.
    sent = [message(number) for number in range(50)]
    await publish_in_the_end(broker, sent[:25])
    with caplog.at_level(logging.WARNING):
        mortal.kill()
        for _ in range(50):
            assert isinstance(await outcome(broker, message()), BrokerUnavailable)
    assert len(caplog.records) <= 4  # The client tells once of each connection, and not of every attempt.
    mortal.restart()
    await publish_in_the_end(broker, sent[25:])
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S * 3):
        while {*ids(found)} != {each.id for each in sent}:
            try:
                found += await subscription.receive(100, 1.0)
            except BrokerUnavailable:
                await asyncio.sleep(0.05)
    await broker.close()


async def test_an_acknowledgement_that_comes_too_late_says_so(mortal: PrivateRabbitmq) -> None:
    broker = RabbitBroker(mortal.url, queue_type="classic", queue_prefix="late")
    subscription = await broker.subscribe("billing", ["orders"])
    sent = message()
    await publish_in_the_end(broker, [sent])
    found = await collect(subscription, 1)
    mortal.kill()
    mortal.restart()
    with pytest.raises(BrokerUnavailable, match="ended"):
        await subscription.receive(1, PATIENCE_S)
    with pytest.raises(BrokerUnavailable, match="they come again"):
        await subscription.ack(found)
    await subscription.give_back(found)
    [again] = await collect(subscription, 1)
    assert (ids([again]), again.redelivered) == ([sent.id], True)
    await subscription.ack([again])
    await broker.close()
