"""Promises about patterns of topics, and about refusing them. The name of each is the promise."""

from __future__ import annotations

from onefold._kernel.ports import MatchesPatterns
from onefold.errors import ConfigurationError
from onefold.testing.conformance._stage import NotConforming, expect
from onefold.testing.conformance.brokers._broker_stage import BrokerStage, BrokerSubject, promise
from onefold.testing.conformance.brokers._subscriptions import manager, manages, seen, unharmed


def matching(subject: BrokerSubject) -> bool:
    broker = subject.broker()
    return isinstance(broker, MatchesPatterns) and broker.matches_patterns


@promise(matching)
async def a_pattern_gets_the_topics_it_stands_for_and_no_others(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders.*", "*.refunds", "payments.>")
    topics = ("orders.placed", "orders.refunds", "x.refunds", "payments.made", "payments.made.late.on")
    others = ("orders", "orders.placed.late", "a.orders.placed", "refunds", "x.refunds.y", "payments", "payment.s")
    await stage.subscribe(broker, ">", consumer="archive")  # some brokers refuse topics without a subscription
    wanted = [stage.message(topic=topic) for topic in topics]
    await stage.publish(broker, *(stage.message(topic=topic) for topic in others), *wanted)
    found = await stage.gets(subscription, *wanted)
    came = sorted(delivery.message.topic for delivery in found if delivery.message)
    expect(came == sorted(map(stage.topic, topics)), f"sent to {topics}, they came as messages of {came}")
    await subscription.ack(found)
    await stage.silent(subscription)


@promise(matching)
async def what_several_patterns_of_a_consumer_stand_for_comes_once(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders.placed", "orders.*", "*.placed", "orders.>")
    sent = stage.messages(5, topic="orders.placed")
    await stage.publish(broker, *sent)
    await subscription.ack(await stage.gets(subscription, *sent))
    await stage.silent(subscription)


@promise(matching)
async def a_consumer_that_comes_back_with_a_pattern_gets_what_that_stands_for(stage: BrokerStage) -> None:
    """As in a rolling deployment: the process with the topic runs on."""
    broker, subscription = await stage.both("orders.placed")
    other = await stage.subscribe(await stage.open(), "orders.*")
    await subscription.close()
    sent = [stage.message(topic="orders.placed"), stage.message(topic="orders.paid")]
    await stage.publish(broker, *sent)
    await stage.gets(other, *sent)


@promise(lambda subject: matching(subject) and manages(subject))
async def a_pattern_and_a_topic_that_it_stands_for_are_given_up_each_alone(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders.>", "orders.placed", "refunds.>", "refunds.made")
    await stage.subscribe(broker, ">", consumer="archive")
    name = f"{stage.name}.billing"
    await manager(broker).unsubscribe(name, [stage.topic("orders.>"), stage.topic("refunds.made")])
    wanted = [stage.message(topic=topic) for topic in ("orders.placed", "refunds.made", "refunds.due")]
    await stage.publish(broker, stage.message(topic="orders.paid"), *wanted)
    async with unharmed():
        await subscription.ack(await stage.gets(subscription, *wanted))
        await stage.silent(subscription)
    found = await seen(stage, broker, "billing")
    topics = found and found.topics
    left = (stage.topic("orders.placed"), stage.topic("refunds.>"))
    expect(topics in (left, None), f"of a pattern and a topic one each is left, {topics} are listed")


@promise(lambda subject: not matching(subject))
async def a_pattern_is_refused_and_named(stage: BrokerStage) -> None:
    broker = await stage.open()
    pattern = stage.topic("orders.*")
    try:
        await broker.subscribe(f"{stage.name}.billing", [stage.topic(), pattern])
    except ConfigurationError as error:
        expect(pattern in str(error), f"the refusal does not name the pattern {pattern}: {error}")
    else:
        raise NotConforming(f"the broker knows no patterns, and has taken {pattern} for a topic")
