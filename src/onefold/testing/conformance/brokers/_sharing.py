"""Promises about who gets what, and how often. The name of each is the promise."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import replace

from onefold._kernel.messages import Delivery
from onefold.testing.conformance._stage import expect
from onefold.testing.conformance.brokers._broker_stage import BrokerStage, ids, promise


@promise()
async def consumers_get_the_topics_they_asked_for(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders", "pay-ments_2.made")
    wanted = [stage.message(), stage.message(topic="pay-ments_2.made")]
    others = ("order", "orders.paid", "orders2", "ORDERS", "pay-ments_2", "pay-ments_2.made.late")
    await stage.subscribe(broker, *others, consumer="archive")  # some brokers refuse topics without a subscription
    await stage.publish(broker, *(stage.message(topic=topic) for topic in others), *wanted)
    await stage.gets(subscription, *wanted)
    await stage.silent(subscription)


@promise()
async def a_consumer_that_comes_back_with_another_topic_gets_that_too(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    await subscription.close()
    subscription = await stage.subscribe(broker, "orders", "payments")
    sent = [stage.message(), stage.message(topic="payments")]
    await stage.publish(broker, *sent)
    await stage.gets(subscription, *sent)


@promise()
async def every_consumer_gets_every_message(stage: BrokerStage) -> None:
    broker = await stage.open()
    names = ("billing", "shipping")
    subscriptions = [await stage.subscribe(broker, "orders", consumer=name) for name in names]
    sent = stage.messages(20)
    await stage.publish(broker, *sent)
    for subscription in subscriptions:
        await subscription.ack(await stage.gets(subscription, *sent))


@promise()
async def subscriptions_of_one_consumer_share(stage: BrokerStage) -> None:
    brokers = [await stage.open() for _ in range(2)]
    subscriptions = [await stage.subscribe(broker, "orders") for broker in brokers]
    warm_up_s = stage.subject.warm_up_s
    await asyncio.gather(*(subscription.receive(1, warm_up_s) for subscription in subscriptions if warm_up_s))
    sent = [replace(message, key=f"key {message.version}") for message in stage.messages(stage.subject.many // 5)]
    await stage.publish(brokers[0], *sent)
    found: list[Delivery] = []
    deadline = time.monotonic() + stage.subject.patience_s
    while len(found) < len(sent) and time.monotonic() < deadline:
        for subscription in subscriptions:
            found += await subscription.receive(10, 0.2)
    got = sorted(map(ids, found))
    expect(
        got == sorted(message.id for message in sent),
        f"of {len(sent)} messages {len(got)} came, {len(set(got))} different",
    )
    for subscription in subscriptions:
        await stage.silent(subscription)


@promise()
async def a_consumer_misses_nothing_while_it_is_away(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    await subscription.close()
    await broker.close()
    other = await stage.open()
    sent = stage.messages(20)
    await stage.publish(other, *sent)
    _, subscription = await stage.both("orders")
    await stage.gets(subscription, *sent)


@promise()
async def what_is_acknowledged_does_not_come_again(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = stage.messages(20)
    await stage.publish(broker, *sent)
    found = await stage.gets(subscription, *sent)
    await subscription.ack(found[:10])
    await subscription.ack(found[10:])
    await stage.silent(subscription)
    await subscription.close()
    await broker.close()
    broker, subscription = await stage.both("orders")
    await stage.silent(subscription)
    last = stage.message()
    await stage.publish(broker, last)
    await stage.gets(subscription, last)


@promise()
async def what_is_not_acknowledged_comes_again(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = stage.messages(20)
    await stage.publish(broker, *sent)
    found = await stage.gets(subscription, *sent)
    done = found[:7]
    await subscription.ack(done)
    await subscription.close()
    await broker.close()
    broker, subscription = await stage.both("orders")
    left = {ids(delivery) for delivery in found} - {ids(delivery) for delivery in done}
    again = await stage.gets(subscription, *(message for message in sent if message.id in left))
    expect(all(delivery.redelivered for delivery in again), "what came again was not said to be redelivered")
    await subscription.ack(again)
    await stage.silent(subscription)


@promise(lambda subject: subject.tells_redelivery)
async def what_comes_first_is_not_said_to_come_again(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = stage.messages(5)
    await stage.publish(broker, *sent)
    found = await stage.gets(subscription, *sent)
    expect(not any(delivery.redelivered for delivery in found), "a first delivery was said to be redelivered")


@promise()
async def what_is_given_back_comes_again(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = stage.messages(3)
    await stage.publish(broker, *sent)
    for _ in range(3):
        found = await stage.gets(subscription, *sent)
        await subscription.give_back(found)
    again = await stage.gets(subscription, *sent)
    expect(all(delivery.redelivered for delivery in again), "what was given back was not said to be redelivered")
    await subscription.ack(again)
    await stage.silent(subscription)


@promise(lambda subject: subject.lease_s is not None)
async def what_is_kept_is_not_given_to_others(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    other = await stage.subscribe(await stage.open(), "orders")
    message = stage.message()
    await stage.publish(broker, message)
    found = await stage.gets(subscription, message)
    deadline = time.monotonic() + 2.5 * (stage.subject.lease_s or 0.0)
    while time.monotonic() < deadline:
        await subscription.keep(found)
        came = await other.receive(10, min(broker.keep_every_s, deadline - time.monotonic()))
        expect(not came, "what was kept was given to another")
    await subscription.ack(found)
    await stage.silent(other)


@promise(lambda subject: subject.lease_s is not None)
async def what_is_not_kept_is_given_to_others(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    message = stage.message()
    await stage.publish(broker, message)
    await stage.gets(subscription, message)
    other = await stage.subscribe(await stage.open(), "orders")
    [again] = await stage.gets(other, message)
    expect(again.redelivered, "what came again was not said to be redelivered")


@promise()
async def what_is_closed_leaves_nothing_behind(stage: BrokerStage) -> None:
    async def use() -> None:
        broker, subscription = await stage.both("orders")
        await stage.publish(broker, *stage.messages(5))
        await stage.collect(subscription, 2)
        await subscription.close()
        await subscription.close()
        await broker.close()
        await broker.close()

    await use()  # what a client keeps for its process, it keeps once
    tasks, threads, files = asyncio.all_tasks(), set(threading.enumerate()), open_files()
    await use()
    deadline = time.monotonic() + stage.subject.patience_s
    while (left := [*asyncio.all_tasks() - tasks, *set(threading.enumerate()) - threads]) or open_files() > files:
        expect(time.monotonic() < deadline, f"after close there are {left} and {open_files()} files, not {files}")
        await asyncio.sleep(0.02)


def open_files() -> int:
    """How many files and sockets this process has open, where that can be known."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
