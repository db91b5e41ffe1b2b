"""What a stop cuts off, and what a consumer does before its broker is there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onefold._kernel.events import Handled
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError
from onefold.worker.consumer import Consuming
from tests.inbox.worlds import World, message
from tests.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, running, until


async def fail(given: Message) -> None:
    raise RuntimeError


async def letter_is_due(world: World, given: Message, **settings: Any) -> None:
    await world.deliver(world.inbox(fail, **settings), given)
    await world.hours_pass()


class Hanging:
    """A handler that does not end."""

    def __init__(self, world: World) -> None:
        self.entered = asyncio.Event()
        self._world = world

    async def __call__(self, given: Message, tx: Transaction[Any]) -> None:
        await self._world.write(tx, given.id)
        self.entered.set()
        await asyncio.Event().wait()


async def stopped_in(world: World, broker: MemoryBroker, **settings: Any) -> None:
    """A consumer that is stopped while its handler hangs, and has hardly any time to end."""
    handler = Hanging(world)

    async def handle(given: Message, tx: Transaction[Any]) -> None:
        await handler(given, tx)

    consumer = world.consumer(handle, lease_s=3600, **settings)
    async with running(Consuming(world.database, broker, [consumer], grace_s=0.05)) as stop:
        async with asyncio.timeout(PATIENCE_S):
            await handler.entered.wait()
        stop.set()


async def test_a_letter_that_a_stop_cuts_off_counts_as_not_started(world: World) -> None:
    """Three deployments would make it a suspect, and a dead letter that is said to kill its process."""
    await letter_is_due(world, message())
    await stopped_in(world, MemoryBroker())
    letter = (await world.letters())["m1"]
    assert (letter.started, letter.failed, letter.state) == (1, 1, "waiting")
    assert await world.run_due(world.inbox()) == [Handled("billing", "order.placed")]
    assert await world.effects() == ["m1"]


async def test_a_redelivery_that_a_stop_cuts_off_counts_as_not_started(world: World) -> None:
    broker = MemoryBroker()
    broker.put(message(), redelivered=True)
    await stopped_in(world, broker)
    letter = (await world.letters())["m1"]
    assert (letter.started, letter.failed, letter.state) == (0, 0, "waiting")


async def test_a_strict_key_that_a_stop_cuts_off_goes_on_where_it_was(world: World) -> None:
    """One is handled, those behind it are started together, and the stop comes while the next one runs."""
    given = [message(f"m{number}", key="k", version=number) for number in range(1, 5)]
    for each in given:
        await world.deliver(world.inbox(fail, order="strict"), each)
    await world.hours_pass()
    handler = Hanging(world)

    async def handle(one: Message, tx: Transaction[Any]) -> None:
        if one.id == "m3":
            await handler(one, tx)
        await world.write(tx, one.id)

    consumer = world.consumer(handle, lease_s=3600, order="strict")
    async with running(Consuming(world.database, MemoryBroker(), [consumer], grace_s=0.05)) as stop:
        async with asyncio.timeout(PATIENCE_S):
            await handler.entered.wait()
        stop.set()
    letters = await world.letters()
    assert [letters[name].started - letters[name].failed for name in sorted(letters)] == [0] * len(letters)
    await world.run_due(world.inbox(order="strict"))
    assert await world.effects() == ["m1", "m2", "m3", "m4"]


class Late(MemoryBroker):
    """Cannot be opened while it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = True


async def test_letters_are_run_before_the_broker_can_be_opened(world: World) -> None:
    await letter_is_due(world, message())
    broker = Late()
    async with running(Consuming(world.database, broker, [world.consumer()], listener=world.events.append)):
        await until(lambda: Handled("billing", "order.placed") in world.events)
        assert broker.subscriptions == 0
        broker.down = False
        broker.put(message("m2"))
        await until(lambda: broker.acked == ["m2"])
    assert await world.effects() == ["m1", "m2"]


async def test_a_broker_that_is_refused_ends_the_consumers_at_once(world: World) -> None:
    class Unsafe(MemoryBroker):
        async def open(self) -> None:
            raise ConfigurationError("acks=1")

    with pytest.raises(ConfigurationError, match="acks=1"):
        async with asyncio.timeout(PATIENCE_S):
            await Consuming(world.database, Unsafe(), [world.consumer()], grace_s=3600).run(asyncio.Event())
