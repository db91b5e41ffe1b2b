"""The boundaries around a broker: what is crossed is numbered in one sequence with the database's verbs, and a fault
on either side of a verb means what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold
from onefold._kernel.messages import Message
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold.brokers.local import LocalBroker
from onefold.db.sqlite import async_sqlite
from onefold.errors import BrokerUnavailable, StoreUnavailable
from tests.support.crash import Crossing, Strike
from tests.support.crash_brokers import BrokerBoundaries, lose_broker

MESSAGE = Message(id="m1", source="tests", topic="placed", data=b"1")


@dataclass
class Ground:
    """A local broker on a file, bare."""

    database: AsyncDatabase[Any]
    broker: Broker

    async def waiting(self) -> list[str]:
        """What the consumer would get now."""
        subscription = await self.broker.subscribe("desk", ["placed"])
        deliveries = await subscription.receive(10, 0.0)
        await subscription.give_back(deliveries)
        return [delivery.message.id for delivery in deliveries if delivery.message is not None]


@pytest.fixture
async def ground(sqlite_path: Path) -> AsyncIterator[Ground]:
    await AsyncOnefold(str(sqlite_path)).close()  # makes the tables
    database = async_sqlite(sqlite_path)
    ground = Ground(database, LocalBroker(database))
    await ground.waiting()  # the consumer is known from now on
    yield ground
    await database.close()


async def use(broker: Broker) -> None:
    """Every verb once."""
    await broker.open()
    await broker.publish([MESSAGE])
    subscription = await broker.subscribe("desk", ["placed"])
    deliveries = await subscription.receive(1, 1.0)
    await subscription.keep(deliveries)
    await subscription.give_back(deliveries)
    deliveries = await subscription.receive(1, 1.0)
    await subscription.ack(deliveries)
    await subscription.close()
    await broker.close()


async def test_every_verb_is_crossed_on_both_sides_and_numbered_as_it_happens(ground: Ground) -> None:
    boundaries = BrokerBoundaries()
    broker = boundaries.around_broker(ground.broker)
    await use(broker)
    verbs = ["open", "publish", "subscribe", "receive", "keep", "give_back", "receive", "ack", "unsubscribe", "close"]
    assert [(crossing.verb, crossing.edge) for crossing in boundaries.crossings] == [
        (verb, edge) for verb in verbs for edge in ("before", "after")
    ]
    assert [crossing.number for crossing in boundaries.crossings] == list(range(1, 21))
    assert (broker.keep_every_s, broker.redelivery_s) == (ground.broker.keep_every_s, ground.broker.redelivery_s)


async def test_what_a_broker_asks_of_its_database_is_numbered_between_its_own_edges(ground: Ground) -> None:
    boundaries = BrokerBoundaries()
    await boundaries.around_broker(LocalBroker(boundaries.around_async(ground.database))).publish([MESSAGE])
    first, *between, last = (str(crossing) for crossing in boundaries.crossings)
    assert (first, last) == ("crossing 1: before publish", f"crossing {len(between) + 2}: after publish")
    assert any("commit" in crossing for crossing in between)


@pytest.mark.parametrize(("number", "arrived"), [(1, []), (2, ["m1"])], ids=["before", "after"])
async def test_a_broker_lost_before_a_publish_has_nothing_and_after_it_has_the_message(
    ground: Ground, number: int, arrived: list[str]
) -> None:
    strike = Strike(number, lose_broker)
    with pytest.raises(BrokerUnavailable, match="on purpose at crossing"):
        await BrokerBoundaries(strike).around_broker(ground.broker).publish([MESSAGE])
    assert strike.struck is not None
    assert await ground.waiting() == arrived


@pytest.mark.parametrize(("edge", "left"), [("before", ["m1"]), ("after", [])])
async def test_a_broker_lost_before_an_ack_delivers_again_and_after_it_does_not(
    ground: Ground, edge: str, left: list[str]
) -> None:
    def act(crossing: Crossing) -> None:
        if (crossing.verb, crossing.edge) == ("ack", edge):
            lose_broker(crossing)

    await ground.broker.publish([MESSAGE])
    subscription = await BrokerBoundaries(act).around_broker(ground.broker).subscribe("desk", ["placed"])
    deliveries = await subscription.receive(1, 1.0)
    with pytest.raises(BrokerUnavailable):
        await subscription.ack(deliveries)
    await subscription.give_back(deliveries)
    assert await ground.waiting() == left


async def test_a_refusal_is_crossed_too() -> None:
    boundaries = BrokerBoundaries()
    with pytest.raises(BrokerUnavailable):
        await boundaries.around_broker(LocalBroker(Gone())).open()
    assert [crossing.edge for crossing in boundaries.crossings] == ["before", "after"]


class Gone:
    """A database that is not there."""

    dialect = "sqlite"

    async def acquire(self) -> Any:
        raise StoreUnavailable("gone")

    async def close(self) -> None:
        """Nothing to close."""
