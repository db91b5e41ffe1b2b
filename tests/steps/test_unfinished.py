"""What people do with works, on each database: pages, locks, and the audit."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from onefold import Keyring, Onefold, StepOptions, single_principal
from onefold._app.operator_actions import show_result
from onefold._kernel.log_context import ATTRIBUTE
from onefold._kernel.results import encode_result
from onefold._steps.model import Held
from onefold._steps.sealing import Sealing, step_context
from onefold._steps.unfinished_works import StepView, WorkNotFit, list_works, release, resume, show_work
from onefold.errors import ResultUnreadable, WorkParked
from tests.steps.places import ASK, Place, effects, insert


def begin(place: Place, digest: bytes) -> Held:
    held = place.flow(place.works.claim(ASK._replace(digest=digest)))
    assert isinstance(held, Held)
    return held


def test_pages_follow_each_other_and_miss_nothing(place: Place) -> None:
    digests = [bytes([number]) * 16 for number in range(7)]
    for digest in digests:
        begin(place, digest)
    place.change("UPDATE onefold_work SET created_at" + (" = now()" if place.is_postgres else "_ms = 7"))
    found, last = [], None
    while page := place.flow(list_works(place.database.dialect, after=last, limit=2)):
        found += page
        last = page[-1].place
    assert [bytes.fromhex(each.id) for each in found] == digests


def test_a_parked_work_is_shown_resumed_and_released(place: Place) -> None:
    dialect = place.database.dialect
    held = begin(place, ASK.digest)
    place.flow(place.works.park(held, "outcome unknown: charge"))
    work, steps = place.flow(show_work(dialect, held.digest.hex()))
    assert (work.state, work.reason, work.attempts, steps) == ("parked", "outcome unknown: charge", 1, [])
    assert abs(work.now_ms - work.created_ms) < 600_000
    place.flow(resume(dialect, work.id, actor="ada"))
    assert place.flow(show_work(dialect, work.id))[0].state == "left"
    place.flow(release(dialect, work.id, actor="ada"))
    with pytest.raises(WorkNotFit):
        place.flow(show_work(dialect, work.id))
    actions = place.rows("SELECT actor, action FROM onefold_audit ORDER BY id")
    assert [tuple(row) for row in actions] == [("ada", "keys resume"), ("ada", "keys release")]


def test_a_process_that_held_a_released_work_writes_nothing_more(place: Place) -> None:
    held = begin(place, ASK.digest)
    place.lease_runs_out()
    place.flow(release(place.database.dialect, held.digest.hex(), actor="ada"))
    again = begin(place, ASK.digest)
    assert again.fence != held.fence


@dataclass
class Sent:
    id: str


_PLAIN = Sealing()


class Letter:
    """A work whose call must not be made twice, and was lost."""

    def __init__(self, once: Onefold, place: Place) -> None:
        self._once, self._place, self._dialect = once, place, place.database.dialect
        self.fails_behind = False
        with pytest.raises(ConnectionError):
            self.attempt()
        with pytest.raises(WorkParked):
            self.attempt()
        [self.work] = place.flow(list_works(self._dialect, parked_only=True))

    def attempt(self, returns: type = Sent) -> None:
        def send() -> Any:
            raise ConnectionError("the answer was lost")

        with self._once.work("letter:1") as work:
            sent = work.call(StepOptions("send", repeatable=False, returns=returns), send)
            if self.fails_behind:
                raise KeyError("on purpose")
            work.finish(insert, sent.id)

    def say(self, value: object, sealing: Sealing = _PLAIN, seen: StepView | None = None) -> None:
        digest = bytes.fromhex(self.work.id)
        result = sealing.seal(encode_result(value), step_context(digest, 0, "send"))
        self._place.flow(resume(self._dialect, self.work.id, actor="ada", result=result, seen=seen))

    def say_not_made(self, seen: StepView | None = None) -> None:
        self._place.flow(resume(self._dialect, self.work.id, actor="ada", again=True, seen=seen))

    def resume(self) -> None:
        """Without saying anything of the call."""
        self._place.flow(resume(self._dialect, self.work.id, actor="bob"))

    def look(self) -> StepView:
        return self._place.flow(show_work(self._dialect, self.work.id))[1][0]


def test_an_outcome_that_was_told_in_a_wrong_form_parks_the_work_and_is_told_again(
    once: Onefold, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    letter = Letter(once, place)
    letter.say({"ID": "s-1"})
    caplog.clear()
    with caplog.at_level(logging.ERROR), pytest.raises(WorkParked) as caught:
        letter.attempt()
    assert "It was entered" in str(caught.value.__cause__)
    work, [step] = place.flow(show_work(place.database.dialect, letter.work.id))
    assert (work.state, step.state, step.result) == ("parked", "started", b'\x00{"ID":"s-1"}')
    for text in (work.reason or "", caplog.text):
        assert "no field 'ID' in Sent, field 'id' is missing" in text
        assert "enter it again" in text
        assert "--result" in text
    with pytest.raises(WorkNotFit, match="the outcome of call 'send'"):
        place.flow(resume(place.database.dialect, letter.work.id, actor="ada"))
    letter.say({"id": "s-1"})
    letter.attempt()
    assert effects(place) == ["s-1"]
    details = [str(row[0]) for row in place.rows("SELECT details FROM onefold_audit ORDER BY id")]
    assert ["recorded" in details[0], "corrected" in details[1], len(details)] == [True, True, 2]


def test_a_work_that_waits_for_a_person_is_logged_by_its_attempt_with_its_id_and_the_command(
    once: Onefold, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    letter = Letter(once, place)
    letter.say({"ID": "s-1"})
    with pytest.raises(WorkParked):
        letter.attempt()
    unknown, misread = (record for record in caplog.records if record.levelno == logging.ERROR)
    for line in (unknown, misread):
        assert vars(line)[ATTRIBUTE] == {"event": "work.parked", "work": letter.work.id}
        assert f"`onefold keys resume {letter.work.id}" in line.getMessage()


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (None, "-"),
        (b'\x00{"name": "Zo\xc3\xab"}', '{"name": "Zoë"}'),
        (b"\x00null", "null"),
        (b"\x00{", "(not readable)"),
        (b"\x01anything", "(sealed)"),
        (b"\x07of a later release", "(not readable)"),
    ],
)
def test_what_a_step_returned_is_shown_as_far_as_it_can_be_read(stored: bytes | None, shown: str) -> None:
    step = StepView(position=0, name="send", kind="call", state="done", result=stored, recorded_ms=0)
    assert show_result(step) == shown


def test_a_call_that_was_told_in_a_wrong_form_may_be_said_not_to_be_made(once: Onefold, place: Place) -> None:
    letter = Letter(once, place)
    letter.say(7)
    with pytest.raises(WorkParked):
        letter.attempt()
    letter.say_not_made()
    with pytest.raises(ConnectionError):  # made again
        letter.attempt()


def test_an_outcome_that_an_attempt_has_gone_on_with_is_not_told_again_after_its_type_was_changed(
    once: Onefold, place: Place
) -> None:
    letter = Letter(once, place)
    letter.say({"id": "s-1"})
    letter.fails_behind = True
    with pytest.raises(KeyError):
        letter.attempt()
    with pytest.raises(ResultUnreadable, match="It was entered"):
        letter.attempt(returns=int)
    with pytest.raises(WorkNotFit, match="has gone on with what was recorded"):
        letter.say({"id": "s-2"})
    assert place.steps_left() == [(0, "send", "call", "told")]


def test_what_an_attempt_has_gone_on_with_is_not_told_again_after_the_work_was_resumed_once_more(
    once: Onefold, place: Place
) -> None:
    """A plain resume counts attempts from zero: that one has gone on with the result must not be forgotten with it."""
    letter = Letter(once, place)
    letter.say({"id": "s-1"})
    letter.fails_behind = True
    with pytest.raises(KeyError):
        letter.attempt()
    letter.resume()
    with pytest.raises(WorkNotFit, match="has no call whose outcome is unknown"):
        letter.say({"id": "s-2"})
    with pytest.raises(WorkNotFit, match="has no call whose outcome is unknown"):
        letter.say_not_made()
    with pytest.raises(ResultUnreadable):  # and not parked, to be told once more
        letter.attempt(returns=int)
    letter.fails_behind = False
    letter.attempt()
    assert effects(place) == ["s-1"]


def test_a_work_that_has_not_gone_on_may_be_corrected_after_a_plain_resume(once: Onefold, place: Place) -> None:
    letter = Letter(once, place)
    letter.say({"id": "s-1"})
    letter.resume()
    letter.say({"id": "s-2"})
    letter.attempt()
    assert effects(place) == ["s-2"]


def test_a_call_that_was_gone_on_with_stays_told_when_a_later_one_is_said_not_to_be_made(
    once: Onefold, place: Place
) -> None:
    dialect = place.database.dialect

    def lost() -> Sent:
        raise ConnectionError("the answer was lost")

    def attempt() -> None:
        with once.work("letters") as work:
            sent = work.call(StepOptions("first", repeatable=False), lost)
            work.call(StepOptions("second", repeatable=False), lost)
            work.finish(insert, sent.id)

    def tell(**outcome: Any) -> None:
        [work] = place.flow(list_works(dialect))
        place.flow(resume(dialect, work.id, actor="ada", **outcome))

    for expected in (ConnectionError, WorkParked):
        with pytest.raises(expected):
            attempt()
    tell(result=Sealing().seal(b'{"id":"s-1"}', b""))
    for expected in (ConnectionError, WorkParked):
        with pytest.raises(expected):
            attempt()
    tell(again=True)  # of the second
    for outcome in ({"again": True}, {"result": Sealing().seal(b'{"id":"s-2"}', b"")}):
        with pytest.raises(WorkNotFit, match="has no call whose outcome is unknown"):
            tell(**outcome)
    assert place.steps_left() == [(0, "first", "call", "done")]


@pytest.mark.parametrize("by", ["none", "other keys"])
def test_an_outcome_that_was_not_sealed_as_its_application_seals_parks_the_work_and_is_told_again(
    place: Place, by: str
) -> None:
    ring = Keyring({"k": bytes(range(32))}, write="k")
    once = Onefold(place.address, principal=single_principal, source="tests", sealer=ring)
    letter = Letter(once, place)
    letter.say({"id": "s-1"}, Sealing() if by == "none" else Sealing(Keyring({"other": bytes(32)}, write="other")))
    with pytest.raises(WorkParked):
        letter.attempt()
    work, [step] = place.flow(show_work(place.database.dialect, letter.work.id))
    assert (work.state, step.state) == ("parked", "started")
    assert "enter it again, with --app" in (work.reason or "")
    letter.say({"id": "s-1"}, Sealing(ring))
    letter.attempt()
    assert effects(place) == ["s-1"]
    once.close()


def test_of_two_people_who_saw_the_same_call_the_second_changes_nothing(once: Onefold, place: Place) -> None:
    """The first has found out that it was made: the second would have it made again."""
    letter = Letter(once, place)
    seen = letter.look()
    letter.say({"id": "s-1"}, seen=seen)
    with pytest.raises(WorkNotFit, match="was changed meanwhile"):
        letter.say_not_made(seen=seen)
    with pytest.raises(WorkNotFit, match="was changed meanwhile"):
        letter.say({"id": "s-2"}, seen=seen)
    letter.say({"id": "s-3"}, seen=letter.look())  # who has seen what was told may correct it
    letter.attempt()
    assert effects(place) == ["s-3"]
