"""Dead letters whose handler works in recorded steps: `onefold dlq` and `onefold keys` say what is recorded of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold import Message, StepOptions, Steps, Transaction
from tests.cli.commands import one_line, onefold, told
from tests.steps.message_stage import Stage, message, stage_at
from tests.steps.places import create_tables, place_at


@pytest.fixture
def stage(sqlite_path: Path) -> Iterator[Stage]:
    """A consumer in recorded steps, which gives a message up after one failure."""
    create_tables(str(sqlite_path))
    with place_at(str(sqlite_path)) as place, stage_at(place, asynchronous=False, attempts=1) as stage:
        yield stage


def fail() -> None:
    raise ValueError("the card was declined")


def test_a_dead_letter_in_steps_says_what_is_recorded_and_that_a_redrive_goes_on_behind_it(stage: Stage) -> None:
    stage.between = fail
    stage.deliver()
    [listed] = told(onefold("keys", "list", "-d", stage.place.address, "--json"))
    work = listed["id"]
    shown = ("dlq", "show", "m1", "-d", stage.place.address)
    assert told(onefold(*shown, "--json"))["work"] == {"id": work, "state": "left", "steps": 2}
    assert (
        f"2 steps are recorded (work {work}): a redrive goes on behind them; see `onefold keys show {work}`, or "
        f"`onefold keys release {work}` to begin from the start\n" in onefold(*shown).stdout
    )
    onefold("keys", "release", work, "--yes", "-d", stage.place.address)
    assert told(onefold(*shown, "--json"))["work"] is None
    assert "recorded" not in onefold(*shown).stdout


def test_a_released_work_asks_the_called_service_under_the_same_key_and_what_is_shown_says_so(stage: Stage) -> None:
    """The service has stored its refusal under that key: to begin from the start does not get around it."""
    stage.during = fail
    stage.deliver()
    [listed] = told(onefold("keys", "list", "-d", stage.place.address, "--json"))
    found = told(onefold("keys", "show", listed["id"], "-d", stage.place.address, "--json"))
    assert f"release it first: `onefold keys release {listed['id']}`. Its calls keep their keys: " in found["way_out"]
    assert "a refusal that the called service has stored under one comes again" in found["way_out"]
    onefold("keys", "release", listed["id"], "--yes", "-d", stage.place.address)
    onefold("dlq", "redrive", "m1", "-d", stage.place.address)
    stage.run_due()
    assert len(stage.charges) == 2
    assert len({key for _, key in stage.charges}) == 1


def test_a_try_that_a_phase_has_numbered_has_another_key_after_a_release_and_not_before(sqlite_path: Path) -> None:
    create_tables(str(sqlite_path))
    keys: list[str] = []
    tries = iter((1, 2, 3))

    def begin_try(tx: Transaction[Any]) -> int:
        return next(tries)

    def charge(key: str) -> None:
        keys.append(key)
        fail()

    with place_at(str(sqlite_path)) as place, stage_at(place, asynchronous=False, attempts=1) as stage:

        @stage.once.consumer("paying", topic="ride.wanted", attempts=1)  # type: ignore[untyped-decorator]
        def pay(given: Message, work: Steps) -> None:
            number = work.phase("begin", begin_try)
            work.call(f"charge:{number}", charge, work.derive(f"charge:{number}"))

        stage.inbox = stage.another("paying")
        stage.deliver()
        onefold("dlq", "redrive", "m1", "-d", place.address)
        stage.run_due()
        [listed] = told(onefold("keys", "list", "-d", place.address, "--json"))
        onefold("keys", "release", listed["id"], "--yes", "-d", place.address)
        onefold("dlq", "redrive", "m1", "-d", place.address)
        stage.run_due()
    assert [keys.index(key) for key in keys] == [0, 0, 2]


def test_a_dead_letter_of_whose_steps_nothing_is_recorded_begins_from_the_start_when_it_is_redriven(
    sqlite_path: Path,
) -> None:
    create_tables(str(sqlite_path))
    with place_at(str(sqlite_path)) as place, stage_at(place, asynchronous=False, attempts=1) as stage:

        @stage.once.consumer("calling", topic="ride.wanted", attempts=1)  # type: ignore[untyped-decorator]
        def call(given: Message, work: Steps) -> None:
            work.call("charge", fail)

        stage.hand(inbox=stage.another("calling"))
        [listed] = told(onefold("keys", "list", "-d", place.address, "--json"))
        shown = onefold("dlq", "show", "m1", "-d", place.address).stdout
    assert f"nothing is recorded of its steps (work {listed['id']}): a redrive begins from the start; see" in shown
    assert "goes on behind" not in shown
    assert "release" not in shown


def test_a_dead_letter_whose_call_has_an_unknown_outcome_says_that_a_person_resumes_it(stage: Stage) -> None:
    stage.charge_step, stage.during = StepOptions("charge", repeatable=False), fail
    stage.deliver()
    [listed] = told(onefold("keys", "list", "-d", stage.place.address, "--json"))
    work = listed["id"]
    for state in ("left", "parked"):
        shown = onefold("dlq", "show", "m1", "-d", stage.place.address)
        assert f"2 steps are recorded (work {work}), and wait for a person: outcome unknown" in shown.stdout, state
        assert f"; see `onefold keys show {work}`, then `onefold keys resume {work}`, or " in shown.stdout
        onefold("dlq", "redrive", "m1", "-d", stage.place.address)
        stage.run_due()
    assert told(onefold("dlq", "show", "m1", "-d", stage.place.address, "--json"))["work"]["state"] == "parked"


def test_the_work_of_a_message_is_found_by_the_id_of_the_message_and_spoken_of_as_one(stage: Stage) -> None:
    by_hex = "ab" * 16
    stage.between = fail
    for name in ("m1", by_hex):
        stage.deliver(message(name))
        found = told(onefold("keys", "show", name, "-d", stage.place.address, "--json"))
        assert (found["operation"], len(found["steps"])) == (f"billing: {name} from shop", 2)
        by_work = told(onefold("keys", "show", found["id"], "-d", stage.place.address, "--json"))
        assert {**found, "ids": [found["id"]]} == by_work
        assert found["what"].startswith("The message is handled in recorded steps, and its last attempt has ended")
        assert "a dead letter is tried again by `onefold dlq redrive`" in found["way_out"]
        assert not any(word in json.dumps(found) for word in ("request", "client", "complete"))
    stage.charge_step, stage.during = StepOptions("charge", repeatable=False), fail
    stage.deliver(message("m3"))
    onefold("dlq", "redrive", "m3", "-d", stage.place.address)
    stage.run_due()
    parked = told(onefold("keys", "show", "m3", "-d", stage.place.address, "--json"))
    assert parked["retry_gets"] == "It is a dead letter: redriven as it is, it is dead again."
    assert f"`onefold keys resume {parked['id']}`" in parked["way_out"]


def test_a_message_that_waits_after_a_call_with_an_unknown_outcome_is_not_called_a_dead_letter(
    sqlite_path: Path,
) -> None:
    create_tables(str(sqlite_path))
    with place_at(str(sqlite_path)) as place, stage_at(place, asynchronous=False, attempts=3) as stage:
        stage.charge_step, stage.during = StepOptions("charge", repeatable=False), fail
        stage.deliver()
        assert stage.failed()["m1"].state == "waiting"
        found = told(onefold("keys", "show", "m1", "-d", place.address, "--json"))
        assert found["state"] == "left"
        assert found["what"].endswith(
            "call that must not be made again: its outcome is unknown (1 attempt, 2 steps recorded)."
        )
        assert (
            found["retry_gets"] == "Its next attempt makes it a dead letter, because the outcome of a call is unknown."
        )
        assert f"`onefold keys resume {found['id']}`" in found["way_out"]
        stage.run_due()
        assert stage.failed()["m1"].state == "dead"


def test_a_message_that_several_consumers_have_in_steps_is_shown_by_the_id_of_a_work(stage: Stage) -> None:
    stage.between = fail
    stage.deliver()
    stage.once.consumer("taxing", topic="ride.wanted", attempts=1)(stage.handle)
    stage.hand(inbox=stage.another("taxing"))
    works = told(onefold("keys", "list", "-d", stage.place.address, "--json"))
    line = one_line(onefold("keys", "show", "m1", "-d", stage.place.address))
    assert "several consumers have message 'm1' in recorded steps: show one by the id of its work" in line
    assert all(f"{work['id']} ({work['operation']})" in line for work in works)
    assert len(works) == 2
