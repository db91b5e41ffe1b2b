"""What only NATS does: its stream, its refusals, and the trimming of what all consumers have acknowledged."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import nats as client_library
import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType

from onefold._kernel.messages import Message
from onefold.brokers.nats import NatsBroker, _durables
from onefold.brokers.nats._subscription import NatsSubscription
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused
from onefold.testing.servers import PrivateNats
from tests.support.patience import PATIENCE_S

SAFE: dict[str, Any] = {"storage": StorageType.FILE, "discard": DiscardPolicy.NEW}


@pytest.fixture
def stream() -> str:
    return f"s{uuid.uuid4().hex}"


@pytest.fixture
async def jetstream(nats: PrivateNats) -> AsyncIterator[JetStreamContext]:
    client = await client_library.connect(nats.url, allow_reconnect=False)
    yield client.jetstream()
    await client.close()


@asynccontextmanager
async def opened(server: PrivateNats, stream: str, **settings: Any) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(server.url, stream=stream, **{"confirm_s": PATIENCE_S, **settings})
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


def message(number: int = 0, topic: str = "orders", data: bytes = b"{}") -> Message:
    return Message(id=f"{uuid.uuid4()}", source="shop", topic=topic, data=data, key="one", version=number)


async def test_the_stream_that_open_makes_drops_nothing(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream, prefix="shop.events"):
        config = (await jetstream.stream_info(stream)).config
    assert config.subjects == ["shop.events.>"]
    assert config.storage == StorageType.FILE
    assert config.retention == RetentionPolicy.LIMITS
    assert config.discard == DiscardPolicy.NEW
    assert (config.max_age, config.max_msgs, config.max_bytes, config.max_msgs_per_subject) == (0, -1, -1, -1)
    assert config.duplicate_window == 600
    assert not config.no_ack


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"storage": StorageType.MEMORY}, "storage=memory"),
        ({"no_ack": True}, "no_ack=true"),
        ({"retention": RetentionPolicy.WORK_QUEUE}, "retention=workqueue"),
        ({"retention": RetentionPolicy.INTEREST}, "retention=interest"),
        ({"max_age": 3600}, "max_age=3600"),
        ({"max_msgs": 10, "discard": DiscardPolicy.OLD}, "discard=old with {'max_msgs': 10}"),
        ({"max_bytes": 1_000_000, "discard": DiscardPolicy.OLD}, "discard=old"),
        ({"max_msgs_per_subject": 5}, "max_msgs_per_subject=5"),
        ({"subjects": ["elsewhere.>"]}, "elsewhere"),
    ],
)
async def test_a_stream_that_could_lose_messages_is_refused(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext, settings: dict[str, Any], named: str
) -> None:
    subjects = [f"{stream}{subject}" for subject in settings.pop("subjects", [".>"])]
    await jetstream.add_stream(name=stream, subjects=subjects, **{**SAFE, **settings})
    broker = NatsBroker(nats.url, stream=stream)
    with pytest.raises(ConfigurationError) as refusal:
        await broker.open()
    assert named in str(refusal.value)
    assert stream in str(refusal.value)
    with pytest.raises(BrokerUnavailable, match=r"call open\(\)"):
        await broker.publish([message()])


async def test_a_safe_stream_of_the_operators_own_is_used(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    await jetstream.add_stream(name=stream, subjects=[f"{stream}.>", "more"], max_bytes=1_000_000, **SAFE)
    async with opened(nats, stream) as broker:
        assert await broker.publish([message()]) == [None]
    assert (await jetstream.stream_info(stream)).state.messages == 1


async def test_a_stream_that_is_gone_refuses_and_is_named(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream) as broker:
        await jetstream.delete_stream(stream)
        [refused] = await broker.publish([message()])
        assert isinstance(refused, MessageRefused)
        assert f"{stream}.>" in str(refused)


async def test_what_is_too_large_for_the_stream_is_refused_alone(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"], max_msg_size=1_000, **SAFE)
    async with opened(nats, stream) as broker:
        first, large, last = await broker.publish([message(), message(data=b"x" * 2_000), message()])
        assert (first, last) == (None, None)
        assert isinstance(large, MessageRefused)


async def test_headers_count_for_the_size_that_the_server_takes(nats: PrivateNats, stream: str) -> None:
    async with opened(nats, stream) as broker:
        fits, refused = await broker.publish([message(data=b"x" * 1_048_000), message(data=b"x" * 1_048_570)])
        assert fits is None
        assert isinstance(refused, MessageRefused)
        assert "max_payload=1048576" in str(refused)
        assert await broker.publish([message()]) == [None], "the connection was lost over it"


async def test_a_full_stream_is_nobodys_fault(nats: PrivateNats, stream: str, jetstream: JetStreamContext) -> None:
    await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"], max_msgs=1, **SAFE)
    async with opened(nats, stream) as broker:
        assert await broker.publish([message()]) == [None]
        [full] = await broker.publish([message()])
        assert isinstance(full, BrokerUnavailable)
        assert "maximum messages exceeded" in str(full)


@pytest.mark.parametrize("topic", ["a..b", ".a", "a.", "a b", "a\r\nPING"])
async def test_a_topic_that_is_no_subject_is_refused_alone(nats: PrivateNats, stream: str, topic: str) -> None:
    async with opened(nats, stream) as broker:
        odd, even = await broker.publish([message(topic=topic), message()])
        assert isinstance(odd, MessageRefused)
        assert even is None
        with pytest.raises(ConfigurationError, match="no such subjects"):
            await broker.subscribe("billing", [topic])


@pytest.mark.parametrize(
    "headers", [{"a:b": "c"}, {"a b": "c"}, {"": "c"}, {"a": "b\r\nNats-Rollup: all"}, {"a": "b\nc"}, {"a": "é"}]
)
async def test_a_header_that_nats_cannot_carry_is_refused_alone(
    nats: PrivateNats, stream: str, headers: dict[str, str]
) -> None:
    odd = Message(id="odd", source="shop", topic="orders", data=b"{}", headers=headers)
    async with opened(nats, stream) as broker:
        refused, even = await broker.publish([odd, message()])
        assert isinstance(refused, MessageRefused)
        assert even is None


async def test_large_messages_are_sent_many_at_a_time(nats: PrivateNats, stream: str) -> None:
    async with opened(nats, stream) as broker:
        assert await broker.publish([message(data=b"x" * 500_000) for _ in range(20)]) == [None] * 20


async def test_more_than_may_be_in_flight_is_sent_in_turns(
    nats: PrivateNats, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.brokers.nats._broker._IN_FLIGHT_MAX", 100)
    async with opened(nats, stream) as broker:
        large = message(data=b"x" * 2_000_000)
        messages = [message(number) for number in range(450)]
        answers = await broker.publish([*messages, large])
        assert list(answers[:450]) == [None] * 450
        assert isinstance(answers[450], MessageRefused)


async def test_a_topic_that_looks_like_a_confirm_confirms_nothing(nats: PrivateNats, stream: str) -> None:
    async with opened(nats, stream) as broker:
        subscription = await broker.subscribe("billing", ["a.0.1", "a.c0.1"])
        sent = [message(topic="a.0.1"), message(topic="a.c0.1")]
        assert await broker.publish(sent) == [None, None]
        found = await subscription.receive(10, 5.0)
        assert [delivery.message for delivery in found] == sent


async def test_a_consumer_that_was_deleted_is_made_again(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream) as broker:
        subscription = await broker.subscribe("billing", ["orders"])
        await jetstream.delete_consumer(stream, "billing")
        with pytest.raises(BrokerUnavailable, match="billing"):
            await subscription.receive(1, 1.0)
        await broker.publish([message()])
        assert len(await subscription.receive(1, 5.0)) == 1


async def test_a_consumer_of_another_kind_is_refused(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream) as broker:
        await jetstream.add_consumer(stream, durable_name="billing", ack_policy="none")
        with pytest.raises(ConfigurationError, match=r"'billing' of .* has other settings"):
            await broker.subscribe("billing", ["orders"])


async def trimmed_by(subscription: NatsSubscription, jetstream: JetStreamContext, stream: str, to: int) -> int:
    """How many are left when no more are wanted away, or after so many duplicate windows."""
    for _ in range(10):
        await subscription.receive(1, 0.15)
        await subscription.ack([])
        if (left := (await jetstream.stream_info(stream)).state.messages) <= to:
            break
    return left


async def test_what_every_consumer_has_acknowledged_is_trimmed_and_nothing_else(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream, duplicate_window_s=0.1) as broker:
        billing = await broker.subscribe("billing", ["orders", "refunds"])
        shipping = await broker.subscribe("shipping", ["orders"])
        await broker.publish([message(number) for number in range(10)])
        await broker.publish([message(topic="refunds"), message(topic="unheard")])
        await billing.ack(await billing.receive(100, 5.0))
        assert await trimmed_by(billing, jetstream, stream, 11) == 11, "shipping has not had the orders yet"
        found = await shipping.receive(100, 5.0)
        await shipping.ack(found[:4])
        assert await trimmed_by(shipping, jetstream, stream, 7) == 7, "six orders are not acknowledged yet"
        await shipping.ack(found[4:])
        assert await trimmed_by(shipping, jetstream, stream, 1) == 1, "nobody has asked for the last one yet"
        assert await trimmed_by(shipping, jetstream, stream, 0) == 1


async def test_what_consumers_of_patterns_have_acknowledged_is_trimmed_when_no_other_pattern_has_it(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream, duplicate_window_s=0.1) as broker:
        audit = await broker.subscribe("audit", ["order.*", "order.placed"])
        paid = await broker.subscribe("paid", ["*.paid"])
        await broker.subscribe("others", ["refund.>"])
        await broker.publish([message(topic=topic) for topic in ("order.placed", "order.paid", "refund.paid.late")])
        await audit.ack(await audit.receive(100, 5.0))
        assert await trimmed_by(audit, jetstream, stream, 2) == 3, "*.paid may be about any of them"
        await paid.ack(await paid.receive(100, 5.0))
        assert await trimmed_by(audit, jetstream, stream, 1) == 1, "refund.> is of no interest for order.*"


async def test_what_a_consumer_waits_for_that_subscribed_meanwhile_is_not_trimmed(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream, duplicate_window_s=0.1) as broker:
        billing = await broker.subscribe("billing", ["orders"])
        await broker.publish([message(number) for number in range(503)])
        await billing.ack(await billing.receive(503, 5.0))  # billing notes how far everybody is
        shipping = await broker.subscribe("shipping", ["orders"])
        assert await trimmed_by(billing, jetstream, stream, 502) == 503
        found = await shipping.receive(503, 5.0)
        assert len(found) == 503
        await shipping.ack(found)
        assert await trimmed_by(shipping, jetstream, stream, 0) == 0, "and when it is done they go"


async def test_more_consumers_than_one_list_holds_are_all_waited_for(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream, duplicate_window_s=0.1) as broker:
        await broker.publish([message()])
        others = [await broker.subscribe(f"other-{number}", ["orders"]) for number in range(260)]
        billing = await broker.subscribe("billing", ["orders"])
        for subscription in (*others[:-1], billing):
            await subscription.ack(await subscription.receive(1, 5.0))
        assert await trimmed_by(billing, jetstream, stream, 0) == 1, "the last of them has not had it yet"
        await others[-1].ack(await others[-1].receive(1, 5.0))
        assert await trimmed_by(billing, jetstream, stream, 0) == 0


@pytest.mark.parametrize(("trim", "left"), [(None, 5), (False, 5), (True, 0)])
async def test_a_stream_of_the_operators_own_is_trimmed_only_where_that_was_asked_for(
    nats: PrivateNats,
    stream: str,
    jetstream: JetStreamContext,
    caplog: pytest.LogCaptureFixture,
    trim: bool | None,
    left: int,
) -> None:
    await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"], duplicate_window=0.1, **SAFE)
    async with opened(nats, stream, duplicate_window_s=0.1, trim=trim) as broker:
        billing = await broker.subscribe("billing", ["orders"])
        await broker.publish([message(number) for number in range(5)])
        await billing.ack(await billing.receive(5, 5.0))
        assert await trimmed_by(billing, jetstream, stream, 0) == left
    assert ("trim=True" in caplog.text) == (trim is None)


async def test_a_stream_that_was_made_anew_by_its_operator_is_no_longer_trimmed(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext
) -> None:
    async with opened(nats, stream, duplicate_window_s=0.1) as broker:
        await jetstream.delete_stream(stream)
        await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"], duplicate_window=0.1, **SAFE)
        billing = await broker.subscribe("billing", ["orders"])
        await broker.publish([message(number) for number in range(5)])
        await billing.ack(await billing.receive(5, 5.0))
        assert await trimmed_by(billing, jetstream, stream, 0) == 5


async def test_the_password_is_not_told() -> None:
    broker = NatsBroker("nats://user:secret@127.0.0.1:1", confirm_s=1.0)
    with pytest.raises(BrokerUnavailable) as told:
        await broker.open()
    assert "127.0.0.1:1" in str(told.value)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"confirm_s": 0.0}, "confirm_s=0.0"),
        ({"ack_wait_s": -1.0}, "ack_wait_s=-1.0"),
        ({"duplicate_window_s": 0.0}, "duplicate_window_s=0.0"),
        ({"redelivery_s": 0.0}, "redelivery_s=0.0"),
        ({"replicas": 2}, "replicas=2"),
        ({"stream": "a.b"}, "stream='a.b'"),
        ({"prefix": "a..b"}, "prefix='a..b'"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        NatsBroker("nats://127.0.0.1", **settings)
    assert named in str(refusal.value)


async def subjects_of(jetstream: JetStreamContext, stream: str) -> set[str]:
    config = (await jetstream.consumer_info(stream, "billing")).config
    return {subject.removeprefix(f"{stream}.") for subject in config.filter_subjects or [config.filter_subject or ""]}


@asynccontextmanager
async def held_up(broker: NatsBroker, verb: str) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """A broker that stops between what it reads of a durable and what it makes of that, until it may go on, or for a
    moment: another one may be made to wait for it."""
    jetstream = (await broker.connect()).jetstream
    reached, going_on = asyncio.Event(), asyncio.Event()
    change = getattr(jetstream, verb)

    async def pause() -> None:
        reached.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(going_on.wait(), 0.3)

    async def wait(*arguments: Any) -> Any:
        if verb != "consumer_info":
            await pause()
            return await change(*arguments)
        try:
            return await change(*arguments)
        finally:
            await pause()

    setattr(jetstream, verb, wait)
    yield reached, going_on
    setattr(jetstream, verb, change)


@pytest.mark.parametrize(("had", "verb"), [(["orders"], "add_consumer"), ([], "consumer_info")])
async def test_two_processes_that_add_topics_at_once_take_none_from_each_other(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext, had: list[str], verb: str
) -> None:
    async with opened(nats, stream) as first, opened(nats, stream) as second:
        if had:
            await first.subscribe("billing", had)
        async with held_up(first, verb) as (reached, going_on), asyncio.TaskGroup() as group:
            group.create_task(first.subscribe("billing", ["orders", "payments"]))
            await reached.wait()
            await second.subscribe("billing", ["orders", "refunds"])
            going_on.set()
    assert await subjects_of(jetstream, stream) == {"orders", "payments", "refunds"}


@pytest.mark.parametrize(
    ("topics", "verb"), [(["orders", "payments"], "add_consumer"), (["orders"], "delete_consumer")]
)
async def test_a_topic_that_is_added_while_another_is_dropped_stays(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext, topics: list[str], verb: str
) -> None:
    async with opened(nats, stream) as first, opened(nats, stream) as second:
        await first.subscribe("billing", topics)
        async with held_up(first, verb) as (reached, going_on), asyncio.TaskGroup() as group:
            group.create_task(first.unsubscribe("billing", ["orders"]))
            await reached.wait()
            await second.subscribe("billing", ["refunds"])
            going_on.set()
    assert await subjects_of(jetstream, stream) == {"refunds", *topics[1:]}


async def test_who_died_while_changing_a_consumer_keeps_nobody_from_it(
    nats: PrivateNats, stream: str, jetstream: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.brokers.nats._durables.LOCK_S", 0.3)
    locked = asyncio.Event()

    async def hold(broker: NatsBroker) -> None:
        async with _durables.alone(broker, await broker.connect(), "billing"):
            locked.set()
            await asyncio.Event().wait()

    async with opened(nats, stream) as broker, opened(nats, stream) as other:
        await broker.subscribe("billing", ["orders"])
        held = asyncio.create_task(hold(other))
        await locked.wait()
        await other.close()  # no more is heard of it
        assert [seen.consumer for seen in await broker.subscriptions([])] == ["billing"], "the lock is not a consumer"
        await broker.subscribe("billing", ["payments"])
        with pytest.raises(TimeoutError):
            await held
    assert await subjects_of(jetstream, stream) == {"orders", "payments"}


async def test_a_wrong_password_is_told_as_such(nats: PrivateNats, stream: str) -> None:
    broker = NatsBroker(re.sub(":[^:@/]+@", ":wrong@", nats.url), stream=stream)
    with pytest.raises(ConfigurationError, match=r"refused the login.*user and password") as caught:
        await broker.open()
    assert "wrong" not in str(caught.value)
    await broker.close()
