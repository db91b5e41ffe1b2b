"""Order per key: strict never overtakes and never loses, whatever the broker shuffles and the handler refuses."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from onefold._inbox.discard_and_skip import discard, resume_at, skip
from onefold._inbox.handling import Inbox
from onefold._inbox.redrive import FailedMessageNotFit
from onefold._inbox.sql import STATEMENTS
from onefold._inbox.sql.postgres import Postgres
from onefold._inbox.sql.statements import Statements
from onefold._inbox.version_order import Early, Late, StreamPosition, Turn, decide_turn
from onefold._kernel.audit import list_audit
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.telemetry import DeadLettered, Dropped, Duplicate, Failed, Handled, Parked
from tests.inbox.backends import EPOCH, Backend, message
from tests.support.patience import PATIENCE_S


def version(number: int, key: str = "k", **more: Any) -> Message:
    return message(f"{key}{number}", key=key, version=number, **more)


def later(number: int) -> Message:
    return message(f"later{number}", key="k", version=number, epoch=EPOCH + 1)


async def progress(backend: Backend) -> list[tuple[Any, ...]]:
    return await backend.rows("SELECT epoch, version FROM onefold_progress ORDER BY stream")


# --- the judgement -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stand", "at", "verdict"),
    [
        (StreamPosition(5, 3, None, None), (5, 4), Turn),
        (StreamPosition(5, 3, None, None), (5, 5), Early),
        (StreamPosition(5, 3, None, None), (5, 3), Late),
        (StreamPosition(5, 3, None, None), (4, 9), Late),
        (StreamPosition(5, 3, None, None), (6, 1), Turn),
        (StreamPosition(5, 3, None, None), (6, 2), Early),
        (StreamPosition(5, 0, None, None), (5, 1), Turn),
        (StreamPosition(5, 0, None, None), (5, 7), Early),
        (StreamPosition(5, 0, 10, 9), (5, 7), Early),
        (StreamPosition(5, 0, 0, 9), (5, 7), Turn),
        (StreamPosition(5, 0, -1, None), (5, 7), Turn),
        (StreamPosition(5, 0, -1, 6), (5, 7), Early),
    ],
)
def test_the_judgement(stand: StreamPosition, at: tuple[int, int], verdict: type) -> None:
    assert isinstance(decide_turn(stand, *at, wait_ms=5000), verdict)


# --- strict --------------------------------------------------------------------------------------------------


async def test_in_order_each_is_handled_at_once(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    for number in (1, 2, 3):
        assert isinstance(await backend.deliver(inbox, version(number)), Handled)
    assert (backend.calls, await progress(backend)) == (["k1", "k2", "k3"], [(EPOCH, 3)])
    assert isinstance(await backend.deliver(inbox, version(2)), Duplicate)


async def test_a_gap_parks_without_counting_a_failure_and_is_due_when_it_closes(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    await backend.deliver(inbox, version(1))
    for number in (4, 3):
        assert isinstance(await backend.deliver(inbox, version(number)), Parked)
    assert isinstance(await backend.deliver(inbox, version(3)), Duplicate)
    await backend.hours_pass()
    assert await backend.run_due(inbox) == [], "no time makes up for what is missing"
    failed_message = (await backend.failed_messages())["k3"]
    assert (failed_message.started, failed_message.failed, failed_message.due_in_s) == (0, 0, None)
    assert failed_message.reason == "version 3 waits for version 2 of its key"
    assert isinstance(await backend.deliver(inbox, version(2)), Handled)
    await backend.run_due(inbox)
    assert (backend.calls, await backend.failed_messages()) == (["k1", "k2", "k3", "k4"], {})


async def test_a_failing_head_keeps_its_key_parked_and_no_other(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        await backend.write(tx, given.id)
        if given.id == "k1" and backend.calls.count("k1") < 3:
            raise RuntimeError

    inbox = backend.inbox(handler, order="strict")
    assert isinstance(await backend.deliver(inbox, version(1)), Failed)
    assert isinstance(await backend.deliver(inbox, version(2)), Parked)
    assert isinstance(await backend.deliver(inbox, version(1, "other")), Handled)
    for _ in range(3):
        await backend.hours_pass()
        await backend.run_due(inbox)
    assert await backend.failed_messages() == {}
    assert backend.calls == ["k1", "other1", "k1", "k1", "k2"]


async def test_a_stream_seen_in_its_middle_waits_and_begins_with_the_smallest_at_hand(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    for number in (8, 7):
        assert isinstance(await backend.deliver(inbox, version(number)), Parked)
    assert await backend.run_due(inbox) == [], "not before the wait is over"
    assert 0 < ((await backend.failed_messages())["k7"].due_in_s or 0) <= 5
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert backend.calls == ["k7", "k8"]
    event = await backend.deliver(inbox, version(6))
    assert isinstance(event, DeadLettered)
    assert "came after version 8" in event.reason
    assert isinstance(await backend.deliver(inbox, version(9)), Handled)


async def test_an_earlier_one_that_comes_while_the_beginning_is_waited_for_goes_first(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    await backend.deliver(inbox, version(7))
    await backend.deliver(inbox, version(5))
    await backend.hours_pass()
    assert isinstance(await backend.deliver(inbox, version(4)), Handled)
    await backend.run_due(inbox)
    assert backend.calls == ["k4", "k5"]
    assert list(await backend.failed_messages()) == ["k7"]


async def test_a_beginning_that_fails_is_not_overtaken(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        if given.id == "k7" and backend.calls.count("k7") < 2:
            raise RuntimeError

    inbox = backend.inbox(handler, order="strict")
    await backend.deliver(inbox, version(7))
    await backend.deliver(inbox, version(8))
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert isinstance(await backend.deliver(inbox, version(9)), Parked)
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert backend.calls == ["k7", "k7", "k8", "k9"]


async def test_a_later_epoch_begins_anew_and_what_is_left_of_the_earlier_is_too_late(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    await backend.deliver(inbox, version(1))
    await backend.deliver(inbox, version(3))
    assert isinstance(await backend.deliver(inbox, later(1)), Handled)
    await backend.run_due(inbox)
    failed_message = (await backend.failed_messages())["k3"]
    assert (failed_message.state, backend.calls) == ("dead", ["k1", "later1"])
    assert f"epoch {EPOCH + 1}" in failed_message.reason
    assert isinstance(await backend.deliver(inbox, version(2)), DeadLettered)
    assert isinstance(await backend.deliver(inbox, later(2)), Handled)


async def test_a_later_epoch_seen_in_its_middle_waits_too(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    await backend.deliver(inbox, version(1))
    assert isinstance(await backend.deliver(inbox, later(3)), Parked)
    assert await backend.run_due(inbox) == []
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert (backend.calls, await progress(backend)) == (["k1", "later3"], [(EPOCH + 1, 3)])


@pytest.mark.parametrize("order", ["strict", "latest"])
@pytest.mark.parametrize(
    ("given", "missing"),
    [(message("m", version=1), "no key"), (message("m", key="k"), "no version"), (version(0), "no version")],
)
async def test_without_key_or_version_there_is_no_order_and_the_failed_message_says_so(
    backend: Backend, order: str, given: Message, missing: str
) -> None:
    event = await backend.deliver(backend.inbox(order=order), given)
    assert isinstance(event, DeadLettered)
    assert missing in event.reason


async def test_a_redelivered_message_that_is_early_is_parked_and_not_suspected(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    await backend.deliver(inbox, version(1))
    assert isinstance(await backend.deliver(inbox, version(3), redelivered=True), Parked)
    failed_message = (await backend.failed_messages())["k3"]
    assert (failed_message.started, failed_message.failed, failed_message.due_in_s) == (0, 0, None)
    assert isinstance(await backend.deliver(inbox, version(2), redelivered=True), Handled)
    await backend.run_due(inbox)
    assert (backend.calls, await backend.failed_messages()) == (["k1", "k2", "k3"], {})


class Unlocked(Postgres):
    """Looks where a stream stands without locking it."""

    lock = ""


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        pytest.param(STATEMENTS["postgres"], Handled, id="locked"),
        pytest.param(Statements(Unlocked()), Parked, id="planted-unlocked"),
    ],
)
async def test_who_comes_while_its_predecessor_is_being_handled_waits_for_it(
    on_postgres: Backend, statements: Statements, expected: type
) -> None:
    """Parked instead, it could be written down just after its predecessor looked for whom to wake: for ever."""
    backend = on_postgres
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        if given.id == "k2":
            entered.set()
            await leave.wait()

    inbox = backend.inbox(handler, order="strict")
    await backend.deliver(inbox, version(1))
    first = asyncio.create_task(backend.deliver(inbox, version(2)))
    await entered.wait()
    inbox.sql = statements
    second = asyncio.create_task(backend.deliver(inbox, version(3)))
    async with asyncio.timeout(PATIENCE_S):
        while not second.done() and not await backend.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
            pass
    leave.set()
    assert (type(await first), type(await second)) == (Handled, expected)


# --- latest --------------------------------------------------------------------------------------------------


async def test_latest_drops_what_is_older_and_says_so(backend: Backend) -> None:
    inbox = backend.inbox(order="latest")
    events = [await backend.deliver(inbox, version(number)) for number in (2, 5, 3, 5, 6)]
    assert [type(event) for event in events] == [Handled, Handled, Dropped, Duplicate, Handled]
    assert backend.calls == ["k2", "k5", "k6"]
    assert await backend.ledger() == ["k2", "k3", "k5", "k6"]
    assert isinstance(await backend.deliver(inbox, later(1)), Handled)
    assert isinstance(await backend.deliver(inbox, version(7)), Dropped)


async def test_a_failed_message_that_became_stale_is_dropped(backend: Backend) -> None:
    async def handler(given: Message) -> None:
        if given.id == "k1":
            raise RuntimeError

    inbox = backend.inbox(handler, order="latest")
    assert isinstance(await backend.deliver(inbox, version(1)), Failed)
    assert isinstance(await backend.deliver(inbox, version(2)), Handled)
    await backend.hours_pass()
    assert [type(event) for event in await backend.run_due(inbox)] == [Dropped]
    assert await backend.failed_messages() == {}


# --- what people do ------------------------------------------------------------------------------------------


async def dead_head(backend: Backend) -> Inbox:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        if given.id == "k2":
            raise RuntimeError("never")

    inbox = backend.inbox(handler, order="strict", attempts=1)
    for number in (1, 2, 3, 4):
        await backend.deliver(inbox, version(number))
    return inbox


async def test_a_dead_head_is_skipped_only_when_a_person_says_so_and_that_is_written_down(backend: Backend) -> None:
    inbox = await dead_head(backend)
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert backend.calls == ["k1", "k2"]
    await backend.flow(skip(backend.dialect, "billing", "k2", actor="ada"))
    await backend.run_due(inbox)
    assert backend.calls == ["k1", "k2", "k3", "k4"]
    failed_messages = await backend.failed_messages()
    assert {name: failed_message.reason for name, failed_message in failed_messages.items()} == {"k2": "skipped by ada"}
    [line] = await backend.flow(list_audit(backend.dialect))
    assert (line.actor, line.action, line.details["version"]) == ("ada", "skip", 2)


@pytest.mark.parametrize("name", ["k3", "nobody"])
async def test_only_a_dead_head_can_be_skipped(backend: Backend, name: str) -> None:
    await dead_head(backend)
    with pytest.raises(FailedMessageNotFit, match=name):
        await backend.flow(skip(backend.dialect, "billing", name, actor="ada"))
    assert await backend.flow(list_audit(backend.dialect)) == []


async def test_what_never_arrives_is_given_up_only_when_a_person_says_so(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    for number in (1, 4, 5):
        await backend.deliver(inbox, version(number))
    await backend.flow(resume_at(backend.dialect, "billing", "k4", actor="ada"))
    await backend.run_due(inbox)
    assert backend.calls == ["k1", "k4", "k5"]


async def test_a_discarded_head_does_not_let_the_others_pass(backend: Backend) -> None:
    inbox = await dead_head(backend)
    assert await backend.flow(discard(backend.dialect, "billing", ("k2", "k3"), actor="ada")) == 1
    assert [type(event) for event in await backend.run_due(inbox)] == [Parked]
    assert sorted(await backend.failed_messages()) == ["k3", "k4"]


# --- shuffled ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_shuffled_repeated_and_refused_each_key_is_handled_in_order_and_once(
    backend: Backend, seed: int
) -> None:
    dice = random.Random(seed)
    wanted = {key: [f"{key}{number}" for number in range(1, 9)] for key in ("a", "b", "c")}

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        if dice.random() < 0.2:
            raise RuntimeError
        handled.append(given.id)

    handled: list[str] = []
    inbox = backend.inbox(handler, order="strict", attempts=200)
    deliveries = [version(number, key) for key in wanted for number in range(1, 9)] * 2
    dice.shuffle(deliveries)
    # A key's first message is among the first: else where its stream begins is a matter of luck.
    deliveries.sort(key=lambda given: given.version != 1)
    for given in deliveries:
        await backend.deliver(inbox, given, redelivered=dice.random() < 0.3)
        if dice.random() < 0.3:
            await backend.hours_pass()
            await backend.run_due(inbox)
    for _ in range(100):
        if not await backend.failed_messages():
            break
        await backend.hours_pass()
        await backend.run_due(inbox)
    for key, names in wanted.items():
        assert [name for name in handled if name[0] == key] == names
    assert await backend.effects() == sorted(name for names in wanted.values() for name in names)
