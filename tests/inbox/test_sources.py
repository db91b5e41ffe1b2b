"""A message is known by its consumer, its source and its id: two sources may count alike, and none loses anything."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from onefold._inbox.handling import Inbox
from onefold._inbox.handling_flows import HandlingFlows
from onefold._inbox.keeping import park
from onefold._inbox.redrive import Filter, redrive
from onefold._inbox.retention import reap
from onefold._inbox.sql import STATEMENTS
from onefold._inbox.stored_message import stored_from_delivery
from onefold._inbox.version_order import Early
from onefold._kernel.checkout import run_batch, with_connection
from onefold._kernel.effects import Batch, Boundary
from onefold._kernel.messages import Message
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.errors import OnefoldError
from onefold.telemetry import Duplicate, Failed, Handled, Parked
from tests.inbox.backends import Backend, delivery, message
from tests.worker.consuming import until

EU, US, JP = "/shop/eu", "/shop/us", "/shop/jp"


class Till:
    """A consumer that writes down source and id of what it handles, and fails as often as it is told to."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.failing: set[str] = set()

    async def handle(self, given: Message, tx: Transaction[Any]) -> None:
        await self.backend.write(tx, f"{given.source} {given.id}")
        if given.source in self.failing:
            raise RuntimeError(given.source)

    def inbox(self, **settings: Any) -> Inbox:
        return self.backend.inbox(self.handle, **settings)


@pytest.fixture
def till(backend: Backend) -> Till:
    return Till(backend)


def sale(source: str, name: str = "1001", **more: Any) -> Message:
    return message(name, source=source, **more)


@pytest.mark.parametrize("redelivered", [False, True])
async def test_the_same_id_from_two_sources_is_two_messages_each_handled_once(till: Till, redelivered: bool) -> None:
    backend, inbox = till.backend, till.inbox()
    for source in (EU, US, JP):
        assert isinstance(await backend.deliver(inbox, sale(source), redelivered=redelivered), Handled)
    for source in (US, EU, JP):
        for again in (False, True):
            assert isinstance(await backend.deliver(inbox, sale(source), redelivered=again), Duplicate)
    assert await backend.effects() == [f"{EU} 1001", f"{JP} 1001", f"{US} 1001"]
    assert await backend.failed_messages() == {}


async def test_of_many_deliveries_at_once_each_source_has_one_effect(till: Till) -> None:
    backend, inbox = till.backend, till.inbox()
    given = [(sale(source), again) for source in (EU, US, JP) for again in (False, True, False)]
    events = await asyncio.gather(*(backend.deliver(inbox, one, redelivered=again) for one, again in given))
    await backend.run_due(inbox)
    assert sum(isinstance(event, Handled) for event in events) == 3
    assert await backend.effects() == [f"{EU} 1001", f"{JP} 1001", f"{US} 1001"]


async def test_deliveries_at_once_that_see_an_id_free_and_taken_handle_it_once(till: Till) -> None:
    """Many rounds: it takes a failed message of another source that is written between two looks."""
    backend, inbox = till.backend, till.inbox()
    for number in range(30):
        given = [(sale(source, f"n{number}"), again) for source in (EU, US, JP) for again in (False, True, False)]
        await asyncio.gather(*(backend.deliver(inbox, one, redelivered=again) for one, again in given))
        await backend.run_due(inbox)
    effects = await backend.effects()
    assert (len(effects), len(set(effects))) == (90, 90)


async def test_a_ledger_entry_apart_waits_for_one_that_saw_the_id_free(on_postgres: Backend) -> None:
    """Between their looks another source's message of this id became a dead letter."""
    backend = on_postgres
    first, second = (HandlingFlows("postgres", "billing", "1001", source=US, lease_s=60.0) for _ in range(2))
    inside, outside = backend.executor()[0], backend.executor()[0]
    assert await run_async(first.begin(), inside)
    dead = stored_from_delivery(delivery(sale(EU))).values()
    keep = STATEMENTS["postgres"].keep(
        "billing", dead, state="dead", reason="?", started=1, failed=1, history="[]", due_ms=None
    )
    await backend.flow(with_connection(lambda: run_batch(keep)))
    other = asyncio.create_task(run_async(second.begin(), outside))

    async def is_decided() -> bool:
        return other.done() or bool(await backend.rows("SELECT 1 FROM pg_locks WHERE NOT granted"))

    await until(is_decided)
    assert not other.done()
    await run_async(first.commit(()), inside)
    assert not await other


