"""A key that stood still catches up: what is parked runs in one go, in its order, each once, whatever fails."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._kernel.events import Duplicate, Failed, Handled, Parked
from onefold._kernel.messages import Message
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.errors import StoreError
from onefold.inbox import flow
from onefold.inbox.catching_up import put_back, run_in_one_go
from onefold.inbox.flow import Letter
from onefold.inbox.letters import take, take_run
from onefold.inbox.parcel import received
from onefold.testing.crash import Act, Boundaries, lose_connection, never_struck, strikes
from tests.inbox.test_crash import Killed, forget, kill
from tests.inbox.worlds import World, delivery, message


def version(number: int) -> Message:
    return message(f"k{number:03}", key="k", version=number)


def names(last: int, first: int = 1) -> list[str]:
    return [f"k{number:03}" for number in range(first, last + 1)]


class Stage:
    """A strict consumer whose second message fails for as long as it is told to, and what is parked behind it."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.bad = {"k002"}
        self.inbox = world.inbox(self._handler, order="strict", **settings)

    async def _handler(self, given: Message, tx: Transaction[Any]) -> None:
        self.world.calls.append(given.id)
        await self.world.write(tx, given.id)
        await tx.publish("done", given.id, key="all")
        if given.id in self.bad:
            raise RuntimeError("as you wish")

    async def park(self, last: int) -> None:
        """Version 1 is handled, 2 fails, and the others wait for it."""
        for number in range(1, last + 1):
            await self.world.deliver(self.inbox, version(number))
        assert sorted(await self.world.letters()) == names(last, 2)
        self.bad.clear()
        self.world.calls.clear()

    async def recover(self) -> Letter:
        """Version 2 is tried again, and handled."""
        await self.world.hours_pass()
        letter: Letter = (await self.world.flow(take(self.inbox, 1)))[0]
        lane, tx = self.world.lane()
        assert isinstance(await run_async(self.inbox.run_letter(letter, tx), lane), Handled)
        return letter

    async def take(self, last: Letter) -> list[Letter]:
        taken: list[Letter] = await self.world.flow(take_run(self.inbox, last.parcel))
        return taken

    async def run(self, letters: list[Letter], database: Any = None) -> list[Any]:
        lane, tx = self.world.lane(database)
        return await run_async(run_in_one_go(self.inbox, letters, tx), lane)

    async def published(self) -> list[Any]:
        return await self.world.rows("SELECT version FROM onefold_outbox ORDER BY version")


async def test_successive_versions_run_in_one_transaction_and_in_their_order(world: World) -> None:
    stage = Stage(world)
    await stage.park(12)
    letters = await stage.take(await stage.recover())
    assert [letter.parcel.id for letter in letters] == names(12, 3)
    events = await stage.run(letters)
    assert [type(event) for event in events] == [Handled] * 10
    assert (world.calls, await world.effects(), await world.ledger()) == (names(12, 2), names(12), names(12))
    assert (await world.letters(), await world.rows("SELECT version FROM onefold_progress")) == ({}, [(12,)])
    assert len(await stage.published()) == 12
    if world.dialect == "postgres":
        xids = await world.rows("SELECT count(DISTINCT xmin::text) FROM effects WHERE id > 'k002'")
        assert xids == [(1,)]
    assert await world.deliver(stage.inbox, version(13)) == Handled("billing", "order.placed")


async def test_a_run_ends_at_a_gap_and_at_one_that_has_a_time_of_its_own(world: World) -> None:
    stage = Stage(world)
    await stage.park(9)
    await world.change("DELETE FROM onefold_letter WHERE message_id = 'k007'")
    head = await stage.recover()
    letters = await stage.take(head)
    assert [letter.parcel.id for letter in letters] == names(6, 3)
    await world.flow(put_back(stage.inbox, letters))
    await world.change("UPDATE onefold_letter SET failed = 1, started = 1 WHERE message_id = 'k004'")
    later = "now() + interval '1 hour'" if world.dialect == "postgres" else "32503680000000"
    column = "due_at" if world.dialect == "postgres" else "due_at_ms"
    await world.change(f"UPDATE onefold_letter SET {column} = {later} WHERE message_id = 'k004'")
    assert [letter.parcel.id for letter in await stage.take(head)] == ["k003"]


async def test_if_one_of_a_run_fails_nothing_of_it_stays_and_one_by_one_only_that_one_has_failed(world: World) -> None:
    stage = Stage(world)
    await stage.park(8)
    letters = await stage.take(await stage.recover())
    stage.bad.add("k005")
    assert await stage.run(letters) == []
    assert await world.effects() == names(2)
    events: list[Any] = []
    while letters and not (events and isinstance(events[-1], Failed)):
        lane, tx = world.lane()
        events.append(await run_async(stage.inbox.run_letter(letters.pop(0), tx), lane))
    await world.flow(put_back(stage.inbox, letters))
    assert [type(event) for event in events] == [Handled, Handled, Failed]
    kept = await world.letters()
    assert {name: (kept[name].started, kept[name].failed, kept[name].due_in_s is None) for name in kept} == {
        "k005": (1, 1, False),
        "k006": (0, 0, True),
        "k007": (0, 0, True),
        "k008": (0, 0, True),
    }
    stage.bad.clear()
    await world.hours_pass()
    await world.run_due(stage.inbox)
    assert (await world.effects(), await world.letters()) == (names(8), {})


async def test_what_there_was_no_time_for_is_parked_again_and_runs_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "RUN_S_MAX", 0.0)
    stage = Stage(world)
    await stage.park(6)
    letters = await stage.take(await stage.recover())
    assert len(await stage.run(letters)) == 1
    kept = await world.letters()
    assert {name: (letter.started, letter.due_in_s is None) for name, letter in kept.items()} == {
        "k004": (0, False),
        "k005": (0, True),
        "k006": (0, True),
    }
    await world.run_due(stage.inbox)
    assert (world.calls, await world.letters()) == (names(6, 2), {})


