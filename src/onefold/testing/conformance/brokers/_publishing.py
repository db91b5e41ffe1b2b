"""Promises about what is published, and about how it is received. The name of each is the promise."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from dataclasses import replace

from onefold._kernel.messages import Delivery, Message
from onefold.errors import MessageRefused
from onefold.testing.conformance._stage import NotConforming, expect
from onefold.testing.conformance.brokers._broker_stage import HANG_S, BrokerStage, ids, promise


@promise()
async def every_part_of_a_message_arrives_as_it_was(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    bare = Message(id=str(uuid.uuid4()), source="shop", topic=stage.topic(), data=b"{}")
    full = Message(
        id=f'{uuid.uuid4()} "é" 100 %',
        source="https://shop.example/orders?a=1&b=%20#x",
        topic=stage.topic(),
        data='{"name":"Zoë"}'.encode(),
        content_type="application/json; charset=utf-8",
        time="2026-11-15T10:00:00.123456Z",
        key='Zoë  Müller / 注文 "7" 100% 🎉',
        epoch=3,
        version=9_007_199_254_740_993,
        headers={
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "correlation-id": "a b",
            "x-odd": 'a: "b"; c=%41, d',
        },
    )
    sent = [bare, full]
    for data, content_type in (
        (b"", "application/json"),
        (bytes(range(256)) * 4, "application/octet-stream"),
        (b"\r\n\r\nNATS/1.0", "text/plain"),
        (b"x" * 100_000, "text/plain"),
    ):
        sent.append(replace(bare, id=str(uuid.uuid4()), data=data, content_type=content_type))
    await stage.publish(broker, *sent)
    found = {ids(delivery): delivery for delivery in await stage.gets(subscription, *sent)}
    for message in sent:
        delivery = found[message.id]
        expect(delivery.message == message, f"{message} came as {delivery.message}")
        expect(delivery.data == message.data, f"the data {message.data[:99]!r} came as {delivery.data[:99]!r}")
        expect(delivery.problem is None, f"{message} came with the problem {delivery.problem}")


@promise()
async def many_messages_in_one_call_are_confirmed_and_come(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = stage.messages(stage.subject.many)
    await stage.publish(broker, *sent)
    await subscription.ack(await stage.gets(subscription, *sent))
    await stage.silent(subscription)


@promise()
async def calls_at_the_same_time_get_each_its_own_confirms(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    calls = [stage.messages(stage.subject.many // 25) for _ in range(10)]
    await asyncio.gather(*(stage.publish(broker, *call) for call in calls))
    await stage.gets(subscription, *(message for call in calls for message in call))


@promise()
async def to_publish_nothing_is_nothing(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    expect(list(await broker.publish([])) == [], "publishing nothing was answered with something")
    await subscription.ack([])
    await subscription.give_back([])
    await subscription.keep([])
    await stage.silent(subscription)


@promise(lambda subject: subject.too_large_bytes is not None)
async def a_message_that_is_too_large_is_refused_alone(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    first, large, *others = stage.messages(4)
    large = replace(large, data=b"x" * (stage.subject.too_large_bytes or 0))
    before, refused, *after = await broker.publish([first, large, *others])
    expect(isinstance(refused, MessageRefused), f"a message that is too large was answered with {refused!r}")
    expect([before, *after] == [None, None, None], f"its neighbours were answered with {[before, *after]}")
    await stage.gets(subscription, first, *others)
    await stage.silent(subscription)


@promise(lambda subject: subject.deduplicates)
async def what_is_published_twice_under_one_id_comes_once(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    message, other = stage.messages(2)
    await stage.publish(broker, message)
    await stage.publish(await stage.open(), message)
    await stage.publish(broker, message, other)
    await stage.gets(subscription, message, other)
    await stage.silent(subscription)


@promise()
async def the_same_id_of_two_sources_is_two_messages(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    one = stage.message()
    other = replace(one, source="another")
    await stage.publish(broker, one, other)
    found = await stage.gets(subscription, one, other)
    sources = sorted(delivery.message.source for delivery in found if delivery.message)
    expect(sources == sorted([one.source, other.source]), f"of two sources with one id, those of {sources} came")


@promise()
async def calls_one_after_the_other_keep_their_order(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = [replace(message, key="one") for message in stage.messages(20)]
    for message in sent:
        await stage.publish(broker, message)
    found: list[Delivery] = []
    deadline = time.monotonic() + stage.subject.patience_s
    while len(found) < len(sent) and time.monotonic() < deadline:
        some = await subscription.receive(len(sent) - len(found), 1.0)
        await subscription.ack(some)
        found += some
    versions = [delivery.message.version for delivery in found if delivery.message]
    expect(versions == [message.version for message in sent], f"published in order, they came as {versions}")


@promise(lambda subject: subject.inject is not None)
async def a_message_without_an_envelope_comes_with_its_bytes_and_says_so(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    data, inject = b"\x00\xffneither JSON nor text", stage.subject.inject
    assert inject is not None
    await inject(stage.topic(), data)
    [found] = await stage.collect(subscription, 1)
    expect(found.message is None and bool(found.problem), f"a foreign message came as {found}")
    expect(found.data == data, f"the foreign bytes {data!r} came as {found.data!r}")
    await subscription.ack([found])
    message = stage.message()
    await stage.publish(broker, message)
    await stage.gets(subscription, message)


@promise()
async def no_more_is_received_than_asked_for(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = stage.messages(10)
    await stage.publish(broker, *sent)
    found: list[Delivery] = []
    for _ in range(100):
        some = await subscription.receive(3, 0.5)
        expect(len(some) <= 3, f"of 3 messages asked for {len(some)} came")
        found += some
        if len(found) >= len(sent):
            break
    expect(sorted(map(ids, found)) == sorted(message.id for message in sent), f"of 10 messages {len(found)} came")


@promise()
async def a_receive_ends_in_time_and_not_before(stage: BrokerStage) -> None:
    _, subscription = await stage.both("orders")
    await stage.silent(subscription)
    started = time.monotonic()
    await subscription.receive(10, 0.5)
    took = time.monotonic() - started
    expect(0.25 <= took <= 2.0, f"asked to wait for 0.5 s, an empty receive took {took:.2f} s")


@promise()
async def a_receive_that_waits_does_not_wait_for_more_than_the_first(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    message = stage.message()
    waiting = asyncio.create_task(subscription.receive(100, HANG_S))
    await stage.publish(broker, message)
    try:
        async with asyncio.timeout(stage.subject.patience_s):
            found = await waiting
    except TimeoutError as error:
        raise NotConforming(f"{stage.subject.patience_s} s after a message, a receive still waits for more") from error
    expect([*map(ids, found)] == [message.id], f"{found} came")


@promise()
async def a_receive_that_is_cancelled_loses_nothing(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    waiting = asyncio.create_task(subscription.receive(10, HANG_S))
    await asyncio.wait([waiting], timeout=stage.subject.quiet_s)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    message = stage.message()
    await stage.publish(broker, message)
    await stage.gets(subscription, message)
