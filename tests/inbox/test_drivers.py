"""The inbox over every driver: its statements are theirs too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onefold._kernel.events import DeadLettered, Duplicate, Failed, Handled, Parked
from onefold._kernel.messages import Message
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.inbox.redrive import Filter, audited, cancel, preview, redrive, skip
from onefold.inbox.retention import reap
from tests.db.drivers import POSTGRES_ASYNC, SQLITE_ASYNC, OpenAsync
from tests.inbox.worlds import World, delivery, message


class DrivenWorld(World):
    """A world whose handlers write as their driver would have it."""

    execute: Any = None

    async def write(self, tx: Transaction[Any], name: str) -> None:
        await self.execute(tx.connection, f"INSERT INTO effects VALUES ('{name}')")


@asynccontextmanager
async def opened(open_driver: OpenAsync, address: str) -> AsyncIterator[DrivenWorld]:
    async with open_driver(address, 5.0) as subject:
        database: Any = subject.database
        world = DrivenWorld(database)
        world.execute = subject.execute
        await world.prepare()
        yield world


@pytest.fixture(params=[*SQLITE_ASYNC, *POSTGRES_ASYNC])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param in SQLITE_ASYNC:
        driver, address = SQLITE_ASYNC[request.param], str(request.getfixturevalue("sqlite_path"))
    else:
        driver, address = POSTGRES_ASYNC[request.param], request.getfixturevalue("postgres_dsn")
    async with opened(driver, address) as world:
        yield world


async def test_messages_are_handled_parked_failed_and_redriven(world: World) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await world.handler(given, tx)
        if given.id == "k2":
            raise RuntimeError("once")

    inbox = world.inbox(handler, order="strict", attempts=1)
    given = [message(f"k{number}", key="k", version=number) for number in (1, 2, 3)]
    events = [await world.deliver(inbox, one, redelivered=one.id == "k3") for one in (*given, given[0])]
    assert [type(event) for event in events] == [Handled, DeadLettered, Parked, Duplicate]
    chosen = Filter(consumer="billing", reason="once", ids=("k2",))
    assert (await world.flow(preview(world.dialect, chosen))).first == ["k2"]
    job = await world.flow(redrive(world.dialect, chosen, actor="ada"))
    await world.flow(cancel(world.dialect, job.id, actor="ada"))
    assert (await world.letters())["k2"].state == "dead"
    await world.flow(skip(world.dialect, "billing", "k2", actor="ada"))
    assert len(await world.flow(audited(world.dialect))) == 3
    assert [type(event) for event in await world.run_due(inbox)] == [Handled]
    assert await world.effects() == ["k1", "k3"]
    assert await world.flow(reap(world.dialect, inbox.consumer.name, inbox.consumer.retention_s)) == 0


async def test_batches_and_letters(world: World) -> None:
    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        for one in given:
            await world.handler(one, tx)
        if world.calls.count("m3") == 1:
            raise RuntimeError

    inbox = world.inbox(handler, batch=10)
    lane, tx = world.lane()
    assert await run_async(inbox.handle_batch([delivery(message(name)) for name in ("m1", "m2")], tx), lane)
    assert isinstance(await world.deliver(inbox, message("m3")), Failed)
    await world.hours_pass()
    assert [type(event) for event in await world.run_due(inbox)] == [Handled]
    assert (await world.effects(), await world.ledger()) == (["m1", "m2", "m3"], ["m1", "m2", "m3"])
