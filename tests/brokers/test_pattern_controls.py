"""The broker suite finds brokers that get patterns of topics wrong: each of these breaks one promise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from onefold._kernel.messages import Delivery
from onefold._kernel.ports import Subscription, SubscriptionSeen
from onefold._kernel.topics import is_pattern, matches, widest
from onefold.testing.conformance.brokers import BrokerSubject, NotConforming, check
from onefold.testing.servers import PrivateValkey
from tests.brokers.local_subject import local_on_sqlite
from tests.brokers.test_conformance_controls import NAMED, SHORT_S, Changes, Wrapped, subject_of
from tests.support.patience import PATIENCE_S


class Translates(Wrapped):
    """Subscribes to something else than it was asked to."""

    matches_patterns = True

    def translated(self, topics: Sequence[str]) -> Sequence[str]:
        return topics

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        return await super().subscribe(consumer, self.translated(topics))


class TakesOneForMore(Translates):
    def translated(self, topics: Sequence[str]) -> Sequence[str]:
        return [f"{topic[:-1]}>" if topic.endswith("*") else topic for topic in topics]


class TakesMoreForOne(Translates):
    def translated(self, topics: Sequence[str]) -> Sequence[str]:
        return [topic.replace(">", "*") for topic in topics]


class TakesMoreForNone(Translates):
    def translated(self, topics: Sequence[str]) -> Sequence[str]:
        return [*topics, *(topic.removesuffix(".>") for topic in topics)]


class LeavesOutWhatAPatternStandsFor(Translates):
    def translated(self, topics: Sequence[str]) -> Sequence[str]:
        return widest(topics)


class TakesPatternsForTopics(Translates):
    def translated(self, topics: Sequence[str]) -> Sequence[str]:
        return [topic.replace("*", "star") for topic in topics]


class CallsMessagesByThePattern(Translates, Changes):
    def change(self, delivery: Delivery) -> Delivery:
        message = delivery.message
        return replace(delivery, message=message and replace(message, topic=message.topic.replace("placed", "*")))


class DeliversForEachPattern(Translates):
    async def receive(self, inner: Subscription, limit: int, wait_s: float) -> Sequence[Delivery]:
        return [delivery for delivery in await inner.receive(limit, wait_s) for _ in range(2)][:limit]


class KeepsWhatItHad(Translates):
    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        had = [seen.topics or () for seen in await self.subscriptions([consumer]) if seen.consumer == consumer]
        return await super().subscribe(consumer, [*had[0]] if had else topics)


class KeepsPatterns(Translates):
    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        await super().unsubscribe(consumer, [topic for topic in topics if not is_pattern(topic)])


class GivesUpWhatStandsForATopic(Translates):
    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        had = [seen.topics or () for seen in await self.subscriptions([consumer]) if seen.consumer == consumer]
        gone = [topic for topic in had[0] if any(matches(topic, each) or matches(each, topic) for each in topics)]
        await super().unsubscribe(consumer, gone)


class ListsTheWidest(Translates):
    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        found = await super().subscriptions(names)
        return [replace(seen, topics=tuple(each[:-1] for each in seen.topics or ())) for seen in found]


BROKEN: dict[type[Translates], str] = {
    TakesOneForMore: "a_pattern_gets_the_topics_it_stands_for_and_no_others",
    TakesMoreForOne: "a_pattern_gets_the_topics_it_stands_for_and_no_others",
    TakesMoreForNone: "a_pattern_gets_the_topics_it_stands_for_and_no_others",
    TakesPatternsForTopics: "a_pattern_gets_the_topics_it_stands_for_and_no_others",
    CallsMessagesByThePattern: "a_pattern_gets_the_topics_it_stands_for_and_no_others",
    DeliversForEachPattern: "what_several_patterns_of_a_consumer_stand_for_comes_once",
    KeepsWhatItHad: "a_consumer_that_comes_back_with_a_pattern_gets_what_that_stands_for",
    KeepsPatterns: "a_pattern_and_a_topic_that_it_stands_for_are_given_up_each_alone",
    GivesUpWhatStandsForATopic: "a_pattern_and_a_topic_that_it_stands_for_are_given_up_each_alone",
    LeavesOutWhatAPatternStandsFor: "a_pattern_and_a_topic_that_it_stands_for_are_given_up_each_alone",
    ListsTheWidest: "a_pattern_and_a_topic_that_it_stands_for_are_given_up_each_alone",
}


@asynccontextmanager
async def local(kind: Callable[[object], Translates], patience_s: float) -> AsyncIterator[BrokerSubject]:
    async with local_on_sqlite(None) as whole:
        yield replace(whole, broker=lambda: kind(whole.broker()), patience_s=patience_s)


@pytest.mark.parametrize(("kind", "name"), BROKEN.items(), ids=[kind.__name__ for kind in BROKEN])
async def test_a_broker_that_gets_patterns_wrong_is_found(kind: type[Translates], name: str) -> None:
    async with local(kind, SHORT_S) as subject:
        with pytest.raises(NotConforming):
            await check(NAMED[name], subject)


@pytest.mark.parametrize("name", sorted(set(BROKEN.values())))
async def test_a_broker_that_is_only_wrapped_keeps_the_same_promises(name: str) -> None:
    async with local(Translates, PATIENCE_S) as subject:
        assert NAMED[name].applies(subject)
        await check(NAMED[name], subject)


async def test_a_broker_that_takes_a_pattern_for_a_topic_is_found(valkey: PrivateValkey) -> None:
    class TakesThem(TakesPatternsForTopics):
        matches_patterns = False

    async with subject_of(TakesThem, valkey) as subject:
        scenario = NAMED["a_pattern_is_refused_and_named"]
        assert scenario.applies(subject)
        with pytest.raises(NotConforming, match="has taken"):
            await check(scenario, subject)