@pytest.mark.parametrize("order", ["strict", "latest"])
async def test_ordered_consumers_tell_sources_apart_too(till: Till, order: Literal["strict", "latest"]) -> None:
    backend, inbox = till.backend, till.inbox(order=order)
    for version in (1, 2):
        for source in (EU, US):
            given = sale(source, f"{version}", key="acme", version=version)
            assert isinstance(await backend.deliver(inbox, given), Handled)
            assert isinstance(await backend.deliver(inbox, given), Duplicate)
    assert len(await backend.effects()) == 4


async def test_what_fails_of_two_sources_are_two_failed_messages_and_each_is_handled(till: Till) -> None:
    backend, inbox = till.backend, till.inbox()
    till.failing = {EU, US}
    for source in (EU, US):
        assert isinstance(await backend.deliver(inbox, sale(source)), Failed)
    failed_messages = await backend.failed_messages()
    assert {failed_message.message.source for failed_message in failed_messages.values() if failed_message.message} == {
        EU,
        US,
    }
    assert {failed_message.message.id for failed_message in failed_messages.values() if failed_message.message} == {
        "1001"
    }
    for source in (EU, US):
        assert isinstance(await backend.deliver(inbox, sale(source)), Duplicate), "it is kept"
    till.failing = {EU}
    await backend.hours_pass()
    assert {type(event) for event in await backend.run_due(inbox)} == {Failed, Handled}
    assert await backend.effects() == [f"{US} 1001"]
    till.failing = set()
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert (await backend.effects(), await backend.failed_messages()) == ([f"{EU} 1001", f"{US} 1001"], {})
    for source in (EU, US):
        assert isinstance(await backend.deliver(inbox, sale(source)), Duplicate)


async def test_a_failed_message_does_not_hold_back_the_message_of_another_source(till: Till) -> None:
    backend, inbox = till.backend, till.inbox(attempts=1)
    till.failing = {EU}
    await backend.deliver(inbox, sale(EU))
    assert isinstance(await backend.deliver(inbox, sale(US)), Handled)
    till.failing = set()
    await backend.flow(redrive(backend.dialect, Filter(consumer="billing"), actor="ada", per_second=1000))
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert (await backend.effects(), await backend.failed_messages()) == ([f"{EU} 1001", f"{US} 1001"], {})


async def test_a_failed_message_whose_id_another_source_took_meanwhile_is_handled(till: Till) -> None:
    """A failure is written down after its transaction: in between the id is free."""
    backend, inbox = till.backend, till.inbox()
    till.failing = {EU}
    await backend.deliver(inbox, sale(EU))
    await backend.change(f"INSERT INTO onefold_inbox (consumer, message_id, source) VALUES ('billing', '1001', '{US}')")
    assert isinstance(await backend.deliver(inbox, sale(US)), Duplicate)
    assert isinstance(await backend.deliver(inbox, sale(EU)), Duplicate), "it is kept"
    for _ in range(2):
        await backend.hours_pass()
        await backend.run_due(inbox)
        till.failing = set()
    assert (await backend.effects(), await backend.failed_messages()) == ([f"{EU} 1001"], {})
    assert isinstance(await backend.deliver(inbox, sale(EU)), Duplicate)


async def test_when_the_first_of_them_is_forgotten_the_others_are_still_known(till: Till) -> None:
    backend, inbox = till.backend, till.inbox()
    for source in (EU, US):
        await backend.deliver(inbox, sale(source))
    old = "handled_at = now() - interval '30 days'" if backend.dialect == "postgres" else "handled_at_ms = 1"
    await backend.change(f"UPDATE onefold_inbox SET {old} WHERE message_id = '1001'")
    assert await backend.flow(reap(backend.dialect, "billing", inbox.consumer.retention_s)) == 1
    for redelivered in (False, True):
        assert isinstance(await backend.deliver(inbox, sale(US), redelivered=redelivered), Duplicate)
    assert isinstance(await backend.deliver(inbox, sale(EU)), Handled), "as for any message after retention_s"


