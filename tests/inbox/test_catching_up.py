"""A key that stood still catches up: what is parked runs in one go, in its order, each once, whatever fails."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._inbox import handling
from onefold._inbox.catching_up import put_back, run_in_one_go
from onefold._inbox.failed_messages import take, take_run
from onefold._inbox.stored_message import FailedMessage, stored_from_delivery
from onefold._kernel.messages import Message
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.errors import StoreError
from onefold.telemetry import Duplicate, Failed, Handled, Parked
from tests.inbox.backends import Backend, delivery, message
from tests.inbox.test_crash import Killed, forget, kill
from tests.support.crash import Act, Boundaries, lose_connection, never_struck, strikes


def version(number: int) -> Message:
    return message(f"k{number:03}", key="k", version=number)


def names(last: int, first: int = 1) -> list[str]:
    return [f"k{number:03}" for number in range(first, last + 1)]


class Stage:
    """A strict consumer whose second message fails for as long as it is told to, and what is parked behind it."""

    def __init__(self, backend: Backend, **settings: Any) -> None:
        self.backend = backend
        self.bad = {"k002"}
        self.inbox = backend.inbox(self._handler, order="strict", **settings)

    async def _handler(self, given: Message, tx: Transaction[Any]) -> None:
        self.backend.calls.append(given.id)
        await self.backend.write(tx, given.id)
        await tx.publish("done", given.id, key="all")
        if given.id in self.bad:
            raise RuntimeError("as you wish")

    async def park(self, last: int) -> None:
        """Version 1 is handled, 2 fails, and the others wait for it."""
        for number in range(1, last + 1):
            await self.backend.deliver(self.inbox, version(number))
        assert sorted(await self.backend.failed_messages()) == names(last, 2)
        self.bad.clear()
        self.backend.calls.clear()

    async def recover(self) -> FailedMessage:
        """Version 2 is tried again, and handled."""
        await self.backend.hours_pass()
        failed_message: FailedMessage = (await self.backend.flow(take(self.inbox, 1)))[0]
        executor, tx = self.backend.executor()
        assert isinstance(await run_async(self.inbox.run_failed(failed_message, tx), executor), Handled)
        return failed_message

    async def take(self, last: FailedMessage) -> list[FailedMessage]:
        taken: list[FailedMessage] = await self.backend.flow(take_run(self.inbox, last))
        return taken

    async def run(self, failed_messages: list[FailedMessage], database: Any = None) -> list[Any]:
        executor, tx = self.backend.executor(database)
        return await run_async(run_in_one_go(self.inbox, failed_messages, tx), executor)

    async def published(self) -> list[Any]:
        return await self.backend.rows("SELECT version FROM onefold_outbox ORDER BY version")


async def test_successive_versions_run_in_one_transaction_and_in_their_order(backend: Backend) -> None:
    stage = Stage(backend)
    await stage.park(12)
    failed_messages = await stage.take(await stage.recover())
    assert [failed_message.id for failed_message in failed_messages] == names(12, 3)
    events = await stage.run(failed_messages)
    assert [type(event) for event in events] == [Handled] * 10
    assert (backend.calls, await backend.effects(), await backend.ledger()) == (names(12, 2), names(12), names(12))
    assert (await backend.failed_messages(), await backend.rows("SELECT version FROM onefold_progress")) == (
        {},
        [(12,)],
    )
    assert len(await stage.published()) == 12
    if backend.dialect == "postgres":
        xids = await backend.rows("SELECT count(DISTINCT xmin::text) FROM effects WHERE id > 'k002'")
        assert xids == [(1,)]
    assert await backend.deliver(stage.inbox, version(13)) == Handled("billing", "order.placed")


async def test_a_run_ends_at_a_gap_and_at_one_that_has_a_time_of_its_own(backend: Backend) -> None:
    stage = Stage(backend)
    await stage.park(9)
    await backend.change("DELETE FROM onefold_letter WHERE message_id = 'k007'")
    head = await stage.recover()
    failed_messages = await stage.take(head)
    assert [failed_message.id for failed_message in failed_messages] == names(6, 3)
    await backend.flow(put_back(stage.inbox, failed_messages))
    await backend.change("UPDATE onefold_letter SET failed = 1, started = 1 WHERE message_id = 'k004'")
    later = "now() + interval '1 hour'" if backend.dialect == "postgres" else "32503680000000"
    column = "due_at" if backend.dialect == "postgres" else "due_at_ms"
    await backend.change(f"UPDATE onefold_letter SET {column} = {later} WHERE message_id = 'k004'")
    assert [failed_message.id for failed_message in await stage.take(head)] == ["k003"]


async def test_if_one_of_a_run_fails_nothing_of_it_stays_and_one_by_one_only_that_one_has_failed(
    backend: Backend,
) -> None:
    stage = Stage(backend)
    await stage.park(8)
    failed_messages = await stage.take(await stage.recover())
    stage.bad.add("k005")
    assert await stage.run(failed_messages) == []
    assert await backend.effects() == names(2)
    events: list[Any] = []
    while failed_messages and not (events and isinstance(events[-1], Failed)):
        executor, tx = backend.executor()
        events.append(await run_async(stage.inbox.run_failed(failed_messages.pop(0), tx), executor))
    await backend.flow(put_back(stage.inbox, failed_messages))
    assert [type(event) for event in events] == [Handled, Handled, Failed]
    kept = await backend.failed_messages()
    assert {name: (kept[name].started, kept[name].failed, kept[name].due_in_s is None) for name in kept} == {
        "k005": (1, 1, False),
        "k006": (0, 0, True),
        "k007": (0, 0, True),
        "k008": (0, 0, True),
    }
    stage.bad.clear()
    await backend.hours_pass()
    await backend.run_due(stage.inbox)
    assert (await backend.effects(), await backend.failed_messages()) == (names(8), {})


async def test_what_there_was_no_time_for_is_parked_again_and_runs_next(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "RUN_S_MAX", 0.0)
    stage = Stage(backend)
    await stage.park(6)
    failed_messages = await stage.take(await stage.recover())
    assert len(await stage.run(failed_messages)) == 1
    kept = await backend.failed_messages()
    assert {
        name: (failed_message.started, failed_message.due_in_s is None) for name, failed_message in kept.items()
    } == {
        "k004": (0, False),
        "k005": (0, True),
        "k006": (0, True),
    }
    await backend.run_due(stage.inbox)
    assert (backend.calls, await backend.failed_messages()) == (names(6, 2), {})


async def test_a_run_whose_turn_is_past_does_nothing_and_its_failed_messages_are_known_one_by_one(
    backend: Backend,
) -> None:
    """Its lease ran out, and another process has handled them meanwhile."""
    stage = Stage(backend)
    await stage.park(5)
    failed_messages = await stage.take(await stage.recover())
    await backend.change("UPDATE onefold_letter SET started = started - 1")
    await backend.hours_pass()
    await backend.run_due(stage.inbox)
    assert await stage.run(failed_messages) == []
    for failed_message in failed_messages:
        executor, tx = backend.executor()
        assert isinstance(await run_async(stage.inbox.run_failed(failed_message, tx), executor), Duplicate)
    assert await backend.effects() == names(5)


async def test_failed_messages_put_back_are_woken_if_what_they_waited_for_was_handled_meanwhile(
    backend: Backend,
) -> None:
    stage = Stage(backend)
    await stage.park(6)
    failed_messages = await stage.take(await stage.recover())
    executor, tx = backend.executor()
    await run_async(stage.inbox.run_failed(failed_messages[0], tx), executor)
    await backend.flow(put_back(stage.inbox, failed_messages[1:]))
    await backend.run_due(stage.inbox)
    assert (await backend.effects(), await backend.failed_messages()) == (names(6), {})


async def test_what_arrives_behind_a_key_that_stands_is_parked_in_one_transaction(backend: Backend) -> None:
    stage = Stage(backend)
    for number in (1, 2, 3):
        await backend.deliver(stage.inbox, version(number))
    assert stage.inbox.behind == {stored_from_delivery(delivery(version(3))).stream}
    given = [delivery(version(number)) for number in (3, 4, 5, 5, 7)]
    executor, tx = backend.executor()
    events = await run_async(stage.inbox.handle_batch(given, tx), executor)
    assert events is not None
    assert [type(event) for event in events] == [Duplicate, Parked, Parked, Duplicate, Parked]
    assert sorted(await backend.failed_messages()) == ["k002", "k003", "k004", "k005", "k007"]
    if backend.dialect == "postgres":
        xids = await backend.rows("SELECT count(DISTINCT xmin::text) FROM onefold_letter WHERE message_id > 'k003'")
        assert xids == [(1,)]


@pytest.mark.parametrize("parked", [True, False])
async def test_what_may_be_in_its_turn_is_not_parked_with_others(backend: Backend, parked: bool) -> None:
    stage = Stage(backend)
    stage.bad = {"k002"} if parked else set()
    for number in (1, 2, 3):
        await backend.deliver(stage.inbox, version(number))
    given = [delivery(version(number)) for number in ((2, 4) if parked else (4, 5))]
    executor, tx = backend.executor()
    assert await run_async(stage.inbox.handle_batch(given, tx), executor) is None


async def test_a_stream_is_no_longer_behind_when_a_delivery_of_it_was_in_its_turn(backend: Backend) -> None:
    stage = Stage(backend)
    await stage.park(3)
    await stage.run(await stage.take(await stage.recover()))
    assert stage.inbox.behind
    await backend.deliver(stage.inbox, version(4))
    assert not stage.inbox.behind


@pytest.mark.parametrize("act", [lose_connection, kill], ids=["lost", "killed"])
async def test_wherever_a_run_is_struck_each_of_its_messages_has_its_effect_once_and_in_order(
    backend: Backend, act: Act
) -> None:
    struck, counted = [], []
    for strike in strikes(act):
        await forget(backend)
        stage = Stage(backend)
        await stage.park(5)
        failed_messages = await stage.take(await stage.recover())
        boundaries = Boundaries(strike)
        try:
            await stage.run(failed_messages, boundaries.around_async(backend.database))
        except (StoreError, Killed):
            for _ in names(5):  # they are suspects now: each is run alone when its lease is over
                await backend.hours_pass()
                await backend.run_due(stage.inbox)
        if strike.struck is None:
            counted = boundaries.crossings
        else:
            struck.append(strike.struck)
        seen = (
            await backend.effects(),
            await backend.ledger(),
            await backend.failed_messages(),
            len(await stage.published()),
        )
        assert seen == (names(5), names(5), {}, 5), strike.struck
        assert await backend.rows("SELECT version FROM onefold_progress") == [(5,)]
    assert never_struck(counted, struck) == []
    assert len(struck) >= 8


async def test_control_a_run_that_leaves_its_ledger_rows_out_is_found(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(backend)
    await stage.park(5)
    failed_messages = await stage.take(await stage.recover())
    runs = stage.inbox.sql.runs
    monkeypatch.setattr(runs, "write", lambda consumer, ids: runs.known(consumer, ids))
    await stage.run(failed_messages)
    assert await backend.ledger() != names(5)


async def test_a_failed_message_that_is_started_is_not_started_again_when_its_turn_comes(backend: Backend) -> None:
    """Two of one key are started together, as when both were made due: the first one's end must not take the second
    one's lease, which would start it once more, as what its process has died of."""

    async def failing(given: Message) -> None:
        raise RuntimeError

    for number in (1, 2):
        await backend.deliver(backend.inbox(failing, order="strict"), message(f"m{number}", key="k", version=number))
    column, past = ("due_at", "now()") if backend.dialect == "postgres" else ("due_at_ms", "1")
    await backend.change(f"UPDATE onefold_letter SET {column} = {past}")
    inbox = backend.inbox(order="strict")
    first, second = await backend.flow(take(inbox, 10))
    executor, tx = backend.executor()
    assert isinstance(await run_async(inbox.run_failed(first, tx), executor), Handled)
    assert await backend.flow(take(inbox, 10, suspects=True)) == []
    executor, tx = backend.executor()
    assert isinstance(await run_async(inbox.run_failed(second, tx), executor), Handled)
