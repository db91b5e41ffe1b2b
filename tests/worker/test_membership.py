"""A consumer gets the topics that it has, and none that it has had; and in a rolling deployment old and new share."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Message
from onefold._app.base_app import run_flow, with_broker
from onefold._inbox import registry
from onefold._inbox.registry import ALIVE_S, FORMER_S, RunningProcess, judge, list_processes
from onefold._kernel.checkout import fetch_rows, with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement
from onefold._kernel.ports import Broker, ManagesSubscriptions
from onefold._kernel.topics import matches_any
from onefold._worker import membership
from onefold._worker.consumer_admin import remove, survey
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.brokers._adapters import BrokerGiven
from onefold.brokers.nats import NatsBroker
from onefold.brokers.rabbitmq import RabbitBroker
from onefold.brokers.redis import RedisBroker
from onefold.errors import ConfigurationError, ConsumerActive
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

PLACES = ("local-sqlite", "local-postgres", "nats", "valkey", "rabbitmq")


class Place:
    """A database and a broker, and processes of one consumer over them."""

    def __init__(self, address: str, broker: BrokerGiven) -> None:
        self.address = address
        self.broker = broker
        self.handled: list[str] = []
        #: What a process handled that does not have the topic.
        self.astray: list[str] = []
        #: Streams do not: what is not asked for any more stays in them, for as long as they keep it.
        self.hands_out_what_waits = True

    def process(self, *topics: str, name: str = "billing") -> AsyncOnefold:
        once = AsyncOnefold(self.address, source="shop", broker=self.broker)

        @once.consumer(name, topic=topics)
        async def handle(message: Message) -> None:
            self.handled.append(message.topic)
            if not matches_any(topics, message.topic):
                self.astray.append(message.topic)

        return once

    @asynccontextmanager
    async def running(self, *topics: str, name: str = "billing") -> AsyncIterator[membership.Membership]:
        """A process at work, from when it has subscribed on."""
        once = self.process(*topics, name=name)
        stop = asyncio.Event()
        begun: list[ConsumerRunner] = []
        task = asyncio.create_task(once.consume(stop, begun=begun.append))
        try:
            await self.manage(lambda database, broker: self._there(database, name, topics))
            [gate] = begun[0]._gates
            await until(lambda: gate.worker is not None and gate.worker._membership.subscribed)
            assert gate.worker is not None
            yield gate.worker._membership
        finally:
            stop.set()
            async with asyncio.timeout(PATIENCE_S):
                await task
            await once.close()

    async def _there(self, database: Any, name: str, topics: Sequence[str]) -> None:
        async def registered() -> bool:
            once = self.process("unused")
            try:
                found = await run_flow(once, lambda dialect: list_processes(dialect, name))
            finally:
                await once.close()
            return any(member.alive and member.topics == set(topics) for member in found)

        await until(registered)

    async def publish(self, *topics: str) -> None:
        async def work(database: Any, broker: Broker) -> None:
            # Some brokers refuse what nobody asked for.
            other = await broker.subscribe("archive", sorted({"orders", "payments", "refunds"}))
            await other.close()
            sent = [Message(id=str(uuid.uuid4()), source="shop", topic=topic, data=b"{}") for topic in topics]
            assert list(await broker.publish(sent)) == [None] * len(sent)

        await self.manage(work)

    async def manage(self, work: Callable[[Any, Broker], Any]) -> Any:
        once = self.process("unused")
        try:
            return await with_broker(once, work)
        finally:
            await once.close()

    async def kill_all(self, *, hours: int = 1) -> None:
        """As if every process that has not left had died long ago."""
        once = self.process("unused")

        def age(dialect: str) -> Any:
            sql = (
                f"UPDATE onefold_consumer SET seen_at = seen_at - interval '{hours} hour', left_at = NULL"
                if dialect == "postgres"
                else f"UPDATE onefold_consumer SET seen_at_ms = seen_at_ms - {hours * 3600000}, left_at_ms = NULL"
            )
            return _batch(Statement(sql))

        await run_flow(once, age)
        await once.close()

    async def waiting(self) -> list[tuple[Any, ...]]:
        """Topic, starts and failures of the failed messages that wait."""
        once = self.process("unused")
        try:
            return await run_flow(once, lambda dialect: _waiting())
        finally:
            await once.close()

    async def dead_letters(self) -> list[str | None]:
        """The topics of those there are."""
        once = self.process("unused")
        try:
            return await run_flow(once, lambda dialect: _dead_letters())
        finally:
            await once.close()


async def _waiting() -> list[tuple[Any, ...]]:
    sql = "SELECT topic, started, failed FROM onefold_letter WHERE state = 'waiting' ORDER BY topic"
    return [tuple(row) for row in await with_connection(lambda: fetch_rows(Statement(sql)))]


async def _dead_letters() -> list[str | None]:
    async def work() -> list[str | None]:
        found = await Fetch(Statement("SELECT topic FROM onefold_letter WHERE state = 'dead'"))
        return [None if topic is None else str(topic) for (topic,) in found]

    return await with_connection(work)


async def _batch(statement: Statement) -> None:
    async def work() -> None:
        await Batch((Boundary.BEGIN, statement, Boundary.COMMIT))

    await with_connection(work)


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    unique = f"t{secrets.token_hex(6)}"
    given: BrokerGiven = "local"
    address = str(tmp_path / "shop.db")
    match request.param:
        case "local-postgres":
            address = request.getfixturevalue("postgres_dsn")
        case "nats":
            url = request.getfixturevalue("nats").url
            given = lambda: NatsBroker(url, stream=unique)  # noqa: E731
        case "valkey":
            url = request.getfixturevalue("valkey").url
            given = lambda: RedisBroker(url, prefix=unique)  # noqa: E731
        case "rabbitmq":
            url = request.getfixturevalue("rabbitmq").url
            given = lambda: RabbitBroker(url, exchange=unique, queue_prefix=unique, queue_type="classic")  # noqa: E731
        case _:
            assert request.param == "local-sqlite"
    made = Place(address, given)
    made.hands_out_what_waits = request.param not in ("nats", "valkey")
    once = made.process("unused")
    await once.migrate()
    await once.close()
    return made


async def test_a_topic_that_was_removed_from_a_consumer_is_not_delivered(place: Place) -> None:
    async with place.running("orders", "payments"):
        await place.publish("payments")
        await until(lambda: place.handled == ["payments"])
    place.handled.clear()
    async with place.running("orders"):
        await place.publish("payments", "orders")
        await until(lambda: "orders" in place.handled)
    # By a consumer that has it again: what was sent in between was not kept for it.
    assert place.handled == ["orders"]
    [seen] = [each for each in await place.manage(survey) if each.name == "billing"]
    assert (seen.topics, seen.waiting) == (("orders",), 0)


@pytest.mark.usefixtures("nobody_starts_again")
async def test_what_was_sent_to_a_removed_topic_before_is_not_handled(place: Place) -> None:
    async with place.running("orders", "payments"):
        pass
    await place.publish("payments", "payments", "orders")

    async def kept() -> bool:
        return await place.dead_letters() == ["payments", "payments"]

    async with place.running("orders"):
        await until(lambda: "orders" in place.handled)
        if place.hands_out_what_waits:
            await until(kept)  # for a person to decide about: a release that has the topic may come back
    assert place.handled == ["orders"]


async def test_the_same_after_a_process_that_was_killed(place: Place) -> None:
    async with place.running("orders", "payments"):
        pass
    await place.kill_all()
    async with place.running("orders"):
        await place.publish("payments", "orders")
        await until(lambda: "orders" in place.handled)
    assert place.handled == ["orders"]


@pytest.fixture
def nobody_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has ended is not waited for."""
    monkeypatch.setattr(registry, "RESTART_S", -1.0)


