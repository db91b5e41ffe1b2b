"""kill -9 of a relay and of a consumer at every boundary they cross, at the database and at the broker: whoever takes
over brings every committed event to its consumer, once and in order, within a lease.

Two planted mistakes run through the same campaigns and must be seen to lose events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest

from tests.chaos.job_processes import JobProcesses
from tests.chaos.jobs import Job, Occurrence, Role, occurrences
from tests.chaos.ledger_checks import Written
from tests.chaos.places import Place
from tests.chaos.stages import PATIENCE_S, Findings, Stage, filled, relayed, take_over, take_over_consumers
from tests.support.crash import Crossing, never_struck

#: The pairs, and how many crossings of each verb and edge are struck; None: all. Those of the database's own broker,
#: where a kill takes the least time, are struck twice and three times of a kind: it knows an event again that waits
#: there still, and fewer kills deliver none twice. The others are struck once; the rest is for `make soak`.
PAIRS = [
    ("sqlite+local", 2),
    ("postgres+local", 3),
    *((pair, 1) for pair in ("postgres+nats", "sqlite+nats", "postgres+valkey", "postgres+rabbitmq")),
    *(pytest.param(pair, 2, marks=pytest.mark.soak) for pair in ("postgres+kafka", "sqlite+kafka", "sqlite+rabbitmq")),
    *(
        pytest.param(pair, None, marks=pytest.mark.soak)
        for pair in (
            "sqlite+local",
            "postgres+nats",
            "postgres+local",
            "sqlite+nats",
            "postgres+valkey",
            "postgres+rabbitmq",
            "sqlite+valkey",
        )
    ),
]

#: A slow machine may take another way (a statement that timed out), which has no such crossing: it is asked again.
RUNS_MAX = 3

Victims: TypeAlias = list[tuple[str, Place, Written]]
#: Which crossings are struck.
Chosen: TypeAlias = Callable[[Occurrence], bool]


def first(of_a_kind: int | None) -> Chosen:
    return lambda at: of_a_kind is None or at[2] <= of_a_kind


@dataclass(slots=True)
class Campaign:
    """Who was killed where, of what a run without a fault crosses."""

    counted: list[Crossing]
    chosen: list[Occurrence] = field(default_factory=list)
    struck: list[Crossing] = field(default_factory=list)
    victims: Victims = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    def check(self) -> None:
        print(
            f"{len(self.struck)} kills at {len(self.counted)} crossings, slowest {self.findings.slowest_s:.1f} s, "
            f"{dict(self.findings.told)}"
        )
        assert not self.findings.wrong
        # A delivery is kept when handling it takes long, which a slow machine decides: no run can be asked for it.
        assert not [at for at in never_struck(self.counted, self.struck) if at.verb != "keep"]
        # An idle look more or less is a crossing more or less.
        assert len(self.struck) > 0.8 * len(self.chosen)
        assert self.findings.told["Duplicate"], "nothing was delivered twice: the kills did not bite"


def killed(processes: JobProcesses, role: Role, places: Iterator[tuple[Place, Written]], chosen: Chosen) -> Campaign:
    """Count the crossings of a run, then kill a process at each of those chosen, each in a place of its own."""
    place, written = next(places)
    enough = len(written.committed)
    through = processes.run(Job(role=role, place=place, enough=enough))
    assert through.state == "ended"
    campaign = Campaign(through.crossings)
    campaign.chosen = [at for at in occurrences(through.crossings) if chosen(at)]
    for at in campaign.chosen:
        for _ in range(RUNS_MAX):
            place, written = next(places)
            fate = processes.run(Job(role=role, place=place, act="kill", at=at, enough=enough))
            campaign.victims.append((f"killed at {fate.struck}", place, written))
            if fate.struck is not None:
                campaign.struck.append(fate.struck)
                break
    return campaign


def killed_relays(
    processes: JobProcesses, stage: Stage, role: Role = "relay", *, chosen: Chosen, patience_s: float = PATIENCE_S
) -> Campaign:
    """Their events are in the outbox, each in a database of its own."""

    def places() -> Iterator[tuple[Place, Written]]:
        while True:
            yield asyncio.run(filled(stage))

    campaign = killed(processes, role, places(), chosen)
    campaign.findings.patience_s = patience_s
    asyncio.run(take_over(campaign.victims, campaign.findings))
    return campaign


def killed_consumers(
    processes: JobProcesses, stage: Stage, role: Role = "consumer", *, chosen: Chosen, patience_s: float = PATIENCE_S
) -> Campaign:
    """Their events are at the broker."""
    database = asyncio.run(stage.new_database())

    def places() -> Iterator[tuple[Place, Written]]:
        while True:
            some = [stage.place(database) for _ in range(40)]
            yield from zip(some, asyncio.run(relayed(some)), strict=True)

    campaign = killed(processes, role, places(), chosen)
    campaign.findings.patience_s = patience_s
    asyncio.run(take_over_consumers(campaign.victims, campaign.findings))
    return campaign


@pytest.mark.parametrize(("stage", "of_a_kind"), PAIRS, indirect=["stage"])
def test_a_relay_killed_at_any_boundary_leaves_nothing_undone_and_nothing_doubled(
    processes: JobProcesses, stage: Stage, of_a_kind: int | None
) -> None:
    campaign = killed_relays(processes, stage, chosen=first(of_a_kind))
    campaign.check()
    assert {"publish"} <= {crossing.verb for crossing in campaign.struck}


@pytest.mark.parametrize(("stage", "of_a_kind"), PAIRS, indirect=["stage"])
def test_a_consumer_killed_at_any_boundary_leaves_nothing_undone_and_nothing_doubled(
    processes: JobProcesses, stage: Stage, of_a_kind: int | None
) -> None:
    campaign = killed_consumers(processes, stage, chosen=first(of_a_kind))
    campaign.check()
    assert {"receive", "insert", "ack"} <= {crossing.verb for crossing in campaign.struck}


@pytest.mark.parametrize("stage", ["sqlite+local"], indirect=True)
def test_control_a_relay_that_marks_before_it_publishes_loses_events(processes: JobProcesses, stage: Stage) -> None:
    campaign = killed_relays(
        processes, stage, "relay that marks first", chosen=lambda at: at[0] == "publish", patience_s=2.0
    )
    assert any("never arrived" in sentence for sentence in campaign.findings.wrong)


@pytest.mark.parametrize("stage", ["sqlite+local"], indirect=True)
def test_control_a_consumer_that_acknowledges_before_it_commits_loses_events(
    processes: JobProcesses, stage: Stage
) -> None:
    campaign = killed_consumers(
        processes, stage, "consumer that acks first", chosen=lambda at: at[0] in ("ack", "insert"), patience_s=2.0
    )
    assert any("never arrived" in sentence for sentence in campaign.findings.wrong)
