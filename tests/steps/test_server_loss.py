"""Postgres is killed -9, and comes back, at each boundary that a request in steps crosses: the retry goes on where it
stood, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.steps.places import Place, create_tables, place_at
from tests.steps.ride_checks import new_key, wrongs
from tests.steps.ride_processes import Ride, insist, post, serve
from tests.support.crash import Boundaries, Crossing, Strike


@pytest.fixture
def mortal_place(mortal_postgres: PrivatePostgres) -> Iterator[Place]:
    dsn = mortal_postgres.fresh_database()
    create_tables(dsn)
    with place_at(dsn) as place:
        yield place
    mortal_postgres.drop_database(dsn)


def kill_at_each(server: PrivatePostgres, place: Place, processor: Path, at: Callable[[Crossing], bool]) -> list[str]:
    """What is wrong after kills at the crossings that `at` picks."""
    blank = Ride(address=place.address, processor=str(processor), key="")
    boundaries, wrong = Boundaries(), []

    def kill_and_restart(_: Crossing) -> None:
        server.kill()
        server.restart()

    with serve(blank, boundaries) as client:
        assert post(client, new_key())[0] == 201
        struck = [each for each in boundaries.crossings if at(each)]
        assert struck
        for crossing in struck:
            ride = replace(blank, key=new_key())
            boundaries.crossings.clear()
            boundaries.act = Strike(crossing.number, kill_and_restart)
            first = post(client, ride.key)
            boundaries.act = None
            found = wrongs(place, ride, [first], insist(client, ride.key))
            wrong += [f"killed at {crossing} ({first[0]}): {sentence}" for sentence in found]
    return wrong


def test_a_request_whose_server_is_killed_behind_a_commit_or_in_its_call_is_gone_on_with(
    mortal_postgres: PrivatePostgres, mortal_place: Place, tmp_path: Path
) -> None:
    def follows_commit(crossing: Crossing) -> bool:
        return crossing.edge == "after" and ("commit" in crossing.verb or crossing.verb == "charge")

    assert not kill_at_each(mortal_postgres, mortal_place, tmp_path / "processor", follows_commit)


@pytest.mark.soak
def test_a_request_whose_server_is_killed_anywhere_is_gone_on_with(
    mortal_postgres: PrivatePostgres, mortal_place: Place, tmp_path: Path
) -> None:
    assert not kill_at_each(mortal_postgres, mortal_place, tmp_path / "processor", lambda _: True)
