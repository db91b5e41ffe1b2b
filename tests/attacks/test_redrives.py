"""Attacks on redrives: two at once, and one while the consumer is being deployed. Each failed message is run by one,
once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onefold._inbox.failed_messages import take
from onefold._inbox.redrive import Filter, Job, job_of, redrive
from onefold._kernel.messages import Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.transaction import Transaction
from onefold._worker.consumer_runner import ConsumerRunner
from tests.inbox.backends import Backend, backend_of, message
from tests.inbox.conftest import inbox_database, inbox_dsn
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, running, until

__all__ = ["inbox_database", "inbox_dsn"]

KEYS = 5


@pytest.fixture(params=["sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with backend_of(request) as backend:
        yield backend


async def fail_all(backend: Backend, count: int, **settings: Any) -> list[str]:
    """So many dead letters; every third is of another topic."""

    async def fails(given: Message) -> None:
        raise RuntimeError("not yet")

    inbox = backend.inbox(fails, attempts=1, **settings)
    names = [f"m{number:04}" for number in range(count)]
    for number, name in enumerate(names):
        topic = "order.paid" if number % 3 == 0 else "order.placed"
        await backend.deliver(inbox, message(name, topic=topic))
    assert {failed_message.state for failed_message in (await backend.failed_messages()).values()} == {"dead"}
    return names


async def redriven(backend: Backend, **chosen: Any) -> Job:
    found: Job = await backend.flow(
        redrive(backend.dialect, Filter(consumer="billing", **chosen), actor="ada", per_second=100_000.0)
    )
    return found


def consuming(
    backend: Backend, broker: MemoryBroker, handler: Any, *, grace_s: float = 30.0, **settings: Any
) -> ConsumerRunner:
    return ConsumerRunner(
        backend.database,
        broker,
        [backend.consumer(handler, **settings)],
        transaction=lambda executor: OwnedTransaction(executor, backend.outbox.new_buffer),
        grace_s=grace_s,
    )


async def emptied(backend: Backend) -> bool:
    return not await backend.failed_messages()


@pytest.mark.parametrize("round_", range(3))
async def test_of_several_redrives_at_once_each_letter_belongs_to_one(backend: Backend, round_: int) -> None:
    names = await fail_all(backend, 60)
    some = tuple(random.Random(round_).sample(names, 30))
    jobs = await asyncio.gather(
        redriven(backend),
        redriven(backend, topic="order.paid"),
        redriven(backend, ids=some),
        redriven(backend, reason="not yet"),
    )
    assert sum(job.failed_messages for job in jobs) == len(names), jobs
    async with running(consuming(backend, MemoryBroker(), backend.handler)):
        await until(lambda: emptied(backend))
    assert await backend.effects() == names
    assert sorted(backend.calls) == names
    for job in jobs:
        after = await backend.flow(job_of(backend.dialect, job.id))
        assert (after.failed_messages, after.waiting, after.dead) == (job.failed_messages, 0, 0)


async def test_no_more_letters_are_taken_than_asked_for(backend: Backend) -> None:
    """Of failed messages that were just redriven, a consumer with two slots took all: Postgres evaluated the limited
    subquery once for each failed message, and each time it skipped those that it had locked before."""
    names = await fail_all(backend, 40)
    await redriven(backend)
    inbox = backend.inbox(backend.handler)
    taken: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < len(names):
            failed_messages = await backend.flow(take(inbox, 2))
            assert len(failed_messages) <= 2
            taken += [failed_message.id for failed_message in failed_messages]
    assert sorted(taken) == names


async def test_redrives_and_the_runs_of_the_same_letters_at_once(backend: Backend) -> None:
    """Whoever redrives again and again while failed messages fail and run: none runs twice to its end, none is lost."""
    names = await fail_all(backend, 40)
    fails = set(names[::4])

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        if given.id in fails:
            fails.remove(given.id)
            raise RuntimeError("once more")
        await backend.handler(given, tx)

    async def insist() -> None:
        while not await emptied(backend):
            await asyncio.gather(redriven(backend), redriven(backend))

    async with running(consuming(backend, MemoryBroker(), handler, attempts=1)):
        async with asyncio.timeout(PATIENCE_S):
            await insist()
    assert await backend.effects() == names
    assert sorted(backend.calls) == names


@pytest.mark.parametrize(("abruptly", "deployments"), [(False, 4), (True, 2)])
async def test_a_redrive_goes_on_while_the_consumer_is_deployed(
    backend: Backend, abruptly: bool, deployments: int
) -> None:
    """Processes end while failed messages are at hand, by being told or by being cut off, and others come after them.
    (What was at hand when three processes died is dead on purpose.)"""
    names = await fail_all(backend, 40)
    begun = [0]
    stop = asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        begun[0] += 1
        await backend.write(tx, given.id)
        if begun[0] >= 6:
            await stop.wait()

    job = await redriven(backend)
    assert job.failed_messages == len(names)
    for _ in range(deployments):
        begun[0], stop = 0, asyncio.Event()
        process = consuming(
            backend, MemoryBroker(), handler, lease_s=3.0, concurrency=2, grace_s=0.05 if abruptly else 30.0
        )
        task = asyncio.create_task(process.run(stop))
        await until(lambda: begun[0] >= 6)
        if abruptly:
            task.cancel()
        else:
            stop.set()
        await asyncio.gather(task, return_exceptions=True)
    stop.set()
    async with running(consuming(backend, MemoryBroker(), handler, lease_s=3.0)):
        await until(lambda: emptied(backend))
    assert await backend.effects() == names
    after = await backend.flow(job_of(backend.dialect, job.id))
    assert (after.failed_messages, after.waiting, after.dead) == (len(names), 0, 0)


async def _more(backend: Backend, before: int, enough: int) -> bool:
    return len(await backend.effects()) >= min(before + 3, enough)


async def test_a_strict_key_keeps_its_order_when_it_is_redriven_under_a_deployment(backend: Backend) -> None:
    works = False

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        if not works:
            raise RuntimeError("not yet")
        await asyncio.sleep(0.002)
        backend.calls.append(given.id)
        await backend.write(tx, given.id)

    inbox = backend.inbox(handler, attempts=1, order="strict", baseline_wait_s=0.0)
    names = []
    for version in range(1, 9):
        for key in range(KEYS):
            names.append(f"k{key}-{version}")
            await backend.deliver(inbox, message(names[-1], key=f"k{key}", version=version))
    works = True
    await backend.hours_pass()
    jobs = await asyncio.gather(redriven(backend), redriven(backend))
    assert sum(job.failed_messages for job in jobs) == KEYS  # the heads; the others wait behind them
    settings: dict[str, Any] = {"order": "strict", "baseline_wait_s": 0.0, "lease_s": 1.0, "timeout_s": 0.5}
    for _ in range(3):
        stop = asyncio.Event()
        task = asyncio.create_task(consuming(backend, MemoryBroker(), handler, **settings).run(stop))
        before = len(await backend.effects())
        await until(lambda before=before: _more(backend, before, len(names)))  # type: ignore[misc]
        stop.set()
        await task
    async with running(consuming(backend, MemoryBroker(), handler, **settings)):
        await until(lambda: emptied(backend))
    assert sorted(backend.calls) == sorted(names)
    for key in range(KEYS):
        assert [name for name in backend.calls if name.startswith(f"k{key}-")] == [f"k{key}-{n}" for n in range(1, 9)]
