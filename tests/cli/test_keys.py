"""`onefold keys`: what was begun and not finished, and what a person does with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold import Keyring, StepOptions
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Statement
from onefold._kernel.telemetry.consumer_events import Handled
from onefold._steps.model import Held, RecordedStep
from onefold._steps.sealing import Sealing, request_context, step_context
from tests.cli.commands import one_line, onefold, told
from tests.steps.message_stage import message, stage_at
from tests.steps.places import ASK, Place, create_tables, place_at

KEY = bytes(range(32))
RING = Keyring({"k": KEY}, write="k")


@pytest.fixture
def place(sqlite_path: Path) -> Iterator[Place]:
    create_tables(str(sqlite_path))
    with place_at(str(sqlite_path)) as place:
        yield place


def begin(
    place: Place, digest: bytes, *steps: tuple[str, str], parked: str = "", sealing: Sealing | None = None
) -> str:
    """A work that was left with these steps (name and state), and is parked where `parked` says why; its id."""
    sealing = sealing or Sealing()
    request = sealing.seal(b"request", request_context(digest))
    held = place.flow(place.works.claim(ASK._replace(digest=digest, request=request)))
    assert isinstance(held, Held)
    records: list[Statement] = []
    for position, (name, state) in enumerate(steps):
        result = sealing.seal(b'{"paid":7}', step_context(digest, position, name)) if state == "done" else None
        records.append(place.works.sql.record(held, RecordedStep(position, name, "call", state, result)))  # type: ignore[arg-type]

    async def write() -> int:
        return await Batch((Boundary.BEGIN, *records, Boundary.COMMIT))

    place.flow(with_connection(write))
    if parked:
        place.flow(place.works.park(held, parked))
    else:
        place.flow(place.works.give_back(held))
    return digest.hex()


def keys(place: Place, verb: str, *words: str, **environment: Any) -> Any:
    return onefold("keys", verb, *words, "-d", place.address, **environment)


def ask(place: Place, verb: str, *words: str, **environment: Any) -> Any:
    return told(keys(place, verb, *words, "--json", **environment))


def audit(place: Place) -> list[tuple[str, str, Any]]:
    rows = place.rows("SELECT actor, action, details FROM onefold_audit ORDER BY id")
    return [(actor, action, json.loads(details)) for actor, action, details in rows]


A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_unfinished_works_are_listed_with_their_state(place: Place) -> None:
    parked = begin(place, A, ("create", "done"), ("charge", "started"), parked="outcome unknown: charge")
    left = begin(place, B, ("create", "done"))
    running = place.flow(place.works.claim(ASK._replace(digest=C)))
    assert isinstance(running, Held)
    found = {each["id"]: each for each in ask(place, "list")}
    assert {work: each["state"] for work, each in found.items()} == {
        parked: "parked",
        left: "left",
        C.hex(): "running",
    }
    assert found[parked]["reason"] == "outcome unknown: charge"
    assert (found[parked]["operation"], found[parked]["steps"], found[parked]["attempts"]) == ("POST /rides", 2, 1)
    assert {work: each["started"] for work, each in found.items()} == {parked: 1, left: 0, C.hex(): 0}
    assert found[C.hex()]["lease_ends"] > found[C.hex()]["begun"]
    assert (found[left]["lease_ends"], found[parked]["lease_ends"], found[parked]["due"]) == (None, None, None)
    header, *rows = keys(place, "list").stdout.splitlines()
    assert header.split() == ["id", "operation", "state", "steps", "attempts", "age", "lease", "ends", "due", "reason"]
    ends, due = header.index("lease ends"), header.index("due")
    row = {row[:32]: row for row in rows}
    assert row[C.hex()][ends:].startswith("in ")
    assert [row[work][due:].split()[0] for work in (C.hex(), left, parked)] == ["-", "now", "-"]
    steps = slice(header.index("steps"), header.index("attempts"))
    assert [row[work][steps].strip() for work in (C.hex(), left, parked)] == ["0", "1", "2, 1 started"]
    assert [each["id"] for each in ask(place, "list", "--parked")] == [parked]
    text = keys(place, "list", "--parked").stdout
    assert parked in text
    assert "outcome unknown: charge" in text
    assert "parked: 1" in text


def test_one_is_shown_with_its_steps_and_what_they_returned(place: Place) -> None:
    work = begin(place, A, ("create", "done"), ("charge", "started"))
    steps = ask(place, "show", work)["steps"]
    assert [(step["name"], step["state"], step["result"]) for step in steps] == [
        ("create", "done", {"paid": 7}),
        ("charge", "started", None),
    ]
    assert '{"paid": 7}' in keys(place, "show", work).stdout


def test_a_request_that_was_left_in_a_call_that_must_not_be_made_again_waits_for_a_person(place: Place) -> None:
    left, unknown = begin(place, A, ("charge", "done")), begin(place, B, ("charge", "started"))
    assert ask(place, "show", left)["retry_gets"] == "It goes on behind the recorded steps."
    found = ask(place, "show", unknown)
    assert found["state"] == "left"
    assert found["retry_gets"] == "409 work-parked, because the outcome of a call is unknown. It is not worth a retry."
    assert "(1 attempt, 1 step recorded)" in found["what"]


def test_a_released_work_is_forgotten_and_audited(place: Place) -> None:
    work = begin(place, A, ("create", "done"), parked="failed 10 times")
    assert ask(place, "release", work, "--yes", "--actor", "ada") == {"released": work, "operation": "POST /rides"}
    assert (place.works_left(), place.steps_left()) == (0, [])
    [(actor, action, details)] = audit(place)
    assert (actor, action) == ("ada", "keys release")
    assert details == {
        "work": work,
        "operation": "POST /rides",
        "reason": "failed 10 times",
        "attempts": 1,
        "steps": ["create"],
    }


def test_a_release_asks_before_it_forgets(place: Place) -> None:
    work = begin(place, A, ("create", "done"))
    refused = keys(place, "release", work, given="n\n")
    assert refused.returncode == 1
    assert "Done, or begun, so far: create" in refused.stderr
    assert (place.works_left(), audit(place)) == (1, [])


@pytest.mark.parametrize("verb", ["release", "resume"])
def test_a_work_that_is_being_done_is_left_alone(place: Place, verb: str) -> None:
    held = place.flow(place.works.claim(ASK))
    assert isinstance(held, Held)
    assert "is running at this moment" in one_line(keys(place, verb, held.digest.hex(), "--yes"))
    assert (place.works_left(), audit(place)) == (1, [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("release", C.hex()), "is running at this moment"),
        (("resume", C.hex()), "is running at this moment"),
        (("resume", A.hex()), "the outcome of call 'charge'"),
        (("resume", B.hex(), "--again"), "has no call whose outcome is unknown"),
        (("resume", B.hex(), "--result", "7"), "has no call whose outcome is unknown"),
        (("release", "00" * 16), "there is no unfinished work 0000"),
        (("resume", "00" * 16), "there is no unfinished work 0000"),
    ],
)
def test_what_is_refused_is_refused_before_a_person_is_asked(place: Place, words: tuple[str, ...], said: str) -> None:
    begin(place, A, ("charge", "started"), parked="outcome unknown: charge")
    begin(place, B, ("create", "done"))
    assert isinstance(place.flow(place.works.claim(ASK._replace(digest=C))), Held)
    assert said in one_line(keys(place, *words))


def test_a_parked_work_goes_on_with_its_attempts_counted_anew(place: Place) -> None:
    work = begin(place, A, ("create", "done"), parked="failed 10 times: status 500")
    assert ask(place, "resume", work, "--yes", "--actor", "ada")["resumed"] == work
    [found] = ask(place, "list")
    assert (found["state"], found["reason"], found["attempts"]) == ("left", None, 0)
    held = place.flow(place.works.claim(ASK._replace(digest=A)))
    assert isinstance(held, Held)
    [(_, action, details)] = audit(place)
    assert (action, details["reason"]) == ("keys resume", "failed 10 times: status 500")


def test_an_unknown_outcome_is_not_resumed_before_a_person_says_what_it_was(place: Place) -> None:
    work = begin(place, A, ("charge", "started"), parked="outcome unknown: charge")
    refused = one_line(keys(place, "resume", work, "--yes"))
    assert "the outcome of call 'charge'" in refused
    assert "--result JSON" in refused
    assert "--again" in refused
    assert ask(place, "list")[0]["state"] == "parked"


def test_an_outcome_is_recorded_as_if_the_call_had_returned_it(place: Place) -> None:
    work = begin(place, A, ("create", "done"), ("charge", "started"), parked="outcome unknown: charge")
    ask(place, "resume", work, "--result", '{"id": "ch_1"}', "--yes", "--actor", "ada")
    held = place.flow(place.works.claim(ASK._replace(digest=A)))
    assert isinstance(held, Held)
    charge = held.steps[1]
    assert (charge.state, charge.name) == ("told", "charge")
    assert charge.result is not None
    assert Sealing().unseal(charge.result, step_context(A, 1, "charge"), what="it") == b'{"id":"ch_1"}'
    [(_, _, details)] = audit(place)
    assert (details["step"], details["outcome"]) == ("charge", "recorded")


def test_what_is_recorded_is_shown_before_and_after(place: Place) -> None:
    work = begin(place, A, ("create", "done"), ("charge", "started"), parked="outcome unknown: charge")
    asked = keys(place, "resume", work, "--result", '{"id":  "ch_1"}', given="y\n")
    assert """Records that call 'charge' returned {"id": "ch_1"}.""" in asked.stderr
    assert """call 'charge' returned {"id": "ch_1"} (its form is checked when the work goes on)""" in asked.stdout


def test_an_outcome_is_corrected_as_long_as_the_work_has_not_gone_on(place: Place) -> None:
    work = begin(place, A, ("create", "done"), ("charge", "started"), parked="outcome unknown: charge")
    ask(place, "resume", work, "--result", '"ch_2"', "--yes")
    ask(place, "resume", work, "--result", '"ch_1"', "--yes")
    held = place.flow(place.works.claim(ASK._replace(digest=A)))
    assert isinstance(held, Held)
    assert held.steps[1].result is not None
    assert Sealing().unseal(held.steps[1].result, step_context(A, 1, "charge"), what="x") == b'"ch_1"'
    assert [details["outcome"] for _, _, details in audit(place)] == ["recorded", "corrected"]
    place.flow(place.works.give_back(held))
    refused = one_line(keys(place, "resume", work, "--result", '"ch_3"', "--yes"))
    assert "call 'charge'" in refused
    assert "has gone on with what was recorded" in refused
    assert len(audit(place)) == 2


def test_an_outcome_that_was_recorded_by_mistake_is_taken_back(place: Place) -> None:
    work = begin(place, A, ("create", "done"), ("charge", "started"), parked="outcome unknown: charge")
    ask(place, "resume", work, "--result", '"ch_2"', "--yes")
    ask(place, "resume", work, "--again", "--yes")
    assert place.steps_left() == [(0, "create", "call", "done")]


def test_a_call_that_was_not_made_is_made_again(place: Place) -> None:
    work = begin(place, A, ("create", "done"), ("charge", "started"), parked="outcome unknown: charge")
    ask(place, "resume", work, "--again", "--yes")
    assert place.steps_left() == [(0, "create", "call", "done")]
    [(_, _, details)] = audit(place)
    assert details["outcome"] == "not made"


def test_sealed_results_are_not_shown_and_an_outcome_is_sealed_with_the_keys_of_the_application(
    place: Place, tmp_path: Path
) -> None:
    sealing = Sealing(RING)
    work = begin(place, A, ("create", "done"), ("charge", "started"), parked="unknown", sealing=sealing)
    assert "(sealed)" in keys(place, "show", work).stdout
    assert [(step["sealed"], step["result"]) for step in ask(place, "show", work)["steps"]] == [
        (True, None),
        (False, None),
    ]
    for unsealed in ((), ("--unsealed",)):
        refused = one_line(keys(place, "resume", work, "--result", "7", "--yes", *unsealed))
        assert "are sealed: name the application that has the keys, --app" in refused
    (tmp_path / "sealed_app.py").write_text(
        "from onefold import Keyring, Onefold, single_principal\n"
        f"ring = Keyring({{'k': {KEY!r}}}, write='k')\n"
        f"once = Onefold({place.address!r}, principal=single_principal, sealer=ring)\n"
    )
    ask(place, "resume", work, "--result", "7", "--yes", "--app", "sealed_app:once", cwd=tmp_path)
    held = place.flow(place.works.claim(ASK._replace(digest=A)))
    assert isinstance(held, Held)
    assert held.steps[1].result is not None
    assert sealing.unseal(held.steps[1].result, step_context(A, 1, "charge"), what="it") == b"7"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "xyz"), "'xyz' is not an id of a work"),
        (("show", "00" * 16), "there is no unfinished work 0000"),
        (("show", "order-7"), "Is it an Idempotency-Key? Give --principal and --route, or --app"),
        (("release", "00" * 16, "--yes"), "there is no unfinished work 0000"),
        (("resume", "00" * 16, "--yes"), "there is no unfinished work 0000"),
    ],
)
def test_an_id_that_is_none_is_told(place: Place, words: tuple[str, ...], said: str) -> None:
    assert said in one_line(keys(place, *words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--result", "7", "--again"), "either --result"),
        (("--result", "{"), "--result is not JSON"),
        (("--result", ""), "--result is not JSON"),
        (("--result", "NaN"), "--result is not JSON"),
        (("--result", "7"), "has no call whose outcome is unknown"),
        (("--again",), "has no call whose outcome is unknown"),
        (("--actor", " \n"), "must say who does this"),
    ],
)
def test_what_does_not_fit_the_work_is_refused_and_changes_nothing(
    place: Place, words: tuple[str, ...], said: str
) -> None:
    work = begin(place, A, ("create", "done"), parked="why")
    refused = keys(place, "resume", work, "--yes", *words)
    assert refused.returncode != 0
    assert said in refused.stderr
    assert (ask(place, "list")[0]["state"], audit(place)) == ("parked", [])


def test_more_than_a_page_is_listed(place: Place) -> None:
    for number in range(3):
        begin(place, os.urandom(15) + bytes([number]), ("create", "done"))
    assert len(ask(place, "list", "--limit", "2")) == 2
    assert "perhaps more: raise --limit" in keys(place, "list", "--limit", "2").stdout
    assert len({each["id"] for each in ask(place, "list")}) == 3


def test_resume_of_a_message_redrives_its_dead_letter_and_discard_forgets_its_work(place: Place) -> None:
    with stage_at(place, asynchronous=False) as stage:
        stage.charge_step = StepOptions("charge", repeatable=False)
        for name in ("m1", "m2"):
            stage.during = fail_once()
            stage.deliver(message(name))
            stage.run_due()
        found = {each["operation"]: each for each in ask(place, "list", "--parked")}
        assert sorted(found) == ["billing: m1 from shop", "billing: m2 from shop"]
        told_again = ask(place, "resume", found["billing: m1 from shop"]["id"], "--again", "--actor", "ada", "--yes")
        assert told_again == {
            "resumed": found["billing: m1 from shop"]["id"],
            "operation": "billing: m1 from shop",
            "recorded": "call 'charge' was not made, and is made",
            "redriven": 1,
        }
        assert stage.run_due() == [Handled("billing", "ride.wanted")]
        onefold("dlq", "discard", "m2", "--actor", "ada", "--yes", "-d", place.address)
        assert stage.left() == (0, 0, 0)


def test_resume_of_a_message_redrives_its_dead_letter_however_old_it_is(place: Place) -> None:
    """That its work is there says that it was not handled, whatever the ledger has forgotten."""
    with stage_at(place, asynchronous=False, dead_letter_s=30 * 86400, retention_s=30 * 86400) as stage:
        stage.charge_step = StepOptions("charge", repeatable=False)
        stage.during = fail_once()
        stage.deliver()
        stage.run_due()
        place.change("UPDATE onefold_letter SET died_at_ms = died_at_ms - 20 * 86400000")
        [work] = ask(place, "list", "--parked")
        assert ask(place, "resume", work["id"], "--again", "--actor", "ada", "--yes")["redriven"] == 1
        assert stage.run_due() == [Handled("billing", "ride.wanted")]


def test_dlq_list_says_that_works_wait_for_a_person_and_where_they_are_listed(place: Place) -> None:
    listed = ("dlq", "list", "-d", place.address)
    assert onefold(*listed).stdout == "dead letters: 0\n"
    begin(place, A, ("charge", "started"), parked="outcome unknown: charge")
    begin(place, B, ("create", "done"))
    hint = "requests and works that wait for a person: 1; see `onefold keys list --parked`\n"
    assert onefold(*listed).stdout == "dead letters: 0\n" + hint
    assert told(onefold(*listed, "--json")) == []
    place.change("UPDATE onefold_work SET kind = 'message'")  # it has a dead letter, which is listed
    assert onefold(*listed).stdout == "dead letters: 0\n"


def test_a_result_is_not_taken_where_nothing_tells_whether_it_is_sealed(place: Place) -> None:
    begin(place, A, ("charge", "started"), parked="outcome unknown: charge")
    place.change("UPDATE onefold_work SET kind = 'work', request = NULL")
    resume = ("resume", A.hex(), "--result", "7", "--actor", "ada", "--yes")
    refused = keys(place, *resume)
    assert refused.returncode != 0
    assert "give --unsealed" in refused.stderr
    assert ask(place, *resume, "--unsealed")["resumed"] == A.hex()


def test_a_result_that_was_told_unsealed_by_mistake_does_not_say_how_the_next_one_is_sealed(place: Place) -> None:
    """And one who corrects what was told is asked about that."""
    begin(place, A, ("charge", "started"), parked="outcome unknown: charge")
    place.change("UPDATE onefold_work SET kind = 'work', request = NULL")
    ask(place, "resume", A.hex(), "--result", "7", "--yes", "--unsealed")
    refused = keys(place, "resume", A.hex(), "--result", "8", "--yes")
    assert "give --unsealed" in refused.stderr
    corrected = keys(place, "resume", A.hex(), "--result", "8", "--unsealed", given="y\n")
    assert "This corrects the outcome recorded before" in corrected.stderr


def test_resume_of_a_message_redrives_none_of_another_source(place: Place) -> None:
    with stage_at(place, asynchronous=False, attempts=2) as stage:
        stage.charge_step = StepOptions("charge", repeatable=False)
        for source in ("first", "second"):
            stage.during = fail_once()
            stage.deliver(message("m1", source=source))
        stage.run_due()
        assert len(stage.failed()) == 2
        for work in ask(place, "list", "--parked"):
            _, _, source = work["operation"].rpartition(" from ")
            told = ask(place, "resume", work["id"], "--again", "--actor", "ada", "--yes")
            assert told["redriven"] == 1
            assert [each.source for each in stage.failed().values() if each.state == "waiting"] == [source]
            assert stage.run_due() == [Handled("billing", "ride.wanted")]
        assert stage.left() == (0, 0, 0)


def fail_once() -> Callable[[], None]:
    left = [ConnectionError("the answer was lost")]

    def check() -> None:
        if left:
            raise left.pop()

    return check