async def test_a_batch_with_the_same_id_from_two_sources_handles_both(till: Till) -> None:
    backend = till.backend

    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        for one in given:
            await till.handle(one, tx)

    inbox = backend.inbox(handler, batch=10)

    async def hand(*given: Message) -> list[Any]:
        executor, tx = backend.executor()
        events = await run_async(inbox.handle_batch([delivery(one) for one in given], tx), executor)
        if events is None:  # then one by one, as a worker does
            events = [await backend.deliver(inbox, one) for one in given]
        return [type(event) for event in events]

    assert await hand(sale(EU), sale(US), sale(EU, "1002"), sale(EU)) == [Handled, Handled, Handled, Duplicate]
    assert await hand(sale(US), sale(EU, "1003")) == [Duplicate, Handled]
    assert await hand(sale(JP), sale(US, "1002")) == [Handled, Handled]
    assert len(await backend.effects()) == 6


async def test_parked_messages_of_two_sources_wait_each_for_their_own(till: Till) -> None:
    backend, inbox = till.backend, till.inbox(order="strict")
    for source in (EU, US):
        await backend.deliver(inbox, sale(source, "1", key="acme", version=1))
        for version in (3, 4):
            given = sale(source, f"{version}", key="acme", version=version)
            executor, tx = backend.executor()
            events = await run_async(inbox.handle_batch([delivery(given)], tx), executor)
            if events is None:
                events = [await backend.deliver(inbox, given)]
            assert isinstance(events[0], Parked)
    for source in (US, EU):
        await backend.deliver(inbox, sale(source, "2", key="acme", version=2))
        await backend.run_due(inbox)
    assert len(await backend.effects()) == 8
    assert await backend.failed_messages() == {}


async def test_what_came_without_a_source_is_known_by_its_id_alone(till: Till) -> None:
    backend, inbox = till.backend, till.inbox()

    async def begins(name: str, source: str | None) -> bool:
        executor, _ = backend.executor()
        entry = HandlingFlows(backend.dialect, "billing", name, source=source, lease_s=60)
        new = await run_async(entry.begin(), executor)
        if new:
            await run_async(entry.commit(()), executor)
        return new

    assert await begins("1", None)
    assert [await begins("1", source) for source in (None, EU, US)] == [False] * 3
    assert [await begins("2", source) for source in (EU, US, EU, US, None)] == [True, True, False, False, False]
    assert isinstance(await backend.deliver(inbox, sale(EU, "1")), Duplicate), "as in a ledger of an earlier release"
    assert isinstance(await backend.deliver(inbox, sale(JP, "2")), Handled)


async def test_ids_and_sources_of_any_length_are_kept(till: Till) -> None:
    backend, inbox = till.backend, till.inbox()
    name, sources = "é" * 512, ["s" * 512, "t" * 512]
    for source in sources:
        assert isinstance(await backend.deliver(inbox, sale(source, name)), Handled)
    till.failing = set(sources)
    for source in sources:
        assert isinstance(await backend.deliver(inbox, sale(source, "ü" * 512)), Failed)
    assert len(await backend.failed_messages()) == 2


async def test_a_failed_message_is_never_written_over_by_that_of_another_source(till: Till) -> None:
    """Two that fail at the same moment find the name free; the database refuses the second, which comes again."""
    backend, inbox = till.backend, till.inbox()
    till.failing = {EU}
    await backend.deliver(inbox, sale(EU))
    [failed_message] = (await backend.failed_messages()).values()
    late = park(inbox.sql, "billing", stored_from_delivery(delivery(sale(US))), Early("it waits", False, None))

    async def write() -> None:
        await Batch((Boundary.BEGIN, late, Boundary.COMMIT))

    with pytest.raises(OnefoldError):
        await backend.flow(with_connection(write))
    still = (await backend.failed_messages())[failed_message.id]
    assert (still.message, still.state, still.reason) == (
        failed_message.message,
        failed_message.state,
        failed_message.reason,
    )
