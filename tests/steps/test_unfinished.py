"""What people do with works, on each database: pages, locks, and the audit."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from onefold import Onefold, StepOptions
from onefold._kernel.results import encode_result
from onefold._steps.model import Held
from onefold._steps.sealing import Sealing, step_context
from onefold._steps.unfinished_works import WorkNotFit, list_works, release, resume, show_work
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

    def say(self, value: object) -> None:
        digest = bytes.fromhex(self.work.id)
        result = Sealing().seal(encode_result(value), step_context(digest, 0, "send"))
        self._place.flow(resume(self._dialect, self.work.id, actor="ada", result=result))

    def say_not_made(self) -> None:
        self._place.flow(resume(self._dialect, self.work.id, actor="ada", again=True))


def test_an_outcome_that_was_told_in_a_wrong_form_parks_the_work_and_is_told_again(
    once: Onefold, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    letter = Letter(once, place)
    letter.say({"ID": "s-1"})
    caplog.clear()
    with caplog.at_level(logging.ERROR), pytest.raises(WorkParked) as caught:
        letter.attempt()
    assert "A person told it" in str(caught.value.__cause__)
    work, [step] = place.flow(show_work(place.database.dialect, letter.work.id))
    assert (work.state, step.state, step.result) == ("parked", "started", b'\x00{"ID":"s-1"}')
    for text in (work.reason or "", caplog.text):
        assert "no field 'ID' in Sent, field 'id' is missing" in text
        assert "tell it again" in text
        assert "--result" in text
    with pytest.raises(WorkNotFit, match="the outcome of call 'send'"):
        place.flow(resume(place.database.dialect, letter.work.id, actor="ada"))
    letter.say({"id": "s-1"})
    letter.attempt()
    assert effects(place) == ["s-1"]
    details = [str(row[0]) for row in place.rows("SELECT details FROM onefold_audit ORDER BY id")]
    assert ["recorded" in details[0], "corrected" in details[1], len(details)] == [True, True, 2]


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
    with pytest.raises(ResultUnreadable, match="A person told it"):
        letter.attempt(returns=int)
    with pytest.raises(WorkNotFit, match="has gone on with what was recorded"):
        letter.say({"id": "s-2"})
    assert place.steps_left() == [(0, "send", "call", "told")]
