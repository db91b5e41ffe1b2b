"""One message: its effect, its events and its ledger row commit together, once; and what becomes of one that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest

from onefold._inbox.handling import Inbox
from onefold._inbox.stored_message import HISTORY_MAX, stored_from_delivery, stored_from_row
from onefold._kernel.messages import Delivery, Message
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.telemetry import DeadLettered, Duplicate, Failed, Handled
from tests.inbox.backends import Backend, delivery, message
from tests.support.patience import PATIENCE_S


async def test_a_message_is_handled_with_its_effect_its_event_and_its_ledger_row(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        await tx.publish("invoice.sent", {"order": given.id})

    given = message(headers={"traceparent": "00-a-b-01", "other": "stays"})
    assert await backend.deliver(backend.inbox(handler), given) == Handled("billing", "order.placed")
    assert (await backend.effects(), await backend.ledger()) == (["m1"], ["m1"])
    [(headers,)] = await backend.rows("SELECT headers FROM onefold_outbox")
    assert json.loads(headers) == {"traceparent": "00-a-b-01"}, "trace goes on, the rest does not"


async def test_a_message_that_is_delivered_again_is_a_duplicate_and_nothing_else(backend: Backend) -> None:
    inbox = backend.inbox()
    await backend.deliver(inbox, message())
    for redelivered in (False, True):
        assert isinstance(await backend.deliver(inbox, message(), redelivered=redelivered), Duplicate)
    assert (await backend.effects(), backend.calls, await backend.failed_messages()) == (["m1"], ["m1"], {})


async def test_two_consumers_handle_the_same_message_each_once(backend: Backend) -> None:
    for name in ("billing", "shipping"):
        inbox = Inbox(replace(backend.consumer(), name=name), backend.dialect, draw=lambda: 0.5)
        assert isinstance(await backend.deliver(inbox, message()), Handled)
        assert isinstance(await backend.deliver(inbox, message()), Duplicate)
    assert await backend.effects() == ["m1", "m1"]


async def test_of_many_deliveries_at_once_one_has_an_effect(backend: Backend) -> None:
    inbox = backend.inbox()
    events = await asyncio.gather(*(backend.deliver(inbox, message(), redelivered=n % 2 == 1) for n in range(8)))
    await backend.run_due(inbox)
    assert sum(isinstance(event, Handled) for event in events) == 1
    assert (await backend.effects(), await backend.failed_messages()) == (["m1"], {})


async def test_who_waits_for_one_that_fails_handles_it_itself(on_postgres: Backend) -> None:
    backend = on_postgres
    entered, leave = asyncio.Event(), asyncio.Event()

    async def failing(given: Message, tx: Transaction[Any]) -> None:
        entered.set()
        await leave.wait()
        raise RuntimeError("no")

    first = asyncio.create_task(backend.deliver(backend.inbox(failing), message()))
    await entered.wait()
    second = asyncio.create_task(backend.deliver(backend.inbox(), message()))
    async with asyncio.timeout(PATIENCE_S):
        while not await backend.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
            pass
    leave.set()
    # The failure is written down only if nobody handled it meanwhile: either is right, a second effect is not.
    assert isinstance(await second, Handled)
    assert isinstance(await first, Duplicate | Failed)
    await backend.hours_pass()
    await backend.run_due(backend.inbox())
    assert (await backend.effects(), await backend.failed_messages()) == (["m1"], {})


async def test_a_failure_rolls_everything_back_and_leaves_a_failed_message_with_its_history(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        await tx.publish("invoice.sent", {})
        raise ValueError("no such \0 account")

    assert isinstance(await backend.deliver(backend.inbox(handler), message()), Failed)
    failed_message = (await backend.failed_messages())["m1"]
    assert (failed_message.state, failed_message.started, failed_message.failed) == ("waiting", 1, 1)
    assert failed_message.reason == "ValueError: no such \\0 account"
    assert "raise ValueError" in failed_message.history[0]["traceback"]
    assert failed_message.due_in_s is not None
    assert 0 < failed_message.due_in_s <= 1
    assert (await backend.effects(), await backend.ledger()) == ([], [])
    assert await backend.rows("SELECT 1 FROM onefold_outbox") == []


async def test_a_failed_message_is_tried_until_it_is_handled_and_then_it_is_gone(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        await backend.write(tx, given.id)
        if len(backend.calls) < 4:
            raise RuntimeError(len(backend.calls))

    inbox = backend.inbox(handler)
    await backend.deliver(inbox, message())
    seen = []
    for _ in range(4):
        await backend.hours_pass()
        seen += await backend.run_due(inbox)
    assert [type(event) for event in seen] == [Failed, Failed, Handled]
    assert (await backend.effects(), await backend.ledger(), await backend.failed_messages()) == (["m1"], ["m1"], {})
    assert isinstance(await backend.deliver(inbox, message()), Duplicate)


async def test_when_the_attempts_are_used_up_the_failed_message_is_dead_and_keeps_the_last_failures(
    backend: Backend,
) -> None:
    async def handler(given: Message) -> None:
        raise RuntimeError("x" * 10_000)

    inbox = backend.inbox(handler, attempts=HISTORY_MAX + 3)
    await backend.deliver(inbox, message(data=b'{"n": 1}'))
    for _ in range(HISTORY_MAX + 2):
        await backend.hours_pass()
        [event] = await backend.run_due(inbox)
    assert isinstance(event, DeadLettered)
    await backend.hours_pass()
    assert await backend.run_due(inbox) == []
    failed_message = (await backend.failed_messages())["m1"]
    assert (failed_message.state, failed_message.failed, len(failed_message.history)) == (
        "dead",
        HISTORY_MAX + 3,
        HISTORY_MAX,
    )
    assert max(map(len, failed_message.history[0].values())) <= 4000
    assert failed_message.data == b'{"n": 1}'
    assert isinstance(await backend.deliver(inbox, message()), Duplicate), "it is kept; the broker need not know it"


async def test_waits_grow_and_are_jittered(backend: Backend) -> None:
    async def handler(given: Message) -> None:
        raise RuntimeError

    inbox = backend.inbox(handler)
    await backend.deliver(inbox, message())
    waits = []
    for _ in range(4):
        due_in_s = (await backend.failed_messages())["m1"].due_in_s
        assert due_in_s is not None
        waits.append(due_in_s)
        await backend.hours_pass()
        await backend.run_due(inbox)
    for number, wait_s in enumerate(waits):
        assert 2**number / 2 - 0.5 < wait_s <= 2**number


async def test_a_handler_that_returns_something_has_failed(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> Any:
        await backend.write(tx, given.id)
        return "done"

    inbox = backend.inbox(handler)
    for name in ("m1", "m2"):
        assert isinstance(await backend.deliver(inbox, message(name)), Failed)
    assert "returned 'done'" in (await backend.failed_messages())["m1"].reason
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1, "said once, not for every message"
    assert await backend.effects() == []


async def test_a_swallowed_sql_error_is_a_failure_that_says_so(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        try:
            await tx.connection.execute("INSERT INTO effects VALUES (NULL)")
        except Exception:
            return

    event = await backend.deliver(backend.inbox(handler), message())
    if backend.dialect == "sqlite":  # where one statement's failure is not the transaction's
        assert isinstance(event, Handled)
        return
    assert isinstance(event, Failed)
    assert "swallowed an SQL error" in event.reason
    assert (await backend.effects(), await backend.ledger()) == ([], [])


async def test_a_handler_that_goes_on_after_the_database_has_rolled_back_has_failed(backend: Backend) -> None:
    clause = "OR ROLLBACK " if backend.dialect == "sqlite" else ""

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        with contextlib.suppress(Exception):
            await tx.connection.execute(f"INSERT {clause}INTO effects VALUES (NULL)")
        await backend.write(tx, given.id)

    assert isinstance(await backend.deliver(backend.inbox(handler), message()), Failed)
    assert (await backend.effects(), await backend.ledger()) == ([], [])


@pytest.mark.parametrize("fails", [False, True])
async def test_a_handler_that_commits_by_itself_is_told_and_not_run_again(backend: Backend, fails: bool) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        await backend.write(tx, given.id)
        await tx.connection.execute("COMMIT")
        if fails:
            raise RuntimeError("and now this")

    inbox = backend.inbox(handler)
    event = await backend.deliver(inbox, message())
    if backend.dialect == "sqlite":  # whose driver does not let it happen
        assert isinstance(event, Failed)
        assert await backend.effects() == []
        return
    assert isinstance(event, DeadLettered)
    assert "committed or rolled back" in event.reason
    assert await backend.effects() == ["m1"]
    await backend.change("UPDATE onefold_letter SET state = 'waiting', due_at = now()")
    assert [type(e) for e in await backend.run_due(inbox)] == [Duplicate]
    assert (backend.calls, await backend.failed_messages()) == (["m1"], {})


async def test_a_handler_that_rolls_back_by_itself_has_failed_and_is_tried_again(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        await tx.connection.execute("ROLLBACK")

    assert isinstance(await backend.deliver(backend.inbox(handler), message()), Failed)
    assert (await backend.effects(), await backend.ledger()) == ([], [])


async def test_a_handler_that_takes_longer_than_its_lease_has_failed(on_postgres: Backend) -> None:
    """SQLite has no timeout for transactions."""
    backend = on_postgres

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        await asyncio.sleep(0.6)  # longer than the lease: this is about real time passing on the server

    event = await backend.deliver(backend.inbox(handler, lease_s=0.3), message())
    assert isinstance(event, Failed)
    assert "lease_s=0.3" in event.reason
    assert await backend.effects() == []


# --- what cannot be handled at all -------------------------------------------------------------------------


async def test_what_has_no_envelope_is_a_dead_letter_with_its_bytes(backend: Backend) -> None:
    given = Delivery(data=b"\x00\xff", headers={"x": "é"}, problem="the message has no id")
    inbox = backend.inbox()
    for _ in range(2):
        assert isinstance(await backend.hand(inbox, given), DeadLettered)
    [failed_message] = (await backend.failed_messages()).values()
    assert failed_message.id.startswith("unreadable:")
    assert (failed_message.state, failed_message.data, failed_message.headers) == ("dead", b"\x00\xff", {"x": "é"})
    assert failed_message.reason == "the message has no id"
    assert backend.calls == []


@pytest.mark.parametrize("name", ["a\0b", "x" * 600, "half \ud800"])
async def test_an_id_that_no_database_takes_makes_a_dead_letter_and_no_endless_loop(
    backend: Backend, name: str
) -> None:
    assert isinstance(await backend.deliver(backend.inbox(), message(name)), DeadLettered)
    [failed_message] = (await backend.failed_messages()).values()
    assert "the message's id is" in failed_message.reason


def test_a_parcel_is_the_same_when_it_comes_back_from_its_row() -> None:
    given = message(key="k", version=7, time="2026-01-01T00:00:00Z", headers={"a": "b"}, content_type="text/plain")
    structured = Delivery(data=b'{"all": "of it"}', headers={"h": "1"}, message=given)
    for stored in (
        stored_from_delivery(delivery(given)),
        stored_from_delivery(structured),
        stored_from_delivery(delivery(message())),
    ):
        assert stored_from_row(*stored.values()) == stored  # type: ignore[arg-type]


# --- what kills its process ----------------------------------------------------------------------------------


class Killed(BaseException):
    """As good as dead: nothing after it happens."""


async def test_a_message_that_kills_its_process_is_found_and_its_neighbour_is_not_blamed(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        await backend.write(tx, given.id)
        if given.id == "killer":
            raise Killed

    inbox = backend.inbox(handler)
    with pytest.raises(Killed):
        await backend.deliver(inbox, message("killer"))
    with pytest.raises(Killed):
        await backend.deliver(inbox, message("killer"), redelivered=True)
    assert isinstance(await backend.deliver(inbox, message("neighbour"), redelivered=True), Handled)
    assert isinstance(await backend.deliver(inbox, message("killer"), redelivered=True), Duplicate), "it is kept"
    for _ in range(2):
        await backend.hours_pass()
        with pytest.raises(Killed):
            await backend.run_due(inbox)
    await backend.hours_pass()
    assert await backend.run_due(inbox) == []
    failed_message = (await backend.failed_messages())["killer"]
    assert failed_message.state == "dead"
    assert "3 times" in failed_message.reason
    assert (await backend.effects(), backend.calls.count("killer")) == (["neighbour"], 4)
    assert DeadLettered("billing", "order.placed", failed_message.reason, failed_message.id) in backend.events


# --- batches -------------------------------------------------------------------------------------------------


async def test_a_batch_is_one_call_and_one_transaction(backend: Backend) -> None:
    calls: list[list[str]] = []

    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        calls.append([one.id for one in given])
        for one in given:
            await backend.write(tx, one.id)

    inbox = backend.inbox(handler, batch=10)
    await backend.deliver(inbox, message("m2"))
    names = ["m1", "m2", "m3", "m3"]
    executor, tx = backend.executor()
    events = await run_async(inbox.handle_batch([delivery(message(name)) for name in names], tx), executor)
    assert events is not None
    assert [type(event) for event in events] == [Handled, Duplicate, Handled, Duplicate]
    assert calls[0] == ["m2"]
    assert len(calls) == 2
    assert await backend.effects() == ["m1", "m2", "m3"]
    executor, tx = backend.executor()
    events = await run_async(inbox.handle_batch([delivery(message(name)) for name in names], tx), executor)
    assert len(calls) == 2
    assert events is not None
    assert {type(event) for event in events} == {Duplicate}


async def test_a_batch_that_fails_leaves_nothing_and_what_is_kept_as_a_failed_message_takes_no_part(
    backend: Backend,
) -> None:
    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        for one in given:
            await backend.write(tx, one.id)
            if one.id == "bad":
                raise RuntimeError("bad")

    inbox = backend.inbox(handler, batch=10)
    batch = [delivery(message(name)) for name in ("m1", "bad", "m2")]
    executor, tx = backend.executor()
    assert await run_async(inbox.handle_batch(batch, tx), executor) is None
    assert (await backend.effects(), await backend.ledger(), await backend.failed_messages()) == ([], [], {})
    events = [await backend.hand(inbox, one) for one in batch]
    assert [type(event) for event in events] == [Handled, Failed, Handled]
    executor, tx = backend.executor()
    again = await run_async(inbox.handle_batch(batch, tx), executor)
    assert again is not None
    assert {type(event) for event in again} == {Duplicate}
    assert await backend.effects() == ["m1", "m2"]
