"""Promises about a server that is killed and comes back on the same port. The name of each is the promise.

A server that kept what it confirmed is assumed: whether it does is a matter of its settings, not of the adapter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from onefold._kernel.messages import Confirm, Delivery, Message
from onefold._kernel.ports import Broker, Subscription
from onefold.errors import BrokerUnavailable
from onefold.testing.conformance._stage import expect
from onefold.testing.conformance.brokers._broker_stage import BrokerStage, BrokerSubject, ids, promise


def mortal(subject: BrokerSubject) -> bool:
    return subject.outage is not None


@promise(mortal)
async def a_server_that_is_down_is_said_to_be_unavailable_soon(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    await stage.publish(broker, stage.message())
    await stage.collect(subscription, 1)
    async with down(stage):
        for _ in range(2):
            started = time.monotonic()
            answers = await outcome(broker, stage.messages(3))
            took = time.monotonic() - started
            expect(all(isinstance(answer, BrokerUnavailable) for answer in answers), f"publish answered {answers}")
            expect(took < stage.subject.outage_s, f"publish took {took:.1f} s to say that the server is down")
        await is_unavailable(subscription, stage.subject.outage_s)
        other = stage.subject.broker()
        try:
            await refuses_to_open(other, stage.subject.outage_s)
        finally:
            await other.close()


@promise(mortal)
async def a_broker_works_again_when_its_server_is_back(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    for _ in range(2):
        async with down(stage):
            await outcome(broker, stage.messages(1, topic="others"))
        sent = stage.messages(20)
        await publish_in_the_end(stage, broker, sent)
        found = await collect_in_the_end(stage, subscription, {message.id for message in sent})
        await subscription.ack(found)


@promise(mortal)
async def what_was_confirmed_comes_although_the_server_was_killed(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = stage.messages(500)
    publishing = asyncio.create_task(outcome(broker, sent))
    await asyncio.sleep(0)
    async with down(stage):
        answers = await publishing
    expect(len(answers) == len(sent), f"{len(sent)} messages got {len(answers)} answers")
    wrong = [answer for answer in answers if not isinstance(answer, BrokerUnavailable | None)]
    expect(not wrong, f"a server that was killed was answered with {wrong[:1]}")
    confirmed = {message.id for message, answer in zip(sent, answers, strict=True) if answer is None}
    found = await collect_in_the_end(stage, subscription, confirmed)
    # What became of the others is unknown: they are sent again under the same ids, and then they are there.
    await publish_in_the_end(stage, broker, [message for message in sent if message.id not in confirmed])
    left = {message.id for message in sent} - {ids(delivery) for delivery in found}
    await collect_in_the_end(stage, subscription, left)


@promise(mortal)
async def what_was_not_acknowledged_comes_again_although_the_server_was_killed(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    sent = stage.messages(20)
    await stage.publish(broker, *sent)
    await stage.gets(subscription, *sent)
    async with down(stage):
        pass
    again = await collect_in_the_end(stage, subscription, {message.id for message in sent})
    expect(all(delivery.redelivered for delivery in again), "what came again was not said to be redelivered")
    await subscription.ack(again)


@promise(mortal)
async def a_broker_is_closed_while_its_server_is_down(stage: BrokerStage) -> None:
    broker, subscription = await stage.both("orders")
    await stage.publish(broker, stage.message())
    await stage.collect(subscription, 1)
    async with down(stage):
        started = time.monotonic()
        await subscription.close()
        await broker.close()
        took = time.monotonic() - started
        expect(took < stage.subject.outage_s, f"close took {took:.1f} s while the server was down")


@asynccontextmanager
async def down(stage: BrokerStage) -> AsyncIterator[None]:
    """While the server is not there. It is back in the end, in any case."""
    outage = stage.subject.outage
    assert outage is not None
    await asyncio.to_thread(outage.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(outage.restart)


async def outcome(broker: Broker, messages: Sequence[Message]) -> Sequence[Confirm]:
    """One answer per message, also where none of them could be sent."""
    try:
        return await broker.publish(messages)
    except BrokerUnavailable as error:
        return [error] * len(messages)


async def is_unavailable(subscription: Subscription, within_s: float) -> None:
    """Receiving must fail before long; it may find out late."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            found = await subscription.receive(10, 1.0)
        except BrokerUnavailable:
            return
        expect(not found, f"a server that is down delivered {found}")
        expect(time.monotonic() < deadline, f"{within_s} s on, receive has not found out that the server is down")


async def refuses_to_open(broker: Broker, within_s: float) -> None:
    started = time.monotonic()
    try:
        await broker.open()
    except BrokerUnavailable:
        took = time.monotonic() - started
        expect(took < within_s, f"open took {took:.1f} s to say that the server is down")
    else:
        expect(False, "open answered although the server is down")


async def publish_in_the_end(stage: BrokerStage, broker: Broker, messages: Sequence[Message]) -> None:
    """As a relay does: again until every message is confirmed."""
    deadline = time.monotonic() + stage.subject.outage_s + stage.subject.patience_s
    left = list(messages)
    while left:
        answers = await outcome(broker, left)
        left = [message for message, answer in zip(left, answers, strict=True) if answer is not None]
        expect(time.monotonic() < deadline, f"the server is back, but {len(left)} messages get {answers[-1:]}")
        if left:
            await asyncio.sleep(0.05)


async def collect_in_the_end(stage: BrokerStage, subscription: Subscription, wanted: set[str]) -> list[Delivery]:
    """As a worker does: receive again until all of these have come, whatever else does."""
    deadline = time.monotonic() + stage.subject.outage_s + stage.subject.patience_s
    found: list[Delivery] = []
    while missing := wanted - {ids(delivery) for delivery in found}:
        expect(time.monotonic() < deadline, f"the server is back, but {len(missing)} of {len(wanted)} have not come")
        try:
            found += await subscription.receive(500, 0.5)
        except BrokerUnavailable:
            await asyncio.sleep(0.05)
    return found
