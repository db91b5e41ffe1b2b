"""Failed messages of topics that only other processes of the consumer have are left to those."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from onefold._inbox import left_topics
from onefold._inbox.consumer import Consumer
from onefold._inbox.failed_messages import next_due, take
from onefold._inbox.handling import Inbox
from onefold._inbox.registry import leave, register
from onefold._kernel.messages import Message
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry.consumer_events import DeadLettered, Duplicate, Failed, Handled, Parked
from onefold._kernel.transaction import Transaction
from onefold._kernel.wakeup_signals import ACTION, DELIVERY_CHANNEL
from tests.inbox.backends import Backend, backend_of, delivery, message
from tests.support.patience import PATIENCE_S

BOTH = ("order.placed", "order.cancelled")


@pytest.fixture(params=["sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with backend_of(request) as made:
        yield made


class Release:
    """A process of the consumer; its handler fails while `fails` is set."""

    def __init__(self, backend: Backend, name: str, *topics: str, order: str = "none") -> None:
        self.backend, self.name, self.topics = backend, name, topics
        self.fails = False
        self.calls: list[str] = []
        consumer = Consumer(name="billing", topics=topics, handler=self._handle, order=order)  # type: ignore[arg-type]
        self.inbox = Inbox(consumer, backend.dialect, draw=lambda: 0.0, listener=backend.events.append)

    async def _handle(self, given: Message, tx: Transaction[object]) -> None:
        self.calls.append(given.id)
        if self.fails:
            raise ValueError("not yet")
        await self.backend.write(tx, given.id)

    async def begin(self) -> None:
        await self.backend.flow(register(self.backend.dialect, "billing", self.name, self.topics))

    async def end(self) -> None:
        await self.backend.flow(leave(self.backend.dialect, "billing", self.name))

    async def leave(self, given: Message) -> object:
        """What a worker does with a delivery that the registry says is others'."""
        executor, tx = self.backend.executor()
        return await run_async(self.inbox.leave(delivery(given), tx), executor)


async def test_a_failed_message_is_run_only_by_a_process_that_has_its_topic(backend: Backend) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", *BOTH)
    await old.begin()
    await new.begin()
    new.fails = True
    for name, topic in (("m1", "order.cancelled"), ("m2", "order.placed")):
        assert isinstance(await backend.deliver(new.inbox, message(name, topic=topic)), Failed)
    await backend.hours_pass()
    assert [type(event) for event in await backend.run_due(old.inbox)] == [Handled]
    assert old.calls == ["m2"]
    assert await backend.flow(next_due(old.inbox)) is None, "there is nothing for it to wake up for"
    left = (await backend.failed_messages())["m1"]
    assert (left.started, left.failed) == (1, 1)
    new.fails = False
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Handled]
    assert await backend.ledger() == ["m1", "m2"]


async def test_a_suspect_is_left_to_those_that_have_its_topic_too(backend: Backend) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", "order.>")
    await old.begin()
    await new.begin()
    await old.leave(message("m1", topic="order.cancelled"))
    [_] = await backend.flow(take(new.inbox, 1))  # and dies
    await backend.hours_pass()
    assert await backend.run_due(old.inbox) == []
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Handled]


async def test_what_is_left_is_known_when_it_comes_again(backend: Backend) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", *BOTH)
    await old.begin()
    await new.begin()
    cancelled = message("m1", topic="order.cancelled")
    assert isinstance(await old.leave(cancelled), Parked)
    assert isinstance(await old.leave(cancelled), Duplicate)
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Handled]
    assert isinstance(await old.leave(cancelled), Duplicate)
    assert new.calls == ["m1"]


async def test_what_is_left_has_its_turn_in_its_stream(backend: Backend) -> None:
    old = Release(backend, "1", "order.placed", order="strict")
    new = Release(backend, "2", *BOTH, order="strict")
    await old.begin()
    await new.begin()
    first, second, third = (message(f"m{n}", topic="order.cancelled", key="ord-1", version=n) for n in (1, 2, 3))
    assert isinstance(await old.leave(second), Parked)
    assert isinstance(await backend.deliver(new.inbox, third), Parked)
    assert isinstance(await old.leave(first), Parked)
    await backend.run_due(new.inbox)
    await backend.hours_pass()
    await backend.run_due(new.inbox)
    assert new.calls == ["m1", "m2", "m3"]
    assert await backend.effects() == ["m1", "m2", "m3"]


async def test_a_failed_message_of_a_topic_that_no_process_has_any_longer_is_a_dead_letter(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_topics, "LOOK_S", 0.0)
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", *BOTH)
    await new.begin()
    assert isinstance(await old.leave(message("m1", topic="order.cancelled")), Parked)
    await new.end()
    assert await backend.run_due(old.inbox) == [], "the release that was started last has it, and may come back"
    await old.begin()
    await backend.change("UPDATE onefold_consumer SET process = '3' || process WHERE process = '1'")  # the later one
    [event] = await backend.run_due(old.inbox)
    assert isinstance(event, DeadLettered)
    assert event.reason == "consumer 'billing' no longer has the topic that this was sent to"
    assert (old.calls, new.calls) == ([], [])
    assert (await backend.failed_messages())["m1"].message is not None


async def test_topics_that_are_left_are_met_one_after_the_other_and_the_rest_is_run(backend: Backend) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", "order.>")
    await old.begin()
    await new.begin()
    for n in range(30):
        await old.leave(message(f"m{n}", topic=f"order.{n}"))
    await new.leave(message("mine"))
    old.inbox.left = left_topics.LeftTopics(old.inbox.consumer)
    await backend.run_due(old.inbox)
    assert old.calls == ["mine"]
    new.inbox.left = left_topics.LeftTopics(new.inbox.consumer)
    assert len(await backend.run_due(new.inbox)) == 30


async def test_processes_that_listen_are_notified_of_what_is_left_to_them(on_postgres: Backend, inbox_dsn: str) -> None:
    """They poll seldom."""
    heard = asyncio.Event()
    connection = await asyncpg.connect(inbox_dsn)
    try:
        await connection.add_listener(DELIVERY_CHANNEL, lambda *about: heard.set() if about[-1] == ACTION else None)
        await Release(on_postgres, "1", "order.placed").leave(message("m1", topic="order.cancelled"))
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()
    finally:
        await connection.close()
