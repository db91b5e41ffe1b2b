"""The lives of a relay: what it has at hand when it dies, what waits for its time, and a crash at every effect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import new_id
from onefold._kernel.messages import Confirm, Message
from onefold._outbox.claimed_rows import ClaimedRow
from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession, TickResult
from onefold._outbox.retention import forget
from onefold.errors import (
    StoreError,
)
from tests.outbox.relaying import Stage, opened, refusing
from tests.support.crash import Act, Boundaries, Crossing, lose_connection, strikes


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


ATTEMPTS = "SELECT data, started, finished, error FROM onefold_outbox ORDER BY coalesce(key, 'z'), version"


# --- rows that kill -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing of it goes on."""


async def test_a_row_that_kills_its_relay_is_found_and_set_aside_and_its_mates_are_published(stage: Stage) -> None:
    await stage.write(("m1", "a"), ("m2", "b"), ("killer", "c"), ("behind", "c"), ("m3", "d"))
    [killer] = await stage.fetch("SELECT id FROM onefold_outbox WHERE key = 'c' AND version = 1")

    def answer(message: Message) -> Confirm:
        if message.data == b"killer":
            raise Killed
        return None

    stage.broker.answer = answer
    aside: list[tuple[str, str]] = []
    deaths = 0
    for _ in range(10):
        session = stage.session()
        aside += (await stage.run(session.enter())).set_aside
        try:
            await stage.drain(session)
        except Killed:
            deaths += 1
            await stage.expire(session)
        else:
            break
    assert deaths == 3
    assert aside == [(killer[0], "t")]
    assert sorted(set(stage.broker.names)) == ["m1", "m2", "m3"]
    rows = await stage.fetch(ATTEMPTS)
    assert [row[:3] for row in rows] == [(b"killer", 3, 0), (b"behind", 1, 0)]
    assert "at hand when a relay died" in rows[0][3]
    assert await stage.run(make_due_claimable(stage.dialect)) is None  # it waits for a person


async def test_suspects_are_published_alone(stage: Stage) -> None:
    for name in "abcd":
        await stage.write((name, name))
    await stage.execute("UPDATE onefold_outbox SET started = 1 WHERE key IN ('b', 'c')")
    await stage.drain(await stage.entered())
    assert [[message.data for message in call] for call in stage.broker.calls] == [[b"a"], [b"b"], [b"c"], [b"d"]]


async def test_what_was_marked_is_not_suspected_when_its_relay_dies_later(stage: Stage) -> None:
    await stage.write(("kept", "a"), ("refused", "b"))
    session = await stage.entered(keep_published_s=60)
    await stage.run(session.tick(), refusing("refused"))
    await stage.expire(session)
    await stage.entered()
    assert [row[:3] for row in await stage.fetch(ATTEMPTS)] == [(b"kept", 0, 0), (b"refused", 1, 1)]


# --- later, and past ----------------------------------------------------------------------------------------


async def test_a_delayed_event_waits_until_it_is_due(stage: Stage) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await stage.write(("later", None), not_before=later)
    session = await stage.entered()
    assert (await stage.run(session.tick())).claimed == 0
    next_s = await stage.run(make_due_claimable(stage.dialect))
    assert 3500 < next_s <= 3600
    await stage.make_due()
    assert await stage.run(make_due_claimable(stage.dialect)) is None
    await stage.drain(session)
    assert stage.broker.names == ["later"]


async def test_what_is_due_is_let_go_in_bounded_batches(stage: Stage) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await stage.write(*(((str(number)), None) for number in range(5)), not_before=later)
    await stage.make_due()
    assert await stage.run(make_due_claimable(stage.dialect, limit=3)) == 0.0
    assert await stage.fetch("SELECT count(*) FROM onefold_outbox WHERE due_at IS NULL") == [(3,)]
    assert await stage.run(make_due_claimable(stage.dialect, limit=3)) is None


async def test_published_rows_are_kept_as_long_as_wanted_and_unpublished_ones_for_ever(stage: Stage) -> None:
    await stage.write(*((str(number), f"k{number}") for number in range(7)))
    session = await stage.entered(keep_published_s=3600)
    await stage.run(session.tick(rows_max=5))
    assert await stage.waiting() == 2
    assert await stage.run(forget(stage.dialect, keep_s=3600)) == 0
    await stage.execute("UPDATE onefold_outbox SET written_at = <past>")
    await stage.execute("UPDATE onefold_outbox SET published_at = <past> WHERE published_at IS NOT NULL")
    assert await stage.run(forget(stage.dialect, keep_s=1800, limit=2, batches_max=2)) == 4
    assert await stage.run(forget(stage.dialect, keep_s=1800)) == 1
    assert await stage.waiting() == 2
    await stage.drain(session)
    assert len(stage.broker.taken) == 7


# --- crashes ------------------------------------------------------------------------------------------------


def kill(crossing: Crossing) -> None:
    raise Killed


class Hasty(RelaySession):
    """A planted mistake: rows are marked as published before they are."""

    async def _publish(self, rows: Sequence[ClaimedRow]) -> TickResult:
        sent = TickResult(claimed=len(rows), confirmed=[row.position for row in rows])
        await with_connection(lambda: self._mark(sent))
        return await super()._publish(rows)


async def campaign(stage: Stage, fault: Act, kind: type[RelaySession] = RelaySession) -> tuple[int, list[str]]:
    """A tick and a tending with a fault at crossing 1, 2, 3 ..., each followed by another relay's recovery; how many
    crossings there were, and what was wrong afterwards."""
    whole, rounds, wrong = stage.database, 0, []
    for strike in strikes(fault):
        rounds += 1
        names = {f"{rounds}-{name}" for name in "1234"}
        stage.broker = broker = refusing(f"{rounds}-4")
        await stage.write(*((f"{rounds}-{name}", "k") for name in "12"), (f"{rounds}-3", None), (f"{rounds}-4", "o"))
        session = kind(new_id(wall_ms()), stage.dialect, RelayConfig(batch_max=640), lambda: 0.5)
        await stage.run(session.enter())
        boundaries = Boundaries(strike)
        broker.before = partial(crossed, boundaries)
        stage.database = boundaries.around_async(whole)
        with suppress(StoreError, Killed):
            await stage.run(session.tick())
            await stage.run(session.renew_and_rebalance())
        stage.database, broker.before = whole, None
        broker.answer = lambda message: None
        await stage.expire(session)
        successor = await stage.entered(batch_max=640)
        await stage.make_due()
        await stage.run(make_due_claimable(stage.dialect))
        await stage.drain(successor)
        await stage.run(successor.leave())
        versions = broker.first_versions().get("k", [])
        if await stage.waiting() or not names <= set(broker.names) or versions != sorted(versions):
            wrong.append(f"{strike.struck}: {await stage.waiting()} left, {broker.names}")
    return rounds, wrong


async def crossed(boundaries: Boundaries) -> None:
    with boundaries.around_step("publish"):
        pass


@pytest.mark.parametrize("fault", [lose_connection, kill])
async def test_a_crash_at_any_effect_of_a_tick_loses_nothing_and_keeps_the_order(stage: Stage, fault: Act) -> None:
    rounds, wrong = await campaign(stage, fault)
    assert wrong == []
    assert rounds > 20


async def test_control_a_relay_that_marks_before_it_publishes_is_seen_to_lose(stage: Stage) -> None:
    _, wrong = await campaign(stage, kill, Hasty)
    assert wrong
