"""SIGSTOP of a relay at every boundary, for longer than its lease: another takes over, and when the first goes on it
does no harm, begins anew under another name, and works.

On SQLite a process that is stopped while it holds the write lock holds up everybody, and no lease can change that;
so this is about Postgres.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.chaos.job_processes import JobProcesses
from tests.chaos.jobs import Job, occurrences
from tests.chaos.ledger_checks import Written
from tests.chaos.places import Place, opened, rows, shop, write
from tests.chaos.stages import (
    AT_ONCE,
    Findings,
    Stage,
    at_work,
    check_arrival,
    filled,
    relayed,
    take_over,
    take_over_consumers,
)
from tests.support.crash import Crossing

PAIRS = ["postgres+nats", "postgres+valkey", "postgres+local"]


_TENDS = """
SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND granted AND datname = current_database()
"""


@dataclass(slots=True)
class Stopped:
    """A relay that stands still, and what it was called then."""

    name: str
    pid: int
    place: Place
    written: Written
    relays: set[str]
    tends: bool
    """It holds the lock of those who hand buckets over."""


async def seen(name: str, pid: int, place: Place, written: Written) -> Stopped:
    async with opened(place) as database:
        relays = {name for (name,) in await rows(database, "SELECT relay FROM onefold_relay")}
        tends = await rows(database, _TENDS)
        return Stopped(name, pid, place, written, relays, bool(tends))


def until_marked(crossings: list[Crossing]) -> list[Crossing]:
    """Without what a relay does when it leaves: these do not."""
    last = max(place for place, crossing in enumerate(crossings) if crossing.verb == "publish")
    mark = 6  # before and after: acquire, batch, release
    return crossings[: last + 1 + mark]


def stopped_at_each(processes: JobProcesses, stage: Stage, server: PrivatePostgres, *, every: bool) -> list[Stopped]:
    """One stopped relay for each crossing of a run (or only for the first of a kind), all at once. Each has a database
    of its own, in which it is the one to be replaced."""

    def new_place() -> tuple[Place, Written]:
        return asyncio.run(filled(replace(stage, dsn=server.fresh_database())))

    place, written = new_place()
    counted = processes.run(Job(role="relay", place=place, enough=len(written.committed)))
    found = []
    for at in occurrences(until_marked(counted.crossings)):
        verb, edge, number = at
        if number > 1 and not every:
            continue
        place, written = new_place()
        pid = processes.start(Job(role="relay", place=place, act="stop", at=at))
        name = f"stopped {edge} {verb} ({number})"
        assert processes.wait(pid).state == "stopped", f"never {name}"
        found.append(asyncio.run(seen(name, pid, place, written)))
    return found


async def after_return(stopped: list[Stopped], findings: Findings) -> None:
    """Only those that were stopped relay now, and what is written now arrives too."""

    async def one(victim: Stopped) -> None:
        place = victim.place
        async with opened(place) as database:
            once = shop(place, database, lambda: place.reach(database), listener=findings.listener)
            more = await write(once, place.topic)
            both = Written(victim.written.committed | more.committed, victim.written.undone | more.undone)
            async with at_work(once, findings, victim.name):
                await check_arrival(f"back, {victim.name}", place, both, database, findings)
            relays = {name for (name,) in await rows(database, "SELECT relay FROM onefold_relay")}
            if len(relays) != 1 or relays & victim.relays:
                findings.wrong.append(f"back, {victim.name}: was {victim.relays}, and now the relays are {relays}")
            await once.close()

    async with asyncio.TaskGroup() as group:
        for victim in stopped:
            group.create_task(one(victim))


@pytest.fixture(scope="module")
def roomy() -> Iterator[PrivatePostgres]:
    """A server with room for the connections of all who stand still."""
    with PrivatePostgres(settings={"max_connections": "500"}) as server:
        yield server


@pytest.mark.parametrize(
    ("stage", "every"),
    [("postgres+nats", False), *(pytest.param(pair, True, marks=pytest.mark.soak) for pair in PAIRS)],
    indirect=["stage"],
)
def test_a_relay_stopped_at_any_boundary_is_replaced_and_begins_anew_when_it_goes_on(
    processes: JobProcesses, stage: Stage, every: bool, roomy: PrivatePostgres
) -> None:
    stopped = stopped_at_each(processes, stage, roomy, every=every)
    findings = Findings()
    overtaken = [(victim.name, victim.place, victim.written) for victim in stopped]
    asyncio.run(take_over(overtaken, findings))
    for start in range(0, len(stopped), AT_ONCE):  # not all at once: forty relays keep a machine busy
        some = stopped[start : start + AT_ONCE]
        for victim in some:
            processes.send(victim.pid, signal.SIGCONT)
        asyncio.run(after_return(some, findings))
        for victim in some:
            assert processes.end(victim.pid).state == "ended"
    print(
        f"{len(stopped)} stops, {len(overtaken)} of them overtaken, slowest {findings.slowest_s:.1f} s, "
        f"{dict(findings.told)}"
    )
    assert not findings.wrong
    assert findings.told["Duplicate"], "no event was published twice: the stops came too early, or too late"


@pytest.mark.parametrize("stage", ["postgres+nats"], indirect=True)
def test_a_relay_stopped_while_it_tends_holds_no_lock_that_others_wait_for(
    processes: JobProcesses, stage: Stage, roomy: PrivatePostgres
) -> None:
    place, written = asyncio.run(filled(replace(stage, dsn=roomy.fresh_database())))
    pid = processes.start(Job(role="relay", place=place, act="stop", at=("fetch", "after", 1)))
    assert processes.wait(pid).state == "stopped"
    victim = asyncio.run(seen("stopped while it tends", pid, place, written))
    findings = Findings()
    asyncio.run(take_over([(victim.name, place, written)], findings))
    processes.end(pid, signal.SIGKILL)
    assert not victim.tends
    assert not findings.wrong


async def all_at_the_broker(stage: Stage, number: int) -> list[tuple[Place, Written]]:
    database = await stage.new_database()
    places = [stage.place(database) for _ in range(number)]
    return list(zip(places, await relayed(places), strict=True))


@pytest.mark.parametrize(
    ("stage", "every"),
    [
        ("postgres+nats", False),
        pytest.param("postgres+nats", True, marks=pytest.mark.soak),
        pytest.param("postgres+valkey", True, marks=pytest.mark.soak),
        pytest.param("postgres+local", True, marks=pytest.mark.soak),
    ],
    indirect=["stage"],
)
def test_a_consumer_stopped_at_any_boundary_is_replaced_and_does_no_harm_when_it_goes_on(
    processes: JobProcesses, stage: Stage, every: bool, roomy: PrivatePostgres
) -> None:
    on_roomy = replace(stage, dsn=roomy.fresh_database())
    [(place, written)] = asyncio.run(all_at_the_broker(on_roomy, 1))
    counted = processes.run(Job(role="consumer", place=place, enough=len(written.committed)))
    ats = [at for at in occurrences(counted.crossings) if every or at[2] == 1]
    stopped: list[tuple[int, tuple[str, Place, Written]]] = []
    for at, (place, written) in zip(ats, asyncio.run(all_at_the_broker(on_roomy, len(ats))), strict=True):
        job = Job(role="consumer", place=place, act="stop", at=at, enough=len(written.committed))
        pid = processes.start(job)
        if processes.wait(pid).state == "stopped":  # else it looked once less than the first did
            stopped.append((pid, (f"stopped {at[1]} {at[0]} ({at[2]})", place, written)))
    findings = Findings()
    asyncio.run(take_over_consumers([victim for _, victim in stopped], findings))
    for pid, _ in stopped:
        processes.send(pid, signal.SIGCONT)
        processes.send(pid, signal.SIGTERM)
    for pid, _ in stopped:
        assert processes.wait(pid).state == "ended"
    asyncio.run(take_over_consumers([victim for _, victim in stopped], findings))
    print(f"{len(stopped)} stops, slowest {findings.slowest_s:.1f} s, {dict(findings.told)}")
    assert not findings.wrong
    assert len(stopped) > 0.8 * len(ats)
    assert findings.told["Duplicate"], "nothing was delivered twice: the stops came too early, or too late"
