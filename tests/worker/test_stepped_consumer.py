"""Consumers as processes whose handlers work in recorded steps: several at once, leases that are renewed, limits, and
stops in the middle."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from onefold import AsyncOnefold, Message, Onefold, Steps
from onefold._kernel.dialects import SQLITE_NOW_MS
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.telemetry import Failed, Handled
from tests.steps.conftest import address, place, works_database, works_file
from tests.steps.message_stage import insert_async, message
from tests.steps.places import Place, effects, insert
from tests.support.crash import Boundaries
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, running, until

__all__ = ["address", "place", "works_database", "works_file"]

HANDLED = Handled("billing", "ride.wanted")


def runner(once: Any, broker: MemoryBroker, events: list[Any], **settings: Any) -> ConsumerRunner:
    return ConsumerRunner(
        once._for_workers(),
        broker,
        once.consumers,
        transaction=once._new_transaction,
        steps=once._message_steps(),
        listener=events.append,
        **settings,
    )


@contextmanager
def threads(place: Place) -> Iterator[Onefold]:
    once = Onefold(place.address, source="rides")
    yield once
    once.close()


async def test_a_handler_on_a_thread_fails_and_goes_on_and_holds_no_connection_in_a_call(place: Place) -> None:
    boundaries = Boundaries()
    events: list[Any] = []
    out: list[int] = []
    failures = [KeyError("on purpose")]
    with threads(place) as once:
        once._database = boundaries.around(once._database)

        def charge() -> str:
            assert threading.current_thread() is not threading.main_thread()
            # Connections of the worker's own loops come and go beside it; one of the handler's would stay.
            give_up_at = time.monotonic() + PATIENCE_S
            while boundaries.out and time.monotonic() < give_up_at:
                time.sleep(0.001)
            out.append(boundaries.out)
            return "ch_1"

        @once.consumer("billing", topic="ride.wanted", retry_base_s=0.01, concurrency=1)
        def bill(given: Message, work: Steps) -> None:
            work.phase("create", insert, f"{given.id} created")
            work.call("charge", charge)
            if failures:
                raise failures.pop()
            work.finish(insert, f"{given.id} paid")

        broker = MemoryBroker()
        broker.put(message())
        async with running(runner(once, broker, events)):
            await until(lambda: HANDLED in events)
    assert [type(event) for event in events if isinstance(event, Failed | Handled)] == [Failed, Handled]
    assert effects(place) == ["m1 created", "m1 paid"]
    assert (broker.acked, place.works_left(), place.steps_left()) == (["m1"], 0, [])
    assert out == [0]


async def test_two_processes_that_get_the_same_messages_handle_each_once(place: Place) -> None:
    names = [f"m{number}" for number in range(8)]
    applications = [AsyncOnefold(place.address, source="rides") for _ in range(2)]
    events: list[Any] = []
    charges: list[str] = []

    async def charge(name: str) -> None:
        charges.append(name)
        await asyncio.sleep(0.01)

    for once in applications:

        @once.consumer("billing", topic="ride.wanted", lease_s=3.0)
        async def bill(given: Message, work: Steps) -> None:
            await work.phase("create", insert_async, f"{given.id} created")
            await work.call("charge", charge, given.id)
            await work.finish(insert_async, f"{given.id} paid")

    brokers = [MemoryBroker(), MemoryBroker()]
    for broker in brokers:
        broker.put(*map(message, names))

    def is_done() -> bool:
        letters = place.rows("SELECT 1 FROM onefold_letter")
        return all(broker.idle for broker in brokers) and events.count(HANDLED) >= len(names) and not letters

    async with (
        running(runner(applications[0], brokers[0], events)),
        running(runner(applications[1], brokers[1], events)),
    ):
        await until(is_done)
    assert events.count(HANDLED) == len(names)
    assert effects(place) == sorted([f"{name} created" for name in names] + [f"{name} paid" for name in names])
    assert set(charges) == set(names)
    assert place.works_left() == 0
    for once in applications:
        await once.close()


async def test_a_kept_message_in_a_long_call_is_not_taken_by_a_process_that_would_have_it_wait(place: Place) -> None:
    """Each process that took it would count as one that died of it."""
    applications = [AsyncOnefold(place.address, source="rides") for _ in range(2)]
    brokers = [MemoryBroker(), MemoryBroker()]
    events: list[Any] = []
    runs: list[str] = []
    may_end = asyncio.Event()

    async def charge() -> None:
        await may_end.wait()

    for once in applications:

        @once.consumer("billing", topic="ride.wanted", lease_s=0.5, concurrency=1)
        async def bill(given: Message, work: Steps) -> None:
            runs.append(given.id)
            await work.call("charge", charge)
            await work.finish(insert_async, f"{given.id} paid")

    moment = "(extract(epoch FROM due_at) * 1000)::bigint" if place.is_postgres else "due_at_ms"

    def look() -> tuple[int, int]:
        [(started, due_ms)] = place.rows(f"SELECT started, {moment} FROM onefold_letter")
        return started, due_ms

    async with (
        running(runner(applications[0], brokers[0], events)),
        running(runner(applications[1], brokers[1], events)),
    ):
        brokers[0].put(message("long"), redelivered=True)
        brokers[1].put(message("other"))
        await until(lambda: len(runs) == 2)
        _, first_ms = look()
        # Past what its start allowed for, and past that again.
        await until(lambda: look()[0] != 1 or look()[1] > first_ms + 3_000)
        started, _ = look()
        may_end.set()
        assert started == 1
        await until(lambda: events.count(HANDLED) == 2)
    assert (sorted(runs), effects(place)) == (["long", "other"], ["long paid", "other paid"])
    assert place.rows("SELECT 1 FROM onefold_letter") == []
    for once in applications:
        await once.close()


async def test_a_call_that_takes_longer_than_its_lease_keeps_the_message(place: Place) -> None:
    once = AsyncOnefold(place.address, source="rides")
    events: list[Any] = []
    broker = MemoryBroker()
    calls: list[str] = []
    now = "clock_timestamp()" if place.is_postgres else SQLITE_NOW_MS
    column = "lease_ends_at" if place.is_postgres else "lease_ends_at_ms"

    async def charge(name: str) -> None:
        calls.append(name)
        [(first,)] = place.rows(f"SELECT {column} FROM onefold_work")
        broker.put(message(), redelivered=True)  # as a broker does whose patience has ended
        await until(lambda: "m1" in broker.acked)
        await until(lambda: bool(place.rows(f"SELECT {now}")[0][0] > first))

    @once.consumer("billing", topic="ride.wanted", lease_s=3.0)
    async def bill(given: Message, work: Steps) -> None:
        await work.phase("create", insert_async, f"{given.id} created")
        await work.call("charge", charge, given.id)

    broker.put(message())
    async with running(runner(once, broker, events)):
        await until(lambda: HANDLED in events and broker.idle)
        await until(lambda: not place.rows("SELECT 1 FROM onefold_letter"))
    assert (calls, effects(place)) == (["m1"], ["m1 created"])
    await once.close()


async def test_a_stop_in_the_middle_of_a_call_gives_the_work_back(place: Place) -> None:
    """Another process goes on at once, and does not wait for the lease of an hour."""
    once = AsyncOnefold(place.address, source="rides")
    events: list[Any] = []
    broker, entered = MemoryBroker(), asyncio.Event()
    hangs = [True]

    async def charge() -> None:
        if hangs:
            entered.set()
            await asyncio.sleep(3600)

    @once.consumer("billing", topic="ride.wanted", lease_s=3600.0)
    async def bill(given: Message, work: Steps) -> None:
        await work.phase("create", insert_async, f"{given.id} created")
        await work.call("charge", charge)

    broker.put(message())
    async with running(runner(once, broker, events, grace_s=0.0)):
        await asyncio.wait_for(entered.wait(), PATIENCE_S)
    hangs.clear()
    async with running(runner(once, broker, events)):
        await until(lambda: HANDLED in events)
    assert (effects(place), place.works_left()) == (["m1 created"], 0)
    await once.close()


async def test_a_handler_that_takes_longer_than_its_limit_has_failed_and_goes_on_behind_its_steps(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    once = AsyncOnefold(place.address, source="rides")
    events: list[Any] = []
    broker, hangs = MemoryBroker(), [True]

    async def charge() -> None:
        if hangs:
            hangs.clear()
            await asyncio.sleep(3600)

    @once.consumer("billing", topic="ride.wanted", timeout_s=1.0, retry_base_s=0.01)
    async def bill(given: Message, work: Steps) -> None:
        await work.phase("create", insert_async, f"{given.id} created")
        await work.call("charge", charge)

    broker.put(message())
    async with running(runner(once, broker, events)):
        await until(lambda: HANDLED in events)
    assert "took longer than timeout_s=1, and what its steps have recorded stays" in caplog.text
    assert effects(place) == ["m1 created"]
    await once.close()
