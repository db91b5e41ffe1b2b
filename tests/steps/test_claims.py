"""Claiming a work, taking it over, giving it back."""

from __future__ import annotations

import pytest

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Acquire, Batch, BatchItem, Boundary, Flow, Release
from onefold._steps.model import Busy, Differs, Done, Held, RecordedStep, WaitsForPerson, digest_of
from onefold._steps.unfinished_works import release
from onefold._steps.works import Works
from onefold.errors import RequiredValueMissing
from tests.steps.places import ASK, ON_POSTGRES, Place
from tests.support.scripts import Turn, play


def held(claim: object) -> Held:
    assert isinstance(claim, Held)
    return claim


def write(*items: BatchItem) -> Flow[int]:
    async def work() -> int:
        return await Batch((Boundary.BEGIN, *items, Boundary.COMMIT))

    return with_connection(work)


def record(place: Place, work: Held, position: int = 0, name: str = "create") -> None:
    place.flow(write(place.works.sql.record(work, RecordedStep(position, name, "phase", "done", b'"r"'))))


def test_a_new_work_is_held(place: Place) -> None:
    work = held(place.flow(place.works.claim(ASK)))
    assert (work.digest, work.operation, work.attempts, work.steps) == (ASK.digest, ASK.operation, 1, ())


def test_a_work_that_is_being_done_is_busy(place: Place) -> None:
    place.flow(place.works.claim(ASK))
    assert isinstance(place.flow(place.works.claim(ASK)), Busy)


def test_another_input_is_told_apart(place: Place) -> None:
    place.flow(place.works.claim(ASK))
    other = ASK._replace(fingerprint=b"other")
    assert place.flow(place.works.claim(other)) == Differs()
    place.lease_runs_out()
    assert place.flow(place.works.claim(other)) == Differs()


def test_a_work_whose_lease_has_run_out_is_taken_over_with_its_steps(place: Place) -> None:
    first = held(place.flow(place.works.claim(ASK)))
    record(place, first)
    place.lease_runs_out()
    second = held(place.flow(place.works.claim(ASK)))
    assert second.fence == first.fence + 1
    assert second.attempts == 2
    assert [(step.position, step.name, step.result) for step in second.steps] == [(0, "create", b'"r"')]
    assert [bytes(request) for (request,) in place.rows("SELECT request FROM onefold_work")] == [ASK.request]
    assert isinstance(place.flow(place.works.claim(ASK)), Busy)


@pytest.mark.parametrize(
    ("left_s", "ask_again_s"),
    [
        (60.0, 1.0),  # begun just now: a duplicate
        (50.0, 20.0),  # twice as long as nothing was heard of it
        (30.0, 30.0),  # but no longer than the lease
        (0.2, 1.0),
        (3600.0, 1.0),  # taken under a longer lease
    ],
)
def test_a_busy_work_is_asked_for_again_later_the_longer_it_is_silent(left_s: float, ask_again_s: float) -> None:
    assert Busy.silent(left_s=left_s, lease_s=60.0).ask_again_s == ask_again_s


def test_no_one_is_told_to_wait_for_longer_than_a_minute() -> None:
    assert Busy.silent(left_s=1800.0, lease_s=3600.0).ask_again_s == 60.0


def test_a_busy_work_tells_what_is_left_of_its_lease(place: Place) -> None:
    place.flow(place.works.claim(ASK))
    place.change(
        "UPDATE onefold_work SET lease_ends_at = now() + interval '20 seconds'"
        if place.is_postgres
        else "UPDATE onefold_work SET lease_ends_at_ms = lease_ends_at_ms - 40000"
    )
    found = place.flow(place.works.claim(ASK))
    assert isinstance(found, Busy)
    assert 1 < found.ask_again_s <= 20


def test_a_holder_that_was_taken_over_records_nothing(place: Place) -> None:
    first = held(place.flow(place.works.claim(ASK)))
    place.lease_runs_out()
    place.flow(place.works.claim(ASK))
    with pytest.raises(RequiredValueMissing):
        record(place, first)
    with pytest.raises(RequiredValueMissing):
        place.flow(write(*place.works.sql.forget(first)))
    with pytest.raises(RequiredValueMissing):
        place.flow(write(*place.works.sql.finish(first, b"1", 60)))
    assert place.steps_left() == []
    assert place.works_left() == 1


def test_a_holder_whose_work_was_forgotten_and_begun_anew_records_nothing(place: Place) -> None:
    """With fences that begin at 1 it would be taken for the one that holds the work now."""
    first = held(place.flow(place.works.claim(ASK)))
    place.lease_runs_out()
    second = held(place.flow(place.works.claim(ASK)))
    place.flow(place.works.give_back(second))
    place.flow(release(place.database.dialect, ASK.digest.hex(), actor="ada"))
    third = held(place.flow(place.works.claim(ASK)))
    assert third.attempts == 1
    with pytest.raises(RequiredValueMissing):
        record(place, first)


def test_nothing_is_left_of_a_work_that_is_given_back_without_a_step(place: Place) -> None:
    work = held(place.flow(place.works.claim(ASK)))
    place.flow(place.works.give_back(work))
    assert place.works_left() == 0