async def test_a_run_whose_turn_is_past_does_nothing_and_its_letters_are_known_one_by_one(world: World) -> None:
    """Its lease ran out, and another process has handled them meanwhile."""
    stage = Stage(world)
    await stage.park(5)
    letters = await stage.take(await stage.recover())
    await world.change("UPDATE onefold_letter SET started = started - 1")
    await world.hours_pass()
    await world.run_due(stage.inbox)
    assert await stage.run(letters) == []
    for letter in letters:
        lane, tx = world.lane()
        assert isinstance(await run_async(stage.inbox.run_letter(letter, tx), lane), Duplicate)
    assert await world.effects() == names(5)


async def test_letters_put_back_are_woken_if_what_they_waited_for_was_handled_meanwhile(world: World) -> None:
    stage = Stage(world)
    await stage.park(6)
    letters = await stage.take(await stage.recover())
    lane, tx = world.lane()
    await run_async(stage.inbox.run_letter(letters[0], tx), lane)
    await world.flow(put_back(stage.inbox, letters[1:]))
    await world.run_due(stage.inbox)
    assert (await world.effects(), await world.letters()) == (names(6), {})


async def test_what_arrives_behind_a_key_that_stands_is_parked_in_one_transaction(world: World) -> None:
    stage = Stage(world)
    for number in (1, 2, 3):
        await world.deliver(stage.inbox, version(number))
    assert stage.inbox.behind == {received(delivery(version(3))).stream}
    given = [delivery(version(number)) for number in (3, 4, 5, 5, 7)]
    lane, tx = world.lane()
    events = await run_async(stage.inbox.handle_batch(given, tx), lane)
    assert events is not None
    assert [type(event) for event in events] == [Duplicate, Parked, Parked, Duplicate, Parked]
    assert sorted(await world.letters()) == ["k002", "k003", "k004", "k005", "k007"]
    if world.dialect == "postgres":
        xids = await world.rows("SELECT count(DISTINCT xmin::text) FROM onefold_letter WHERE message_id > 'k003'")
        assert xids == [(1,)]


@pytest.mark.parametrize("parked", [True, False])
async def test_what_may_be_in_its_turn_is_not_parked_with_others(world: World, parked: bool) -> None:
    stage = Stage(world)
    stage.bad = {"k002"} if parked else set()
    for number in (1, 2, 3):
        await world.deliver(stage.inbox, version(number))
    given = [delivery(version(number)) for number in ((2, 4) if parked else (4, 5))]
    lane, tx = world.lane()
    assert await run_async(stage.inbox.handle_batch(given, tx), lane) is None


async def test_a_stream_is_no_longer_behind_when_a_delivery_of_it_was_in_its_turn(world: World) -> None:
    stage = Stage(world)
    await stage.park(3)
    await stage.run(await stage.take(await stage.recover()))
    assert stage.inbox.behind
    await world.deliver(stage.inbox, version(4))
    assert not stage.inbox.behind


@pytest.mark.parametrize("act", [lose_connection, kill], ids=["lost", "killed"])
async def test_wherever_a_run_is_struck_each_of_its_messages_has_its_effect_once_and_in_order(
    world: World, act: Act
) -> None:
    struck, counted = [], []
    for strike in strikes(act):
        await forget(world)
        stage = Stage(world)
        await stage.park(5)
        letters = await stage.take(await stage.recover())
        boundaries = Boundaries(strike)
        try:
            await stage.run(letters, boundaries.around_async(world.database))
        except (StoreError, Killed):
            for _ in names(5):  # they are suspects now: each is run alone when its lease is over
                await world.hours_pass()
                await world.run_due(stage.inbox)
        if strike.struck is None:
            counted = boundaries.crossings
        else:
            struck.append(strike.struck)
        seen = (await world.effects(), await world.ledger(), await world.letters(), len(await stage.published()))
        assert seen == (names(5), names(5), {}, 5), strike.struck
        assert await world.rows("SELECT version FROM onefold_progress") == [(5,)]
    assert never_struck(counted, struck) == []
    assert len(struck) >= 8


async def test_control_a_run_that_leaves_its_ledger_rows_out_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(world)
    await stage.park(5)
    letters = await stage.take(await stage.recover())
    runs = stage.inbox.sql.runs
    monkeypatch.setattr(runs, "write", lambda consumer, ids: runs.known(consumer, ids))
    await stage.run(letters)
    assert await world.ledger() != names(5)


async def test_a_letter_that_is_started_is_not_started_again_when_its_turn_comes(world: World) -> None:
    """Two of one key are started together, as when both were made due: the first one's end must not take the second
    one's lease, which would start it once more, as what its process has died of."""

    async def failing(given: Message) -> None:
        raise RuntimeError

    for number in (1, 2):
        await world.deliver(world.inbox(failing, order="strict"), message(f"m{number}", key="k", version=number))
    column, past = ("due_at", "now()") if world.dialect == "postgres" else ("due_at_ms", "1")
    await world.change(f"UPDATE onefold_letter SET {column} = {past}")
    inbox = world.inbox(order="strict")
    first, second = await world.flow(take(inbox, 10))
    lane, tx = world.lane()
    assert isinstance(await run_async(inbox.run_letter(first, tx), lane), Handled)
    assert await world.flow(take(inbox, 10, suspects=True)) == []
    lane, tx = world.lane()
    assert isinstance(await run_async(inbox.run_letter(second, tx), lane), Handled)
