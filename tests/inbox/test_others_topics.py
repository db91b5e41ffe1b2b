"""Failed messages of topics that only other processes of the consumer have are kept for those."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from onefold._inbox.consumer import Consumer
from onefold._inbox.failed_messages import next_due, take, take_run
from onefold._inbox.handling import Inbox
from onefold._inbox.registry import ALIVE_S, note_ended, register
from onefold._inbox.stored_message import stored_from_delivery, stored_unread
from onefold._kernel.messages import Delivery, Message, Origin, read_delivery, write
from onefold._kernel.telemetry.consumer_events import DeadLettered, Duplicate, Failed, Handled, InboxEvent, Parked
from onefold._kernel.transaction import Transaction
from onefold._kernel.wakeup_signals import ACTION, DELIVERY_CHANNEL
from tests.inbox.backends import Backend, backend_of, message
from tests.support.patience import PATIENCE_S

BOTH = ("order.placed", "order.cancelled")


@pytest.fixture(params=["sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with backend_of(request) as made:
        yield made


class Release:
    """A process of the consumer; its handler fails while `fails` is set."""

    def __init__(self, backend: Backend, name: str, *topics: str, **settings: Any) -> None:
        self.backend, self.name, self.topics = backend, name, topics
        self.fails = False
        self.calls: list[str] = []
        consumer = Consumer(name="billing", topics=topics, handler=self._handle, **settings)
        self.inbox = Inbox(consumer, backend.dialect, draw=lambda: 0.0, listener=backend.events.append)

    async def _handle(self, given: Message, tx: Transaction[object]) -> None:
        self.calls.append(given.id)
        if self.fails:
            raise ValueError("not yet")
        await self.backend.write(tx, given.id)

    async def begin(self) -> None:
        await self.backend.flow(register(self.backend.dialect, "billing", self.name, self.topics))

    async def end(self) -> None:
        await self.backend.flow(note_ended(self.backend.dialect, "billing", self.name))

    async def keep(self, *given: Message) -> list[InboxEvent]:
        """What a worker does with deliveries that the registry says are others'."""
        events: list[InboxEvent] = await self.backend.flow(self.inbox.keep_for_others([sent(each) for each in given]))
        return events


def sent(given: Message, topic: str | None = None) -> Delivery:
    """As a broker hands it over."""
    origin = Origin(broker="test", topic=topic or given.topic, id=given.id)
    return read_delivery(write(given), given.data, redelivered=False, receipt=None, origin=origin)


async def mind_passes(backend: Backend, *inboxes: Inbox) -> None:
    """So long that the processes have forgotten what they have met, and all that waits is due."""
    for inbox in inboxes:
        inbox.others._known_until = 0.0
    await backend.hours_pass()


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
    put_back = (await backend.failed_messages())["m1"]
    assert (put_back.started, put_back.failed) == (1, 1)
    assert put_back.due_in_s is not None
    assert 0 < put_back.due_in_s <= 20, "it may be late by that, as the page says"
    new.fails = False
    await backend.hours_pass()
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Handled]
    assert await backend.ledger() == ["m1", "m2"]


async def test_a_suspect_is_kept_for_those_that_have_its_topic_too(backend: Backend) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", "order.>")
    await old.begin()
    await new.begin()
    await old.keep(message("m1", topic="order.cancelled"))
    [_] = await backend.flow(take(new.inbox, 1))  # and dies
    await mind_passes(backend, old.inbox)
    assert await backend.run_due(old.inbox) == []
    await backend.hours_pass()
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Handled]


async def test_what_is_kept_for_others_is_known_when_it_comes_again(backend: Backend) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", *BOTH)
    await old.begin()
    await new.begin()
    cancelled = message("m1", topic="order.cancelled")
    assert [type(event) for event in await old.keep(cancelled)] == [Parked]
    [(name, kept)] = (await backend.failed_messages()).items()
    assert name.startswith("unread:")
    assert (kept.message, kept.problem) == (None, stored_unread(sent(cancelled)).problem), "as it is read from its row"
    assert [type(event) for event in await old.keep(cancelled)] == [Duplicate]
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Handled]
    assert [type(event) for event in await old.keep(cancelled)] == [Parked], "it does not know what that is called"
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Duplicate]
    assert new.calls == ["m1"]


async def test_what_is_kept_for_others_has_its_turn_in_its_stream(backend: Backend) -> None:
    old = Release(backend, "1", "order.placed", order="strict")
    new = Release(backend, "2", *BOTH, order="strict")
    await old.begin()
    await new.begin()
    first, second, third = (message(f"m{n}", topic="order.cancelled", key="ord-1", version=n) for n in (1, 2, 3))
    assert [type(event) for event in await old.keep(second)] == [Parked]
    assert isinstance(await backend.deliver(new.inbox, third), Parked)
    assert [type(event) for event in await old.keep(first)] == [Parked]
    await backend.run_due(new.inbox)
    await backend.hours_pass()
    await backend.run_due(new.inbox)
    assert new.calls == ["m1", "m2", "m3"]
    assert await backend.effects() == ["m1", "m2", "m3"]


