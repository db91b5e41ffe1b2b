"""kill -9 and SIGSTOP of a real process at the boundaries that a message in steps crosses: another process goes on
where it stood, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.steps.message_processes import Assignment, Desk, MessageProcesses, find_wrongs, insist, open_desk
from tests.steps.places import ON_POSTGRES, ON_SQLITE, Place
from tests.support.crash import Edge, never_struck

#: Where something is committed or done; taking and giving back a connection is for the long runs.
_DEEDS: Final = ("batch", "charge", "ack")

_numbers = count()


@pytest.fixture(scope="session")
def processes() -> MessageProcesses:
    return MessageProcesses()


@pytest.fixture
def assignment(address: str, tmp_path: Path) -> Assignment:
    return Assignment(address=address, processor=str(tmp_path / "processor"), name="")


@pytest.fixture
def desk(assignment: Assignment) -> Iterator[Desk]:
    """The process that is left."""
    with open_desk(assignment) as desk:
        yield desk


def new_name() -> str:
    return f"m-{next(_numbers)}"


def kill(
    processes: MessageProcesses, place: Place, desk: Desk, blank: Assignment, verbs: tuple[str, ...] | None = None
) -> list[str]:
    """Count the crossings of a message, then kill a process at each of them, until something is wrong."""
    counting = processes.send(replace(blank, name=new_name(), lease_s=60.0))
    assert counting.state == "ended"
    chosen = [crossing for crossing in counting.crossings if verbs is None or crossing.verb in verbs]
    assert chosen
    struck = []
    for crossing in chosen:
        assignment = replace(blank, name=new_name(), act="kill", at=crossing.number)
        fate = processes.send(assignment)
        struck += [crossing] if fate.state == "killed" else []
        insist(desk, place, assignment.name)
        if wrong := [f"killed at {crossing}: {sentence}" for sentence in find_wrongs(place, assignment)]:
            return wrong
    return [f"never killed at {crossing}" for crossing in never_struck(chosen, struck)]


def test_a_process_killed_after_any_deed_leaves_a_message_that_is_gone_on_with(
    processes: MessageProcesses, place: Place, desk: Desk, assignment: Assignment
) -> None:
    assert not kill(processes, place, desk, assignment, _DEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("edges", [("before", "after"), ("during",)])
def test_a_process_killed_at_any_boundary_leaves_a_message_that_is_gone_on_with(
    processes: MessageProcesses, place: Place, desk: Desk, assignment: Assignment, edges: tuple[Edge, ...]
) -> None:
    assert not kill(processes, place, desk, replace(assignment, edges=edges))


@ON_SQLITE
def test_control_a_handler_that_records_nothing_has_its_effect_twice_under_the_same_kills(
    processes: MessageProcesses, place: Place, assignment: Assignment
) -> None:
    in_one_go = replace(assignment, records=False)
    with open_desk(in_one_go) as desk:
        found = kill(processes, place, desk, in_one_go, _DEEDS)
    assert any("the processor was asked under 2 keys" in sentence for sentence in found)


@ON_POSTGRES
def test_a_process_that_was_stopped_past_its_lease_writes_nothing_when_it_wakes_up(
    processes: MessageProcesses, place: Place, desk: Desk, assignment: Assignment
) -> None:
    counting = processes.send(replace(assignment, name=new_name(), lease_s=60.0))
    stops = [crossing for crossing in counting.crossings if crossing.verb in ("batch", "charge")]
    assert stops
    wrong: list[str] = []
    for crossing in stops:
        stopping = replace(assignment, name=new_name(), act="stop", at=crossing.number)
        stopped = processes.send(stopping)
        if stopped.state != "stopped":
            continue
        insist(desk, place, stopping.name)
        processes.go_on(stopped)
        insist(desk, place, stopping.name)
        wrong += [f"stopped at {crossing}: {found}" for found in find_wrongs(place, stopping)]
    assert not wrong
