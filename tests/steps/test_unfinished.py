"""What people do with works, on each database: pages, locks, and the audit."""

from __future__ import annotations

import pytest

from onefold._steps.model import Held
from onefold._steps.unfinished_works import WorkNotFit, list_works, release, resume, show_work
from tests.steps.places import ASK, Place


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