async def test_a_failed_message_of_a_topic_that_no_process_has_any_longer_is_a_dead_letter(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", *BOTH)
    await new.begin()
    assert [type(event) for event in await old.keep(message("m1", topic="order.cancelled"))] == [Parked]
    await new.end()
    await mind_passes(backend, old.inbox)
    assert await backend.run_due(old.inbox) == [], "the release that was started last has it, and may come back"
    await old.begin()
    await backend.change("UPDATE onefold_consumer SET process = '3' || process WHERE process = '1'")  # the later one
    await mind_passes(backend, old.inbox)
    assert await backend.run_due(old.inbox) == [], "it has ended just now: it may be about to start again"
    await seconds_pass(backend, ALIVE_S + 5)
    await mind_passes(backend, old.inbox)
    [event] = await backend.run_due(old.inbox)
    assert isinstance(event, DeadLettered)
    assert event.reason == "consumer 'billing' no longer has the topic that this was sent to"
    assert (old.calls, new.calls) == ([], [])
    [letter] = (await backend.failed_messages()).values()
    assert (letter.state, letter.topic, letter.headers["ce-id"]) == ("dead", "order.cancelled", "m1")


async def test_what_is_kept_for_others_is_named_by_the_process_that_handles_it(backend: Backend) -> None:
    """The old release gives both kinds one id: what it kept under that was taken for a duplicate of the order."""

    def kind(each: Delivery) -> str:
        return "refund" if "refund" in each.json() else "order"

    old = Release(backend, "1", "order.placed", id_of=lambda each: f"order:{each.json()['order']}")
    new = Release(backend, "2", *BOTH, id_of=lambda each: f"{kind(each)}:{each.json()['order']}")
    await old.begin()
    await new.begin()
    order = message("m1", data=json.dumps({"order": 42}).encode())
    refund = message("m2", topic="order.cancelled", data=json.dumps({"order": 42, "refund": True}).encode())
    assert isinstance(await backend.hand(old.inbox, old.inbox.read(sent(order))), Handled)
    assert [type(event) for event in await old.keep(refund)] == [Parked]
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Handled]
    assert isinstance(await backend.hand(new.inbox, new.inbox.read(sent(refund))), Duplicate)
    assert await backend.ledger() == ["order:42", "refund:42"]


async def test_odd_text_in_a_message_keeps_none_from_being_run_beside_what_is_kept_for_others(backend: Backend) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", *BOTH)
    await old.begin()
    await new.begin()
    old.fails = True
    for n, text in enumerate(("a\x00b", "a\ud800b")):
        failed = await backend.deliver(old.inbox, message(f"m{n}", headers={"traceparent": text}))
        assert isinstance(failed, Failed)
    await old.keep(message("m2", topic="order.cancelled"))
    await backend.hours_pass()
    old.fails = False
    assert await backend.flow(next_due(old.inbox)) is not None
    assert len(await backend.run_due(old.inbox)) == 2


async def test_catching_up_leaves_what_was_sent_to_topics_of_others(backend: Backend) -> None:
    """A foreign producer's type is one stream over two subjects."""
    old = Release(backend, "1", "orders.eu", order="strict")
    new = Release(backend, "2", "orders.eu", "orders.us", order="strict")
    await old.begin()
    await new.begin()
    first, second, third = (message(f"m{n}", key="ord-1", version=n) for n in (1, 2, 3))
    for each in (second, third):
        assert isinstance(await backend.hand(new.inbox, sent(each, "orders.us")), Parked)
    assert isinstance(await backend.hand(old.inbox, sent(first, "orders.eu")), Handled)
    await backend.hours_pass()
    read = stored_from_delivery(sent(first, "orders.eu"))
    assert await backend.flow(take_run(old.inbox, read)) == []
    assert await backend.run_due(old.inbox) == []
    await backend.hours_pass()
    assert [type(event) for event in await backend.run_due(new.inbox)] == [Handled, Handled]
    assert (old.calls, new.calls) == (["m1"], ["m2", "m3"])


async def test_two_processes_that_start_again_one_after_the_other_lose_no_retry(backend: Backend) -> None:
    """Each has half of the topics, which is a mistake: nothing is a dead letter while the second starts."""
    orders, refunds = Release(backend, "1", "order.placed"), Release(backend, "2", "order.cancelled")
    await orders.begin()
    await refunds.begin()
    refunds.fails = True
    assert isinstance(await backend.deliver(refunds.inbox, message(topic="order.cancelled")), Failed)
    await orders.end()
    await refunds.end()
    await Release(backend, "3", "order.placed").begin()
    await backend.hours_pass()
    assert await backend.run_due(orders.inbox) == []
    assert (await backend.failed_messages())["m1"].state == "waiting"


