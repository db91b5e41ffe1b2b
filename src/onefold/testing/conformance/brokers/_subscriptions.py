"""Promises about what a broker keeps for consumers, and about its end. The name of each is the promise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onefold._kernel.ports import Broker, ManagesSubscriptions, SubscriptionSeen
from onefold.errors import BrokerUnavailable, ConsumerActive
from onefold.testing.conformance._stage import NotConforming, expect
from onefold.testing.conformance.brokers._broker_stage import BrokerStage, BrokerSubject, promise


def manages(subject: BrokerSubject) -> bool:
    return isinstance(subject.broker(), ManagesSubscriptions)


@promise(manages)
async def what_is_sent_to_a_topic_after_it_was_unsubscribed_does_not_come(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders", "payments", "refunds")
    await subscription.close()
    await stage.subscribe(broker, "payments", "refunds", consumer="archive")  # some refuse others
    name = f"{stage.name}.billing"
    await manager(broker).unsubscribe(name, [stage.topic("payments"), stage.topic("refunds"), stage.topic("never")])
    subscription = await stage.subscribe(broker, "orders")
    wanted = stage.message()
    await stage.publish(broker, stage.message(topic="payments"), stage.message(topic="refunds"), wanted)
    await subscription.ack(await stage.gets(subscription, wanted))
    await stage.silent(subscription)
    found = await seen(stage, broker, "billing")
    expect(found is not None, "a consumer that has a topic left is not listed")
    topics = found and found.topics
    expect(topics in ((stage.topic(),), None), f"of three topics one is left, {topics} are listed")


@promise(manages)
async def to_unsubscribe_a_consumer_that_is_not_there_is_nothing(stage: BrokerStage) -> None:
    broker = await stage.open()
    await manager(broker).unsubscribe(f"{stage.name}.nothing", [stage.topic()])
    expect(await seen(stage, broker, "nothing") is None, "unsubscribing has made a subscription")


@promise(manages)
async def a_process_with_fewer_topics_takes_none_from_another(stage: BrokerStage) -> None:
    """As in a rolling deployment: both run, and only what is unsubscribed on purpose is taken away."""
    broker, subscription = await stage.both("orders", "payments")
    other = await stage.subscribe(await stage.open(), "orders")
    await other.close()
    message = stage.message(topic="payments")
    await stage.publish(broker, message)
    async with unharmed():
        await stage.gets(subscription, message)


@promise(manages)
async def what_waits_for_a_consumer_is_counted(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders", "payments")
    sent = stage.messages(7)
    await stage.publish(broker, *sent)
    await subscription.ack((await stage.gets(subscription, *sent))[:3])
    await subscription.close()
    found = await left_behind(stage, broker, "billing", 4)
    topics = (stage.topic("orders"), stage.topic("payments"))
    expect(found.topics in (topics, None), f"the topics {topics} are listed as {found.topics}")


@promise(manages)
async def a_consumer_that_was_removed_keeps_nothing_and_the_others_keep_theirs(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    other = await stage.subscribe(broker, "orders", consumer="shipping")
    sent = stage.messages(5)
    await stage.publish(broker, *sent)
    await subscription.close()
    await left_behind(stage, broker, "billing", 5)
    name = f"{stage.name}.billing"
    dropped = await manager(broker).remove(name)
    expect(dropped == 5, f"5 messages were waiting, {dropped} are said to be dropped")
    expect(await seen(stage, broker, "billing") is None, "a consumer that was removed is still there")
    expect(await manager(broker).remove(name) is None, "a consumer that is not there was removed")
    last = stage.message(9)
    await stage.publish(broker, last)
    async with unharmed():
        await stage.gets(other, *sent, last)


@promise(lambda subject: manages(subject) and subject.tells_attached)
async def a_consumer_is_not_removed_while_a_process_is_connected(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    message = stage.message()
    try:
        await manager(broker).remove(f"{stage.name}.billing")
    except ConsumerActive:
        await stage.publish(broker, message)
        await stage.gets(subscription, message)
    else:
        raise NotConforming("a consumer was removed under a process that is connected")


@asynccontextmanager
async def unharmed() -> AsyncIterator[None]:
    """A subscription that was not meant goes on as if nothing had happened."""
    try:
        yield
    except BrokerUnavailable as error:
        raise NotConforming(f"another subscription was interrupted: {error}") from error


def manager(broker: Broker) -> ManagesSubscriptions:
    assert isinstance(broker, ManagesSubscriptions)
    return broker


async def left_behind(stage: BrokerStage, broker: Broker, consumer: str, count: int) -> SubscriptionSeen:
    """What is kept for a consumer whose process has left. A broker may tell the process that it has left before it has
    taken back what that process had in hand: RabbitMQ counts those messages, and the connection, a moment later."""
    deadline = time.monotonic() + stage.subject.patience_s
    while True:
        found = await seen(stage, broker, consumer)
        if found is None:
            raise NotConforming("a subscription that has messages is not listed")
        if found.waiting in (count, None) and not found.attached:
            return found
        expect(
            time.monotonic() < deadline,
            f"{count} messages wait and no process is connected; {found.waiting} messages and {found.attached} "
            f"processes were counted for {stage.subject.patience_s} s",
        )
        await asyncio.sleep(0.02)


async def seen(stage: BrokerStage, broker: Broker, consumer: str) -> SubscriptionSeen | None:
    name = f"{stage.name}.{consumer}"
    found = await manager(broker).subscriptions([name])
    return next((each for each in found if each.consumer == name), None)
