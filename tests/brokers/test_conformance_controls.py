"""The broker suite finds brokers that break a promise: each of these breaks one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from onefold._kernel.messages import Confirm, Delivery, Message
from onefold._kernel.ports import Subscription, SubscriptionSeen
from onefold.brokers.redis import RedisBroker
from onefold.errors import BrokerUnavailable, ConsumerActive
from onefold.testing.conformance.brokers import OUTAGES, SCENARIOS, BrokerSubject, NotConforming, _broker_stage, check
from onefold.testing.servers import PrivateValkey
from tests.brokers.redis_subject import redis_subject
from tests.support.patience import PATIENCE_S

NAMED = {str(scenario): scenario for scenario in (*SCENARIOS, *OUTAGES)}
#: How long a broker that breaks a promise is waited for.
SHORT_S = 1.5


class Wrapped:
    """A broker, and its subscriptions, that do everything right."""

    inner: RedisBroker

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.left: list[Any] = []

    async def open(self) -> None:
        await self.inner.open()

    @property
    def keep_every_s(self) -> float:
        return self.inner.keep_every_s

    @property
    def redelivery_s(self) -> float:
        return self.inner.redelivery_s

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return await self.inner.publish(messages)

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        return Reader(self, await self.inner.subscribe(consumer, topics))

    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        await self.inner.unsubscribe(consumer, topics)

    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        return await self.inner.subscriptions(names)

    async def remove(self, consumer: str) -> int | None:
        return await self.inner.remove(consumer)

    async def close(self) -> None:
        await self.inner.close()

    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        return await inner.receive(limit, wait_s)

    async def ack(self, inner: Subscription, deliveries: Sequence[Delivery]) -> None:
        await inner.ack(deliveries)

    async def give_back(self, inner: Subscription, deliveries: Sequence[Delivery]) -> None:
        await inner.give_back(deliveries)

    async def keep(self, inner: Subscription, deliveries: Sequence[Delivery]) -> None:
        await inner.keep(deliveries)


class Reader:
    """A subscription whose verbs its broker may break."""

    def __init__(self, broker: Wrapped, inner: Subscription) -> None:
        self._broker = broker
        self._inner = inner

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        return await self._broker.receive(self._inner, limit, wait_s)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        await self._broker.ack(self._inner, deliveries)

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self._broker.give_back(self._inner, deliveries)

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        await self._broker.keep(self._inner, deliveries)

    async def close(self) -> None:
        await self._inner.close()


class Changes(Wrapped):
    """Changes what is delivered."""

    def change(self, delivery: Delivery) -> Delivery | None:
        raise NotImplementedError

    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        changed = [self.change(delivery) for delivery in await inner.receive(limit, wait_s)]
        return [delivery for delivery in changed if delivery is not None]


class CutsTheKey(Changes):
    def change(self, delivery: Delivery) -> Delivery:
        message = delivery.message
        if message is None or message.key is None:
            return delivery
        return replace(delivery, message=replace(message, key=message.key.strip("🎉")))


class AddsAHeader(Changes):
    def change(self, delivery: Delivery) -> Delivery:
        return replace(delivery, message=delivery.message and replace(delivery.message, headers={"by": "us"}))


class DropsWhatIsRedelivered(Changes):
    def change(self, delivery: Delivery) -> Delivery | None:
        return None if delivery.redelivered else delivery


class HidesThatItIsRedelivered(Changes):
    def change(self, delivery: Delivery) -> Delivery:
        return replace(delivery, redelivered=False)


class CallsEverythingRedelivered(Changes):
    def change(self, delivery: Delivery) -> Delivery:
        return replace(delivery, redelivered=True)


class DropsWhatItCannotRead(Changes):
    def change(self, delivery: Delivery) -> Delivery | None:
        return delivery if delivery.message else None


class ForgetsTheBytesItCannotRead(Changes):
    def change(self, delivery: Delivery) -> Delivery:
        return delivery if delivery.message else replace(delivery, data=b"")


class LosesAcks(Wrapped):
    async def ack(self, inner: Subscription, deliveries: Sequence[Delivery]) -> None: ...


class LosesWhatIsGivenBack(Wrapped):
    async def give_back(self, inner: Subscription, deliveries: Sequence[Delivery]) -> None:
        await inner.ack(deliveries)


class KeepsNothing(Wrapped):
    async def keep(self, inner: Subscription, deliveries: Sequence[Delivery]) -> None: ...


class AcksWhatIsReceived(Wrapped):
    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        found = await inner.receive(limit, wait_s)
        await inner.ack(found)
        return found


class GivesMoreThanAskedFor(Wrapped):
    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        return await inner.receive(limit + 1, wait_s)


class TurnsTheOrderRound(Wrapped):
    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        return (await inner.receive(limit, wait_s))[::-1]


class DoesNotWait(Wrapped):
    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        return await inner.receive(limit, 0.0)


class WaitsTooLong(Wrapped):
    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        return await inner.receive(limit, wait_s * 5)


class WaitsForAll(Wrapped):
    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        found = list(await inner.receive(limit, wait_s))
        if found:
            found += await inner.receive(limit - len(found), wait_s)
        return found


class LosesWhatComesToACancelledReceive(Wrapped):
    cancelled = False

    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        try:
            found = await inner.receive(limit, wait_s)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.cancelled and found:
            await inner.ack(found)
            return []
        return found


class GivesEachSubscriptionEverything(Wrapped):
    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        return await super().subscribe(consumer + uuid.uuid4().hex, topics)


class GivesAllConsumersOneShare(Wrapped):
    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        return await super().subscribe("all", topics)


class SubscribesToMoreTopics(Wrapped):
    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        return await super().subscribe(consumer, [*topics, *(f"{topic}.paid" for topic in topics)])


class SubscribesToOneTopicOnly(Wrapped):
    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        return await super().subscribe(consumer, topics[:1])


class LeavesATopicSubscribed(Wrapped):
    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        await super().unsubscribe(consumer, list(topics)[:1])


class MakesWhatItIsToUnsubscribe(Wrapped):
    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        await (await self.subscribe(consumer, list(topics))).close()
        await super().unsubscribe(consumer, list(topics)[1:])


class TakesTopicsFromOthers(Wrapped):
    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        for seen in await self.subscriptions([consumer]):
            if seen.consumer == consumer:
                await self.unsubscribe(consumer, set(seen.topics or ()) - set(topics))
        return await super().subscribe(consumer, topics)


class CountsWhatIsAcknowledged(Wrapped):
    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        return [replace(seen, waiting=(seen.waiting or 0) + 3) for seen in await super().subscriptions(names)]


class CountsLate(Wrapped):
    """As RabbitMQ, whose queue learns after the process that a channel was closed."""

    looks = 0

    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        self.looks += 1
        found = await super().subscriptions(names)
        return [replace(seen, waiting=0, attached=1) for seen in found] if self.looks < 3 else found

    async def remove(self, consumer: str) -> int | None:
        if any(seen.attached for seen in await self.subscriptions([consumer])):
            raise ConsumerActive(f"{consumer} has a process that is connected")
        return await super().remove(consumer)


class RemovesNothing(Wrapped):
    async def remove(self, consumer: str) -> int | None:
        found = [seen.waiting for seen in await self.subscriptions([consumer]) if seen.consumer == consumer]
        return found[0] if found else None


class RemovesEveryConsumer(Wrapped):
    async def remove(self, consumer: str) -> int | None:
        prefix = consumer.rpartition(".")[0]
        there = [seen.consumer for seen in await self.subscriptions([]) if seen.consumer.startswith(prefix)]
        dropped = {name: await super(RemovesEveryConsumer, self).remove(name) for name in there}
        return dropped.get(consumer)


class StartsWithWhatComesNext(Wrapped):
    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        subscription = await super().subscribe(consumer, topics)
        await subscription.ack(await subscription.receive(1_000, 0.0))
        return subscription


class ConfirmsWhatItDrops(Wrapped):
    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return [*await self.inner.publish(messages[:400]), *(None for _ in messages[400:])]


class AnswersInReverse(Wrapped):
    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return (await self.inner.publish(messages))[::-1]


class RefusesTheWholeCall(Wrapped):
    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        answers = await self.inner.publish(messages)
        return [next((answer for answer in answers if answer), None)] * len(messages)


class KnowsMessagesByTheirIdAlone(Wrapped):
    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        await self.inner.publish(list({message.id: message for message in messages}.values()))
        return [None] * len(messages)


class AnswersForNothing(Wrapped):
    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return await self.inner.publish(messages) or [None]


class MixesUpItsCalls(Wrapped):
    running = 0

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        self.running += 1
        try:
            return await self.inner.publish(messages if self.running == 1 else messages[1:])
        finally:
            self.running -= 1


class LeavesATaskBehind(Wrapped):
    async def close(self) -> None:
        self.left.append(asyncio.create_task(asyncio.Event().wait()))
        await super().close()


class LeavesAConnectionBehind(Wrapped):
    async def close(self) -> None:
        if self.inner._client:
            self.left.append(self.inner._client)
            self.inner._client = None


class ConfirmsWhateverHappens(Wrapped):
    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        with suppress(BrokerUnavailable):
            await self.inner.publish(messages)
        return [None] * len(messages)


class SaysNothingWhileTheServerIsDown(Wrapped):
    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        try:
            return await inner.receive(limit, wait_s)
        except BrokerUnavailable:
            await asyncio.sleep(wait_s)
            return []


class ClosesSlowly(Wrapped):
    async def close(self) -> None:
        await asyncio.sleep(SHORT_S + 0.1)
        await super().close()


class DoesNotComeBack(Wrapped):
    lost: BrokerUnavailable | None = None

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        if self.lost:
            raise self.lost
        answers = await self.inner.publish(messages)
        self.lost = next((answer for answer in answers if isinstance(answer, BrokerUnavailable)), None)
        return answers


BROKEN: dict[type[Wrapped], str] = {
    CutsTheKey: "every_part_of_a_message_arrives_as_it_was",
    AddsAHeader: "every_part_of_a_message_arrives_as_it_was",
    ConfirmsWhatItDrops: "many_messages_in_one_call_are_confirmed_and_come",
    MixesUpItsCalls: "calls_at_the_same_time_get_each_its_own_confirms",
    AnswersForNothing: "to_publish_nothing_is_nothing",
    AnswersInReverse: "a_message_that_is_too_large_is_refused_alone",
    RefusesTheWholeCall: "a_message_that_is_too_large_is_refused_alone",
    KnowsMessagesByTheirIdAlone: "the_same_id_of_two_sources_is_two_messages",
    TurnsTheOrderRound: "calls_one_after_the_other_keep_their_order",
    DropsWhatItCannotRead: "a_message_without_an_envelope_comes_with_its_bytes_and_says_so",
    ForgetsTheBytesItCannotRead: "a_message_without_an_envelope_comes_with_its_bytes_and_says_so",
    GivesMoreThanAskedFor: "no_more_is_received_than_asked_for",
    DoesNotWait: "a_receive_ends_in_time_and_not_before",
    WaitsTooLong: "a_receive_ends_in_time_and_not_before",
    WaitsForAll: "a_receive_that_waits_does_not_wait_for_more_than_the_first",
    LosesWhatComesToACancelledReceive: "a_receive_that_is_cancelled_loses_nothing",
    SubscribesToMoreTopics: "consumers_get_the_topics_they_asked_for",
    SubscribesToOneTopicOnly: "a_consumer_that_comes_back_with_another_topic_gets_that_too",
    GivesAllConsumersOneShare: "every_consumer_gets_every_message",
    GivesEachSubscriptionEverything: "subscriptions_of_one_consumer_share",
    LeavesATopicSubscribed: "what_is_sent_to_a_topic_after_it_was_unsubscribed_does_not_come",
    MakesWhatItIsToUnsubscribe: "to_unsubscribe_a_consumer_that_is_not_there_is_nothing",
    TakesTopicsFromOthers: "a_process_with_fewer_topics_takes_none_from_another",
    CountsWhatIsAcknowledged: "what_waits_for_a_consumer_is_counted",
    RemovesNothing: "a_consumer_that_was_removed_keeps_nothing_and_the_others_keep_theirs",
    RemovesEveryConsumer: "a_consumer_that_was_removed_keeps_nothing_and_the_others_keep_theirs",
    StartsWithWhatComesNext: "a_consumer_misses_nothing_while_it_is_away",
    LosesAcks: "what_is_acknowledged_does_not_come_again",
    AcksWhatIsReceived: "what_is_not_acknowledged_comes_again",
    DropsWhatIsRedelivered: "what_is_not_acknowledged_comes_again",
    HidesThatItIsRedelivered: "what_is_not_acknowledged_comes_again",
    CallsEverythingRedelivered: "what_comes_first_is_not_said_to_come_again",
    LosesWhatIsGivenBack: "what_is_given_back_comes_again",
    KeepsNothing: "what_is_kept_is_not_given_to_others",
    LeavesATaskBehind: "what_is_closed_leaves_nothing_behind",
    LeavesAConnectionBehind: "what_is_closed_leaves_nothing_behind",
}

FRAIL: dict[type[Wrapped], str] = {
    ConfirmsWhateverHappens: "a_server_that_is_down_is_said_to_be_unavailable_soon",
    SaysNothingWhileTheServerIsDown: "a_server_that_is_down_is_said_to_be_unavailable_soon",
    ClosesSlowly: "a_broker_is_closed_while_its_server_is_down",
    DoesNotComeBack: "a_broker_works_again_when_its_server_is_back",
    AcksWhatIsReceived: "what_was_not_acknowledged_comes_again_although_the_server_was_killed",
}


@pytest.fixture(scope="module")
def mortal_valkey() -> Iterator[PrivateValkey]:
    with PrivateValkey() as server:
        yield server


@asynccontextmanager
async def subject_of(
    kind: type[Wrapped], server: PrivateValkey, patience_s: float = SHORT_S
) -> AsyncIterator[BrokerSubject]:
    """A subject whose brokers are of this kind; what they leave behind is cleared away."""
    made: list[Wrapped] = []
    async with redis_subject(server) as whole:

        def broker() -> Wrapped:
            made.append(kind(whole.broker()))
            return made[-1]

        before = asyncio.all_tasks()
        yield replace(whole, broker=broker, patience_s=patience_s, outage_s=patience_s)
        for client in [left for broken in made for left in broken.left if isinstance(left, Redis)]:
            await client.aclose()
        for task in asyncio.all_tasks() - before:
            task.cancel()


@pytest.mark.parametrize(("kind", "name"), BROKEN.items(), ids=[kind.__name__ for kind in BROKEN])
async def test_a_broker_that_breaks_a_promise_is_found(kind: type[Wrapped], name: str, valkey: PrivateValkey) -> None:
    async with subject_of(kind, valkey) as subject:
        with pytest.raises(NotConforming):
            await check(NAMED[name], subject)


@pytest.mark.parametrize("name", sorted(set(BROKEN.values())))
async def test_a_broker_that_is_only_wrapped_keeps_the_same_promises(name: str, valkey: PrivateValkey) -> None:
    async with subject_of(Wrapped, valkey, PATIENCE_S) as subject:
        await check(NAMED[name], subject)


async def test_a_broker_that_counts_late_what_a_closed_process_had_keeps_its_promises(valkey: PrivateValkey) -> None:
    async with subject_of(CountsLate, valkey, PATIENCE_S) as subject:
        await check(NAMED["what_waits_for_a_consumer_is_counted"], subject)
        await check(NAMED["a_consumer_that_was_removed_keeps_nothing_and_the_others_keep_theirs"], subject)


@pytest.mark.parametrize(("kind", "name"), FRAIL.items(), ids=[kind.__name__ for kind in FRAIL])
async def test_a_broker_that_does_not_survive_is_found(
    kind: type[Wrapped], name: str, mortal_valkey: PrivateValkey
) -> None:
    async with subject_of(kind, mortal_valkey) as subject:
        with pytest.raises(NotConforming):
            await check(NAMED[name], replace(subject, outage=mortal_valkey))


@pytest.mark.parametrize("name", sorted(set(FRAIL.values())))
async def test_a_broker_that_is_only_wrapped_survives(name: str, mortal_valkey: PrivateValkey) -> None:
    async with subject_of(Wrapped, mortal_valkey, PATIENCE_S) as subject:
        await check(NAMED[name], replace(subject, outage=mortal_valkey))


async def test_a_broker_that_stores_what_it_has_already_got_is_found(valkey: PrivateValkey) -> None:
    async with subject_of(Wrapped, valkey) as subject:
        with pytest.raises(NotConforming, match="were expected"):
            await check(NAMED["what_is_published_twice_under_one_id_comes_once"], replace(subject, deduplicates=True))


async def test_a_broker_that_holds_on_to_what_nobody_keeps_is_found(valkey: PrivateValkey) -> None:
    async with subject_of(Wrapped, valkey) as subject:
        for_ever = replace(subject, broker=lambda: RedisBroker(valkey.url, lease_s=1_000.0))
        with pytest.raises(NotConforming, match="0 of 1 messages came"):
            await check(NAMED["what_is_not_kept_is_given_to_others"], for_ever)


class NeverAnswers(Wrapped):
    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")


async def test_a_broker_that_hangs_is_found(valkey: PrivateValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_broker_stage, "HANG_S", 0.5)
    async with subject_of(NeverAnswers, valkey, patience_s=0.1) as subject:
        with pytest.raises(NotConforming, match=r"took longer than 0\.9 s"):
            await check(NAMED["what_is_acknowledged_does_not_come_again"], subject)