async def seconds_pass(backend: Backend, seconds: float) -> None:
    """Without a beat of any process: the database was away."""
    if backend.dialect == "postgres":
        await backend.change(f"UPDATE onefold_consumer SET seen_at = seen_at - interval '{seconds} seconds'")
    else:
        await backend.change(f"UPDATE onefold_consumer SET seen_at_ms = seen_at_ms - {seconds * 1000:.0f}")


async def test_a_failed_message_of_our_own_topic_is_run_though_we_look_dead(backend: Backend) -> None:
    """With one in the same take that is a dead letter."""
    gone, old, new = Release(backend, "0", "lost"), Release(backend, "1", "order.placed"), Release(backend, "2", "more")
    for each in (gone, old, new):
        await each.begin()
    await gone.end()
    await old.keep(message("m2", topic="lost"))
    old.fails = True
    assert isinstance(await backend.deliver(old.inbox, message("m1")), Failed)
    await backend.hours_pass()
    await seconds_pass(backend, ALIVE_S + 5)
    old.fails = False
    events = await backend.run_due(old.inbox)
    assert sorted(type(event).__name__ for event in events) == ["DeadLettered", "Handled"]
    assert old.calls == ["m1", "m1"]


async def test_a_failed_message_waits_while_it_is_not_known_who_lives(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", "order.cancelled")
    await old.begin()
    await new.begin()
    await new.keep(message("m1", topic="order.placed"))
    await seconds_pass(backend, ALIVE_S + 5)
    await mind_passes(backend, new.inbox)
    assert await backend.run_due(new.inbox) == []
    assert [each.state for each in (await backend.failed_messages()).values()] == ["waiting"]
    await old.end()
    await seconds_pass(backend, ALIVE_S + 5)
    await mind_passes(backend, new.inbox)
    assert [type(event) for event in await backend.run_due(new.inbox)] == [DeadLettered]


async def test_topics_of_others_are_met_one_after_the_other_and_the_rest_is_run(backend: Backend) -> None:
    old, new = Release(backend, "1", "order.placed"), Release(backend, "2", "order.>")
    await old.begin()
    await new.begin()
    await old.keep(*(message(f"m{n}", topic=f"order.{n}") for n in range(400)))
    await new.keep(message("mine"))
    await mind_passes(backend, old.inbox, new.inbox)
    [mine] = await backend.flow(take(old.inbox, 1))
    assert mine.id == "mine"
    assert await backend.flow(take(old.inbox, 1)) == []
    assert (await backend.flow(next_due(old.inbox)) or 0) > 60, "only for the lease of its own"
    await mind_passes(backend)
    assert len(await backend.run_due(new.inbox)) == 401, "with the one whose process looks dead by now"


async def test_processes_that_listen_are_notified_once_of_what_is_kept_for_them(
    on_postgres: Backend, inbox_dsn: str
) -> None:
    """They poll seldom."""
    heard: list[object] = []
    twice = asyncio.Event()
    old = Release(on_postgres, "1", "order.placed")
    several = [message(f"m{n}", topic="order.cancelled") for n in range(3)]

    def hear(*about: object) -> None:
        heard.append(about[-1])
        if len(heard) == 2:
            twice.set()

    connection = await asyncpg.connect(inbox_dsn)
    try:
        await connection.add_listener(DELIVERY_CHANNEL, hear)
        assert [type(event) for event in await old.keep(*several)] == [Parked] * 3
        assert [type(event) for event in await old.keep(*several)] == [
            Duplicate
        ] * 3  # of which there is nothing to say
        await old.keep(message("last", topic="order.cancelled"))
        async with asyncio.timeout(PATIENCE_S):
            await twice.wait()
        assert heard == [ACTION] * 2
    finally:
        await connection.close()


async def test_a_message_whose_topic_only_its_new_reading_knows_keeps_no_other_from_being_run(backend: Backend) -> None:
    """It could not be read when it came, and its origin names no topic."""
    old, new = Release(backend, "1", "order.placed", "order.paid"), Release(backend, "2", *BOTH)
    await old.begin()
    await new.begin()
    headers = {"ce-specversion": "1.0", "ce-source": "shop", "ce-type": "order.cancelled", "ce-id": "m1"}
    unreadable = Delivery(data=b"{}", headers=headers, problem="no envelope")
    assert isinstance(await backend.hand(old.inbox, unreadable), DeadLettered)
    old.fails = True
    assert isinstance(await backend.deliver(old.inbox, message("mine")), Failed)
    old.fails = False
    at, died = ("due_at", "died_at") if backend.dialect == "postgres" else ("due_at_ms", "died_at_ms")
    now = "now()" if backend.dialect == "postgres" else "1"
    await backend.change(f"UPDATE onefold_letter SET state = 'waiting', {at} = {now}, {died} = NULL")  # as redriven
    await backend.run_due(old.inbox)
    assert "mine" in await backend.effects()