async def test_old_and_new_side_by_side_take_no_topic_from_each_other(place: Place) -> None:
    """The new release has dropped payments and added refunds. While an old process runs, all three are delivered."""
    async with place.running("orders", "payments"):
        async with place.running("orders", "refunds"):
            await place.publish("orders", "payments", "refunds")
            await until(lambda: sorted(place.handled) == ["orders", "payments", "refunds"])
        async with place.running("orders", "payments"):  # an old one restarts
            pass
        async with place.running("orders", "refunds"):  # a new one comes back
            await place.publish("refunds")
            await until(lambda: place.handled.count("refunds") == 2)
    assert place.astray == []


async def test_a_message_of_a_topic_that_only_the_other_process_has_is_kept_for_that_one(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker hands it to either of them."""
    async with place.running("orders"), place.running("orders", "refunds"):
        await place.publish(*["refunds"] * 20, *["orders"] * 20)
        await until(lambda: len(place.handled) >= 40)
    assert sorted(place.handled) == ["orders"] * 20 + ["refunds"] * 20
    assert place.astray == []
    assert await place.dead_letters() == []
    told = [record.getMessage() for record in caplog.records if "does not handle" in record.getMessage()]
    assert len(told) <= 1
    assert all("consumer 'billing' got a message of topic 'refunds'" in line for line in told)


@pytest.mark.parametrize("place", [each for each in PLACES if each != "valkey"], indirect=True)
async def test_what_only_the_new_release_has_waits_for_it_without_an_attempt(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It has subscribed and is gone for now: an old process alone gets all there is. (Redis hands each process what
    that has asked for.)"""
    new = place.running("orders", "refunds")
    async with place.running("orders"):
        await new.__aenter__()
        await new.__aexit__(None, None, None)
        await place.publish("refunds", "refunds", "orders")

        async def left() -> bool:
            return await place.waiting() == [("refunds", 0, 0)] * 2

        await until(left)
        await until(lambda: place.handled == ["orders"])
        told = [record.getMessage() for record in caplog.records if "does not handle" in record.getMessage()]
        assert len(told) == 1
        assert "it is kept for that one" in told[0]
    async with place.running("orders", "refunds"):
        await until(lambda: place.handled == ["orders", "refunds", "refunds"])
    assert place.astray == []
    assert await place.waiting() == []


async def test_what_the_old_release_had_goes_with_its_last_process(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "BEAT_S", 0.05)
    async with place.running("orders", "payments"):
        new = place.running("orders")
        process = await new.__aenter__()
    try:
        await until(lambda: "payments" in process._ended)  # and unsubscribed, which comes first
        await place.publish("payments", "orders")
        await until(lambda: "orders" in place.handled)
        assert place.handled == ["orders"]
    finally:
        await new.__aexit__(None, None, None)


async def test_a_process_that_was_taken_for_dead_gets_its_topics_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was away: the first that finds it again takes the others for dead, and they subscribe again."""
    monkeypatch.setattr(membership, "BEAT_S", 0.0)

    async def work(database: Any, broker: Broker) -> None:
        def process(*topics: str) -> membership.Membership:
            [consumer] = place.process(*topics)._consumers
            return membership.Membership(database, broker, consumer)

        old, new = process("orders", "payments"), process("orders")
        await (await old.subscribe()).close()
        await place.kill_all()
        await (await new.subscribe()).close()
        await old.stay(asyncio.Event())
        await new.stay(asyncio.Event())
        await broker.publish([Message(id="1", source="shop", topic="payments", data=b"{}")])
        subscription = await broker.subscribe("billing", ["orders", "payments"])
        found = await subscription.receive(1, PATIENCE_S)
        assert [delivery.message.topic for delivery in found if delivery.message] == ["payments"]
        await subscription.close()

    await place.manage(work)


async def test_a_renamed_consumer_is_listed_and_removed(place: Place) -> None:
    async with place.running("orders", name="old-name"):
        pass
    await place.publish("orders", "orders", "orders")
    async with place.running("orders", name="new-name"):
        with pytest.raises(ConsumerActive, match="'new-name' cannot be removed while 1 process"):
            await place.manage(lambda database, broker: remove(database, broker, "new-name", "anna"))
        seen = {each.name: each for each in await place.manage(survey)}
        assert (seen["old-name"].waiting, seen["old-name"].running, seen["new-name"].running) == (3, 0, 1)
        assert seen["old-name"].seen_s is not None
        removed = await place.manage(lambda database, broker: remove(database, broker, "old-name", "anna"))
        assert (removed.waiting, removed.failed_messages) == (3, 0)
        assert "old-name" not in {each.name for each in await place.manage(survey)}
        with pytest.raises(ConfigurationError, match="there is no consumer 'old-name'"):
            await place.manage(lambda database, broker: remove(database, broker, "old-name", "anna"))
        await place.publish("orders")
        assert "old-name" not in {each.name for each in await place.manage(survey)}


@pytest.mark.parametrize("place", ["local-sqlite", "local-postgres"], indirect=True)
async def test_what_a_release_without_a_registry_subscribed_to_is_taken_away_a_day_later(place: Place) -> None:
    """Its processes may run beside those of the new release, and cannot say so."""

    async def subscribe(database: Any, broker: Broker) -> None:
        await (await broker.subscribe("billing", ["orders", "payments"])).close()

    await place.manage(subscribe)
    async with place.running("orders"):
        await place.publish("payments")

        async def left() -> bool:
            return await place.waiting() == [("payments", 0, 0)]

        await until(left)
        [seen] = [each for each in await place.manage(survey) if each.name == "billing"]
        assert (seen.topics, seen.running) == (("orders", "payments"), 1)
    await place.kill_all(hours=25)

    async def dropped() -> bool:
        return await place.dead_letters() == ["payments"]

    async with place.running("orders"):
        await place.publish("payments", "orders")
        await until(lambda: "orders" in place.handled)
        await until(dropped)
    assert place.handled == ["orders"]


async def test_a_removed_consumer_leaves_nothing_in_the_database(place: Place) -> None:
    async with place.running("orders", name="old-name"):
        await place.publish("orders")
        await until(lambda: place.handled == ["orders"])
    removed = await place.manage(lambda database, broker: remove(database, broker, "old-name", "anna"))
    assert removed.handled == 1


@pytest.mark.parametrize("place", ["local-sqlite"], indirect=True)
async def test_a_removal_that_was_cut_off_after_the_broker_s_part_can_be_finished(place: Place) -> None:
    async with place.running("orders", name="old-name"):
        await place.publish("orders")
        await until(lambda: place.handled == ["orders"])

    async def begin(database: Any, broker: Broker) -> None:
        assert isinstance(broker, ManagesSubscriptions)
        await broker.remove("old-name")

    await place.manage(begin)
    removed = await place.manage(lambda database, broker: remove(database, broker, "old-name", "anna"))
    assert removed.handled == 1


def member(process: str, *topics: str, started: int = 0, seen_s: float = 0.0, ended: bool = False) -> RunningProcess:
    return RunningProcess(
        consumer="c", process=process, topics=frozenset(topics), started_ms=started, seen_s=seen_s, ended=ended
    )


def test_wanted_is_what_lives_or_was_started_last() -> None:
    old, new = member("old", "a", "b", started=1), member("new", "a", "c", started=2)
    assert judge([old, new]).wanted == {"a", "b", "c"}
    dead = replace(new, seen_s=ALIVE_S + 1)
    assert judge([old, dead]).wanted == {"a", "b", "c"}  # it crashed, and will come back
    gone = replace(old, ended=True)
    found = judge([gone, new])
    assert (set(found.wanted), set(found.former), found.outdated) == ({"a", "c"}, {"b"}, ())
    ancient = replace(old, ended=True, seen_s=FORMER_S + 1)
    assert judge([ancient, new]).outdated == ("old",)
    assert judge([replace(gone, topics=frozenset("a")), new]).outdated == ("old",)
    assert judge([]).wanted == frozenset()


def test_every_broker_that_keeps_messages_manages_subscriptions() -> None:
    kinds = (
        NatsBroker("nats://localhost:1"),
        RedisBroker("redis://localhost:1"),
        RabbitBroker("amqp://localhost:1"),
    )
    assert all(isinstance(kind, ManagesSubscriptions) for kind in kinds)
