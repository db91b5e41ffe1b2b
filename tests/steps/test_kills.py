"""kill -9 and SIGSTOP of a real process at every boundary that a request in steps crosses: a retry from another process
goes on where it stood, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.steps.places import Place
from tests.steps.ride_checks import new_key, wrongs
from tests.steps.ride_processes import Ride, RideProcesses, insist, post, serve
from tests.support.crash import Edge, never_struck


@pytest.fixture(scope="session")
def processes() -> RideProcesses:
    return RideProcesses()


@pytest.fixture
def ride(address: str, tmp_path: Path) -> Ride:
    return Ride(address=address, processor=str(tmp_path / "processor"), key="")


@pytest.fixture
def client(ride: Ride) -> Iterator[Any]:
    """Where the survivors ask."""
    with serve(ride) as client:
        yield client


def killing(processes: RideProcesses, place: Place, client: Any, blank: Ride) -> list[str]:
    """Count the crossings of a request, then kill a process at each of them, until something is wrong."""
    counting = processes.ask(replace(blank, key=new_key(), lease_s=60.0))
    assert counting.state == "ended"
    assert counting.crossings
    wrong: list[str] = []
    struck = []
    for crossing in counting.crossings:
        ride = replace(blank, key=new_key(), act="kill", at=crossing.number)
        fate = processes.ask(ride)
        struck += [crossing] if fate.state == "killed" else []
        found = wrongs(place, ride, [fate.answer] if fate.answer else [], insist(client, ride.key))
        wrong += [f"killed at {crossing}: {sentence}" for sentence in found]
        if wrong:
            return wrong
    return wrong + [f"never killed at {crossing}" for crossing in never_struck(counting.crossings, struck)]


def test_a_process_killed_after_any_boundary_leaves_a_work_that_is_gone_on_with(
    processes: RideProcesses, place: Place, client: Any, ride: Ride
) -> None:
    assert not killing(processes, place, client, ride)
    assert len(place.rows("SELECT id FROM onefold_outbox")) == len(place.rows("SELECT name FROM effects"))


@pytest.mark.soak
@pytest.mark.parametrize("edges", [("before", "after"), ("during",)])
def test_a_process_killed_at_either_side_of_any_boundary_leaves_a_work_that_is_gone_on_with(
    processes: RideProcesses, place: Place, client: Any, ride: Ride, edges: tuple[Edge, ...]
) -> None:
    assert not killing(processes, place, client, replace(ride, edges=edges))


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_control_the_kills_find_phases_that_are_not_recorded(
    processes: RideProcesses, place: Place, client: Any, ride: Ride
) -> None:
    found = killing(processes, place, client, replace(ride, forgets=True))
    assert any("created" in sentence and "the rows are" in sentence for sentence in found)


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
def test_a_process_that_was_stopped_past_its_lease_writes_nothing_when_it_wakes_up(
    processes: RideProcesses, place: Place, client: Any, ride: Ride
) -> None:
    counting = processes.ask(replace(ride, key=new_key(), lease_s=60.0))
    wrong: list[str] = []
    for crossing in counting.crossings[:-1]:
        stopping = replace(ride, key=new_key(), act="stop", at=crossing.number)
        stopped = processes.ask(stopping)
        if stopped.state != "stopped":
            continue
        last = insist(client, stopping.key)
        woken = processes.go_on(stopped)
        wrong += [
            f"stopped at {crossing}: {found}"
            for found in wrongs(place, stopping, [woken.answer] if woken.answer else [], last)
        ]
        assert post(client, stopping.key) == last
    assert not wrong
