"""Attacks on redrives: two at once, and one while the consumer is being deployed. Each letter is run by one, once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.inbox.letters import take
from onefold.inbox.redrive import Filter, Job, job_of, redrive
from onefold.worker.consumer import Consuming
from tests.inbox.worlds import World, message, world_of
from tests.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, running, until

KEYS = 5


@pytest.fixture(params=["sqlite", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_of(request) as world:
        yield world


async def fail_all(world: World, count: int, **settings: Any) -> list[str]:
    """So many dead letters; every third is of another topic."""

    async def fails(given: Message) -> None:
        raise RuntimeError("not yet")

    inbox = world.inbox(fails, attempts=1, **settings)
    names = [f"m{number:04}" for number in range(count)]
    for number, name in enumerate(names):
        topic = "order.paid" if number % 3 == 0 else "order.placed"
        await world.deliver(inbox, message(name, topic=topic))
    assert {letter.state for letter in (await world.letters()).values()} == {"dead"}
    return names


async def redriven(world: World, **chosen: Any) -> Job:
    found: Job = await world.flow(
        redrive(world.dialect, Filter(consumer="billing", **chosen), actor="ada", per_second=100_000.0)
    )
    return found


def consuming(world: World, broker: MemoryBroker, handler: Any, *, grace_s: float = 30.0, **settings: Any) -> Consuming:
    return Consuming(
        world.database,
        broker,
        [world.consumer(handler, **settings)],
        transaction=lambda lane: Transaction(lane, world.outbox.outgoing),
        grace_s=grace_s,
    )


async def emptied(world: World) -> bool:
    return not await world.letters()


@pytest.mark.parametrize("round_", range(3))
async def test_of_several_redrives_at_once_each_letter_belongs_to_one(world: World, round_: int) -> None:
    names = await fail_all(world, 60)
    some = tuple(random.Random(round_).sample(names, 30))
    jobs = await asyncio.gather(
        redriven(world),
        redriven(world, topic="order.paid"),
        redriven(world, ids=some),
        redriven(world, reason="not yet"),
    )
    assert sum(job.letters for job in jobs) == len(names), jobs
    async with running(consuming(world, MemoryBroker(), world.handler)):
        await until(lambda: emptied(world))
    assert await world.effects() == names
    assert sorted(world.calls) == names
    for job in jobs:
        after = await world.flow(job_of(world.dialect, job.id))
        assert (after.letters, after.waiting, after.dead) == (job.letters, 0, 0)


async def test_no_more_letters_are_taken_than_asked_for(world: World) -> None:
    """Of letters that were just redriven, a consumer with two slots took all: Postgres evaluated the limited subquery
    once for each letter, and each time it skipped those that it had locked before."""
    names = await fail_all(world, 40)
    await redriven(world)
    inbox = world.inbox(world.handler)
    taken: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < len(names):
            letters = await world.flow(take(inbox, 2))
            assert len(letters) <= 2
            taken += [letter.parcel.id for letter in letters]
    assert sorted(taken) == names


async def test_redrives_and_the_runs_of_the_same_letters_at_once(world: World) -> None:
    """Whoever redrives again and again while letters fail and run: none runs twice to its end, none is lost."""
    names = await fail_all(world, 40)
    fails = set(names[::4])

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        if given.id in fails:
            fails.remove(given.id)
            raise RuntimeError("once more")
        await world.handler(given, tx)

    async def insist() -> None:
        while not await emptied(world):
            await asyncio.gather(redriven(world), redriven(world))

    async with running(consuming(world, MemoryBroker(), handler, attempts=1)):
        async with asyncio.timeout(PATIENCE_S):
            await insist()
    assert await world.effects() == names
    assert sorted(world.calls) == names


@pytest.mark.parametrize(("abruptly", "deployments"), [(False, 4), (True, 2)])
async def test_a_redrive_goes_on_while_the_consumer_is_deployed(world: World, abruptly: bool, deployments: int) -> None:
    """Processes end while letters are at hand, by being told or by being cut off, and others come after them. (What was
    at hand when three processes died is dead on purpose.)"""
    names = await fail_all(world, 40)
    begun = [0]
    stop = asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        begun[0] += 1
        await world.write(tx, given.id)
        if begun[0] >= 6:
            await stop.wait()

    job = await redriven(world)
    assert job.letters == len(names)
    for _ in range(deployments):
        begun[0], stop = 0, asyncio.Event()
        process = consuming(
            world, MemoryBroker(), handler, lease_s=3.0, concurrency=2, grace_s=0.05 if abruptly else 30.0
        )
        task = asyncio.create_task(process.run(stop))
        await until(lambda: begun[0] >= 6)
        if abruptly:
            task.cancel()
        else:
            stop.set()
        await asyncio.gather(task, return_exceptions=True)
    stop.set()
    async with running(consuming(world, MemoryBroker(), handler, lease_s=3.0)):
        await until(lambda: emptied(world))
    assert await world.effects() == names
    after = await world.flow(job_of(world.dialect, job.id))
    assert (after.letters, after.waiting, after.dead) == (len(names), 0, 0)


async def _more(world: World, before: int, enough: int) -> bool:
    return len(await world.effects()) >= min(before + 3, enough)


async def test_a_strict_key_keeps_its_order_when_it_is_redriven_under_a_deployment(world: World) -> None:
    works = False

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        if not works:
            raise RuntimeError("not yet")
        await asyncio.sleep(0.002)
        world.calls.append(given.id)
        await world.write(tx, given.id)

    inbox = world.inbox(handler, attempts=1, order="strict", baseline_wait_s=0.0)
    names = []
    for version in range(1, 9):
        for key in range(KEYS):
            names.append(f"k{key}-{version}")
            await world.deliver(inbox, message(names[-1], key=f"k{key}", version=version))
    works = True
    await world.hours_pass()
    jobs = await asyncio.gather(redriven(world), redriven(world))
    assert sum(job.letters for job in jobs) == KEYS  # the heads; the others wait behind them
    settings: dict[str, Any] = {"order": "strict", "baseline_wait_s": 0.0, "lease_s": 1.0, "timeout_s": 0.5}
    for _ in range(3):
        stop = asyncio.Event()
        task = asyncio.create_task(consuming(world, MemoryBroker(), handler, **settings).run(stop))
        before = len(await world.effects())
        await until(lambda before=before: _more(world, before, len(names)))  # type: ignore[misc]
        stop.set()
        await task
    async with running(consuming(world, MemoryBroker(), handler, **settings)):
        await until(lambda: emptied(world))
    assert sorted(world.calls) == sorted(names)
    for key in range(KEYS):
        assert [name for name in world.calls if name.startswith(f"k{key}-")] == [f"k{key}-{n}" for n in range(1, 9)]
