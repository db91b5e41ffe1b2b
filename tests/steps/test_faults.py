"""The connection is lost, or a retry comes, at each boundary that a request in steps crosses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onefold._steps.sql.statements import Statements
from tests.steps.places import Place
from tests.steps.ride_checks import new_key, wrongs
from tests.steps.ride_processes import Ride, insist, post, serve
from tests.support.crash import Boundaries, Crossing, Strike, lose_connection


@pytest.fixture
def blank(address: str, tmp_path: Path) -> Ride:
    return Ride(address=address, processor=str(tmp_path / "processor"), key="", lease_s=60.0)


@pytest.fixture
def boundaries() -> Boundaries:
    return Boundaries()


@pytest.fixture
def client(blank: Ride, boundaries: Boundaries) -> Iterator[Any]:
    with serve(blank, boundaries) as client:
        assert post(client, new_key())[0] == 201  # the first of a process also asks which release made the database
        yield client


def crossings_of(client: Any, boundaries: Boundaries) -> list[Crossing]:
    boundaries.crossings.clear()
    assert post(client, new_key())[0] == 201
    return list(boundaries.crossings)


def test_a_recorded_call_costs_one_commit_and_one_round_trip(client: Any, boundaries: Boundaries) -> None:
    """A handler that commits before its call and after it has two of each; the claim's commit waits for no disk."""
    verbs = [each.verb for each in crossings_of(client, boundaries) if each.edge == "after"]
    assert sum("commit" in verb for verb in verbs) == 4  # claim, phase, call, settle
    trips = sum(verb == "fetch" or verb.startswith("batch") for verb in verbs)
    assert trips == 7  # two of the claim, of the phase and of the end, and one of the call


def test_a_connection_lost_at_any_boundary_leaves_a_work_that_is_gone_on_with(
    client: Any, boundaries: Boundaries, blank: Ride, place: Place
) -> None:
    wrong: list[str] = []
    for crossing in crossings_of(client, boundaries):
        if crossing.verb == "charge":  # no boundary of the database
            continue
        ride = replace(blank, key=new_key())
        boundaries.crossings.clear()
        boundaries.act = Strike(crossing.number, lose_connection)
        first = post(client, ride.key)
        boundaries.act = None
        place.lease_runs_out()  # where not even that could be said
        found = wrongs(place, ride, [first], insist(client, ride.key))
        wrong += [f"lost at {crossing} ({first[0]}): {sentence}" for sentence in found]
        assert boundaries.out == 0, f"lost at {crossing}: a connection leaked"
    assert not wrong


def retrying_at_each_boundary(client: Any, boundaries: Boundaries, blank: Ride, place: Place, other: Any) -> list[str]:
    """At each boundary of a request another process finds its lease run out, and does all of it."""
    wrong: list[str] = []
    for crossing in crossings_of(client, boundaries):
        ride = replace(blank, key=new_key())
        answers: list[tuple[int, Any]] = []

        def retry(_: Crossing, ride: Ride = ride, answers: list[Any] = answers) -> None:
            place.lease_runs_out()
            answers.append(post(other, ride.key))

        boundaries.crossings.clear()
        boundaries.act = Strike(crossing.number, retry)
        answers.append(post(client, ride.key))
        boundaries.act = None
        found = wrongs(place, ride, answers, insist(client, ride.key))
        wrong += [f"retried at {crossing} ({answers}): {sentence}" for sentence in found]
    return wrong


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
def test_a_retry_that_comes_at_any_boundary_and_takes_the_work_over_does_nothing_twice(
    client: Any, boundaries: Boundaries, blank: Ride, place: Place
) -> None:
    with serve(blank) as other:
        assert not retrying_at_each_boundary(client, boundaries, blank, place, other)


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
def test_control_a_holder_that_does_not_look_at_its_fence_is_found(
    client: Any, boundaries: Boundaries, blank: Ride, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Statements.lock

    def lock_any(self: Statements, held: Any) -> Any:
        """One row whoever has the work now, and where it is gone."""
        found = lock(self, held)
        return found._replace(sql="SELECT 1 WHERE $1::bytea IS NOT NULL AND $2::bigint IS NOT NULL")

    def record_any(self: Statements, held: Any, step: Any) -> Any:
        return self.renew(held)

    with serve(blank) as other:
        monkeypatch.setattr(Statements, "lock", lock_any)
        monkeypatch.setattr(Statements, "record", record_any)
        found = retrying_at_each_boundary(client, boundaries, blank, place, other)
    assert any("the rows are" in sentence for sentence in found)
