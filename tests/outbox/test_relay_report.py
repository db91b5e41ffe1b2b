"""What an operator sees of an outbox, and what `retry` and `discard` do to what is stopped, and to nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from onefold._outbox.status_report import Pending, Report, discard, report, retry
from tests.outbox.relaying import Stage, opened, refusing


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


async def test_an_empty_outbox_has_nothing_to_report(stage: Stage) -> None:
    assert await stage.run(report(stage.dialect)) == Report(
        pending=(), pending_cut=False, oldest_s=None, delayed=0, stopped=(), relays=()
    )


async def test_the_report_tells_what_waits_what_is_stopped_and_who_works(stage: Stage) -> None:
    [bad] = await stage.write(("bad", "a"))
    session = await stage.entered()
    await stage.run(session.tick(), refusing("bad"))
    await stage.write(("behind", "a"), ("x", "b"))
    await stage.write(("y", "c"), topic="u")
    await stage.write(("later", None), not_before=datetime.now(UTC) + timedelta(hours=1))
    found = await stage.run(report(stage.dialect))
    assert found.pending == (Pending(topic="t", waiting=2), Pending(topic="u", waiting=1))
    await stage.execute("UPDATE onefold_outbox SET destination = 'acme' WHERE topic = 'u'")
    found = await stage.run(report(stage.dialect))
    assert found.pending[1] == Pending(topic="u", waiting=1, destination="acme")
    assert not found.pending_cut
    assert 0 <= found.oldest_s < 60
    assert found.delayed == 1
    [stopped] = found.stopped
    assert (stopped.id, stopped.topic, stopped.key, stopped.attempts, stopped.error) == (bad, "t", "a", 1, "too large")
    assert 0 <= stopped.next_try_s <= 1
    [relay] = found.relays
    assert (relay.relay, relay.buckets) == (session.relay, 64)
    assert 0 < relay.lease_left_s <= 30


async def test_the_oldest_is_the_oldest_of_all_buckets_and_counts_are_bounded(stage: Stage) -> None:
    await stage.write(*((str(number), f"k{number}") for number in range(100)))
    await stage.execute("UPDATE onefold_outbox SET written_at = <past> WHERE position = 1")
    found = await stage.run(report(stage.dialect, count_max=10))
    assert found.pending == (Pending(topic="t", waiting=10),)
    assert found.pending_cut
    assert found.oldest_s >= 3600


async def test_a_stopped_event_is_retried_at_once_and_its_key_goes_on(stage: Stage) -> None:
    [bad, _] = await stage.write(("bad", "a"), ("behind", "a"))
    session = await stage.entered()
    await stage.run(session.tick(), refusing("bad"))
    assert await stage.run(retry(stage.dialect, [bad, "unknown"])) == 1
    await stage.drain(session)
    assert stage.broker.names == ["bad", "behind"]


async def test_an_event_that_was_set_aside_is_shown_and_sent_alone_when_it_is_retried(stage: Stage) -> None:
    [bad] = await stage.write(("bad", "a"))
    for _ in range(3):
        session = await stage.entered()
        await stage.execute(f"UPDATE onefold_relay SET trying = {trying(stage)}")
        await stage.expire(session)
    session = await stage.entered()
    [stopped] = (await stage.run(report(stage.dialect))).stopped
    assert (stopped.id, stopped.attempts, stopped.next_try_s) == (bad, 3, None)
    await stage.write(("x", "b"), ("y", "c"))
    assert await stage.run(retry(stage.dialect, [bad])) == 1
    await stage.drain(session)
    assert [message.data for message in stage.broker.calls[0]] == [b"bad"]


def trying(stage: Stage) -> str:
    """The first row, as a relay notes it."""
    return "'[1]'" if stage.dialect == "sqlite" else "'{1}'"


async def test_a_discarded_event_is_never_published_and_its_key_goes_on(stage: Stage) -> None:
    [bad, behind] = await stage.write(("bad", "a"), ("behind", "a"))
    session = await stage.entered()
    await stage.run(session.tick(), refusing("bad"))
    assert await stage.run(discard(stage.dialect, [behind])) == 0  # it waits in its turn: that is not stopped
    assert await stage.run(discard(stage.dialect, [bad])) == 1
    await stage.drain(session)
    assert stage.broker.names == ["behind"]
    assert stage.broker.taken[0].version == 2
