"""One destination that takes nothing is paused alone, an event that is refused again and again ends as a dead letter,
and no stream waits for another one's backlog."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from onefold._kernel.messages import Confirm, Message
from onefold._outbox.claimed_rows import read
from onefold._outbox.destinations import PROBE_ROWS, Destinations
from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.relay_session import RelaySession
from onefold._outbox.status_report import report, retry
from onefold.errors import BrokerUnavailable, MessageRefused
from tests.outbox.relaying import ScriptedBroker, Stage, down, opened


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


ATTEMPTS = "SELECT data, started, finished, error FROM onefold_outbox ORDER BY coalesce(key, 'z'), version"


def full(*topics: str) -> ScriptedBroker:
    """A broker that takes nothing on these topics."""
    broker = ScriptedBroker()
    broker.answer = lambda message: BrokerUnavailable("it is full") if message.topic in topics else None
    return broker


# --- pauses -------------------------------------------------------------------------------------------------


async def test_a_destination_that_takes_nothing_is_paused_and_the_others_go_on(stage: Stage) -> None:
    await stage.write(*((f"bad{number}", f"k{number % 20}") for number in range(300)), topic="full")
    await stage.write(*((f"bad{number}", None) for number in range(300)), topic="full")
    await stage.write(*((f"good{number}", f"k{number}") for number in range(40)), topic="fine")
    session = await stage.entered(batch_max=100)
    broker = full("full")
    reports = [await stage.run(session.tick(probing=number < 3), broker) for number in range(13)]
    assert len(broker.taken) == 40
    assert [name for sent in reports for name in sent.paused] == ["full"]
    assert sum(len(call) for call in broker.calls) < 40 + 600  # it was not asked again and again
    assert await stage.fetch("SELECT sum(started), sum(finished), count(error) FROM onefold_outbox") == [(0, 0, 0)]


async def test_a_paused_destination_is_tried_with_a_few_and_other_events_each_time(stage: Stage) -> None:
    await stage.write(*((f"{number:02}", None) for number in range(40)))
    session = await stage.entered()
    broker = down()
    await stage.run(session.tick(), broker)
    first = {message.data for message in broker.calls[0]}
    assert len(first) == 40
    tried: set[bytes] = set()
    for _ in range(4):
        end_pauses(session._destinations)
        await stage.run(session.tick(), broker)
        assert len(broker.calls[-1]) == PROBE_ROWS
        tried |= {message.data for message in broker.calls[-1]}
    assert tried == first
    end_pauses(session._destinations)
    sent = await stage.run(session.tick())
    assert sent.resumed == ["t"]
    await stage.drain(session)
    assert len(stage.broker.taken) == 40


async def test_events_that_are_never_taken_do_not_stop_their_destination(stage: Stage) -> None:
    """Ten of them, and older than all others: as many as a probe takes."""
    await stage.write(*((f"bad{number}", None) for number in range(PROBE_ROWS)))
    session = await stage.entered()
    broker = ScriptedBroker()
    broker.answer = lambda message: BrokerUnavailable("500") if message.data.startswith(b"bad") else None
    for _ in range(3):
        await stage.run(session.tick(), broker)
        end_pauses(session._destinations)
    await stage.write(*((f"good{number}", None) for number in range(100)))
    for _ in range(12):
        await stage.run(session.tick(probing=True), broker)
        end_pauses(session._destinations)
    await stage.drain(session)
    assert sum(message.data.startswith(b"good") for message in broker.taken + stage.broker.taken) == 100
    assert len(broker.taken) > 0


def end_pauses(destinations: Destinations) -> None:
    for pause in destinations._paused.values():
        pause.until = float("-inf")


async def test_an_outage_is_when_nothing_of_a_round_was_confirmed(stage: Stage) -> None:
    await stage.write(("a1", "a"), topic="fine")
    await stage.write(("b1", "b"), topic="full")
    session = await stage.entered()
    assert (await stage.run(session.tick(), full("full"))).outage is None
    await stage.write(("a2", "a"), topic="fine")
    assert (await stage.run((await taking_over(stage)).tick(), full("full", "fine"))).outage is not None


async def taking_over(stage: Stage) -> RelaySession:
    """A relay that has all buckets, and knows of no pause."""
    await stage.execute("UPDATE onefold_relay SET leased_until = <past>")
    return await stage.entered()


# --- dead letters -------------------------------------------------------------------------------------------


async def test_an_event_that_is_refused_too_often_is_a_dead_letter_until_a_person_says_so(stage: Stage) -> None:
    [bad, _] = await stage.write(("bad", "a"), ("behind", "a"))
    session = await stage.entered(attempts_max=3)
    broker = ScriptedBroker()
    broker.answer = lambda message: MessageRefused("too large")
    dead = []
    for _ in range(5):
        dead += (await stage.run(session.tick(), broker)).dead
        await stage.make_due()
        await stage.run(make_due_claimable(stage.dialect))
    assert dead == [(bad, "t", "too large")]
    assert len(broker.calls) == 3
    [stopped] = (await stage.run(report(stage.dialect))).stopped
    assert (stopped.id, stopped.attempts, stopped.next_try_s) == (bad, 3, None)
    assert await stage.fetch("SELECT count(died_at) FROM onefold_outbox") == [(1,)]
    assert await stage.run(retry(stage.dialect, [bad])) == 1
    assert await stage.fetch(ATTEMPTS) == [(b"bad", 0, 0, "too large"), (b"behind", 0, 0, None)]
    await stage.drain(session)
    assert stage.broker.names == ["bad", "behind"]


async def test_an_event_that_fails_while_its_destination_takes_others_counts_from_the_second_time_on(
    stage: Stage,
) -> None:
    """The first time it may have been a connection that was lost half-way."""
    await stage.write(("bad", "a"))
    session = await stage.entered(attempts_max=3)

    def answer(message: Message) -> Confirm:
        return BrokerUnavailable("500") if message.data == b"bad" else None

    broker = ScriptedBroker()
    broker.answer = answer
    found = []
    for number in range(5):
        await stage.write((f"good{number}", None))
        await stage.run(session.tick(), broker)
        found += await stage.fetch("SELECT started, finished FROM onefold_outbox")
        await stage.make_due()
        await stage.run(make_due_claimable(stage.dialect))
    assert found == [(0, 0), (1, 1), (2, 2), (3, 3), (3, 3)]
    assert len(broker.taken) == 5


# --- streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_max", [10, 1000])
async def test_a_backlog_of_one_key_does_not_hold_up_the_others(stage: Stage, batch_max: int) -> None:
    """Also in its own bucket."""
    await stage.write(*((f"hot{number}", "hot") for number in range(3000)))
    await stage.write(*((f"cold{number}", f"k{number}") for number in range(100)), ("x", None))
    await stage.execute("UPDATE onefold_outbox SET bucket = 7 WHERE key IS NOT NULL")
    session = await stage.entered(batch_max=batch_max)
    cold = 0
    for _ in range(40):
        await stage.run(session.tick())
        cold = sum(not message.data.startswith(b"hot") for message in stage.broker.taken)
        if cold == 101:
            break
    assert cold == 101
    assert len(stage.broker.taken) < 2500
    await stage.drain(session)
    assert stage.broker.first_versions()["hot"] == list(range(1, 3001))


async def test_a_round_ends_after_a_while_so_that_who_came_meanwhile_has_its_turn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold._outbox.relay_session.ROUND_S", -1.0)
    await stage.write(*((str(number), "k") for number in range(4)))
    session = await stage.entered(batch_max=640)
    sent = await stage.run(session.tick())
    assert (sent.claimed, len(sent.confirmed)) == (4, 1)
    await stage.drain(session)
    assert stage.broker.names == [str(number) for number in range(4)]


async def test_every_stream_has_its_turn_however_many_are_stopped(stage: Stage) -> None:
    await stage.write(*((f"bad{number}", f"k{number}") for number in range(300) for _ in range(3)))
    await stage.execute("UPDATE onefold_outbox SET due_at = <never>, error = 'no' WHERE version = 1")
    await stage.execute("UPDATE onefold_outbox SET bucket = 7")
    session = await stage.entered(batch_max=64)
    await stage.write(*((f"good{number}", f"g{number}") for number in range(30)))
    await stage.execute("UPDATE onefold_outbox SET bucket = 7")
    await stage.drain(session)
    assert len(stage.broker.taken) == 30


def test_probes_of_a_destination_turn() -> None:
    destinations = Destinations(lambda: 0.0)
    row = (0, 1, None, "id", "s", "t", None, None, None, "", "", "{}", b"", 0, 0, None, None)
    rows = [read((0, number, *row[2:])) for number in range(25)]
    assert destinations.select(rows, first=True) == rows
    assert destinations.note_refused_all("t", 0.0)
    found = []
    for _ in range(3):
        found.append([row.position for row in destinations.select(rows, first=True)])
        assert not destinations.note_refused_all("t", 0.0)
    assert found == [[*range(10)], [*range(10, 20)], [*range(20, 25), *range(5)]]
    assert destinations.select(rows, first=False) == []
    assert destinations.paused_at(0.0) == ["t"]
    assert destinations.paused_at(100.0) == []
    assert destinations.note_confirmed("t")
    assert not destinations.note_confirmed("t")
