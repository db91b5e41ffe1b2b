"""A connection lost at each boundary that a message in steps crosses: it is delivered again, and happens once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.errors import StoreError
from tests.steps.message_processes import Assignment, find_wrongs, insist, open_desk
from tests.steps.places import Place
from tests.support.crash import Boundaries, Edge, lose_connection, strikes


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("edge", ["after", pytest.param("before", marks=pytest.mark.soak)])
def test_a_message_whose_connection_is_lost_anywhere_happens_once(
    place: Place, tmp_path: Path, edge: Edge, finishes: bool
) -> None:
    processor = str(tmp_path / "processor")
    blank = Assignment(address=place.address, processor=processor, name="", lease_s=60.0, finishes=finishes)
    wrong: list[str] = []
    with open_desk(blank) as survivor:
        for strike in strikes(lose_connection):
            assignment = replace(blank, name=f"m-{strike.number}")
            with open_desk(assignment, Boundaries(strike, edges=(edge,))) as desk, suppress(StoreError):
                desk.deliver(assignment.name)
            place.lease_runs_out()  # of what could not be given back
            insist(survivor, place, assignment.name)
            wrong += [f"lost at {strike.struck}: {sentence}" for sentence in find_wrongs(place, assignment)]
    assert not wrong