def test_a_work_whose_call_was_begun_is_kept_though_nothing_is_recorded(place: Place) -> None:
    work = held(place.flow(place.works.claim(ASK)))
    work.may_have_called = True
    place.flow(place.works.give_back(work))
    assert held(place.flow(place.works.claim(ASK))).attempts == 2


def test_a_work_that_was_taken_over_is_kept_because_the_attempt_before_may_have_called(place: Place) -> None:
    _ = held(place.flow(place.works.claim(ASK)))
    place.lease_runs_out()
    again = held(place.flow(place.works.claim(ASK)))
    place.flow(place.works.give_back(again, tried=False))
    assert place.works_left() == 1


def test_a_work_that_is_given_back_with_steps_is_gone_on_with_at_once(place: Place) -> None:
    work = held(place.flow(place.works.claim(ASK)))
    record(place, work)
    place.flow(place.works.give_back(work))
    assert len(held(place.flow(place.works.claim(ASK))).steps) == 1


def test_a_holder_that_was_taken_over_gives_nothing_back(place: Place) -> None:
    first = held(place.flow(place.works.claim(ASK)))
    place.lease_runs_out()
    place.flow(place.works.claim(ASK))
    place.flow(place.works.give_back(first))
    assert isinstance(place.flow(place.works.claim(ASK)), Busy)


def test_a_parked_work_waits_for_a_person(place: Place) -> None:
    work = held(place.flow(place.works.claim(ASK)))
    place.flow(place.works.park(work, "outcome unknown: charge"))
    assert place.flow(place.works.claim(ASK)) == WaitsForPerson("outcome unknown: charge")


def test_a_finished_work_is_remembered_with_its_steps_and_its_result(place: Place) -> None:
    work = held(place.flow(place.works.claim(ASK)))
    record(place, work)
    place.flow(write(*place.works.sql.finish(work, b'"end"', 60)))
    done = place.flow(place.works.claim(ASK))
    assert isinstance(done, Done)
    assert ([step.name for step in done.steps], done.result) == (["create"], b'"end"')


def test_a_work_of_an_earlier_name_goes_on_under_that_name(place: Place) -> None:
    """Keys are derived from the name: under another one the card would be charged a second time."""
    before = ASK._replace(digest=b"e" * 16)
    record(place, held(place.flow(place.works.claim(before))))
    now = ASK._replace(earlier=(b"x" * 16, before.digest))
    assert isinstance(place.flow(place.works.claim(now)), Busy)
    place.lease_runs_out()
    work = held(place.flow(place.works.claim(now)))
    assert (work.digest, len(work.steps)) == (before.digest, 1)
    assert place.works_left() == 1


@ON_POSTGRES  # SQLite has one write lock: who takes over waits for the phase
def test_a_work_that_is_locked_by_its_phase_is_busy_though_its_lease_has_run_out(place: Place) -> None:
    work = held(place.flow(place.works.claim(ASK)))
    place.lease_runs_out()
    phase = place.executor()
    phase.acquire()
    assert phase.batch((Boundary.BEGIN, place.works.sql.lock(work))) == 1
    assert isinstance(place.flow(place.works.claim(ASK)), Busy)
    phase.batch((Boundary.ROLLBACK,))
    phase.release()
    assert held(place.flow(place.works.claim(ASK))).attempts == 2


def test_what_is_finished_or_was_never_begun_is_reaped_and_what_is_half_done_is_not(place: Place) -> None:
    works = place.works
    for name in (b"a", b"b", b"c", b"d"):
        work = held(place.flow(works.claim(ASK._replace(digest=name * 16))))
        if name in (b"b", b"c"):
            record(place, work)
        if name == b"c":
            place.flow(write(*works.sql.finish(work, None, 60)))
        if name == b"d":
            place.flow(works.park(work, "a person is asked"))
    assert place.flow(works.reap(100)) == 0
    place.retention_passes()
    assert place.flow(works.reap(100)) == 2
    left = [bytes(digest)[:1] for (digest,) in place.rows("SELECT digest FROM onefold_work ORDER BY digest")]
    assert left == [b"b", b"d"]
    assert len(place.steps_left()) == 1


def test_a_claim_takes_one_round_trip() -> None:
    script: list[Turn] = [(Acquire(), None), (Batch, 0), (Release(), None)]
    assert isinstance(play(Works("postgres").claim(ASK), script), Held)


def test_names_of_works_are_told_apart() -> None:
    names = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), ("a:1", "b")]
    assert len({digest_of("work", *each) for each in names} | {digest_of("message", "a", "bc")}) == len(names) + 1


def test_an_attempt_that_was_turned_away_before_it_began_does_not_count(place: Place) -> None:
    first = held(place.flow(place.works.claim(ASK)))
    record(place, first)
    place.flow(place.works.give_back(first))
    for tried, attempts in ((False, 2), (False, 2), (True, 2), (True, 3)):
        again = held(place.flow(place.works.claim(ASK)))
        assert again.attempts == attempts
        place.flow(place.works.give_back(again, tried=tried))
