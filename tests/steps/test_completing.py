"""The completer's flows: what is picked, what becomes of it, and what happens between the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onefold._policy.backoff import Backoff
from onefold._steps.completer import Abandoned, CompletedWorks, Completer, CompleterConfig, CompletionAttempt
from onefold._steps.model import Held
from onefold._steps.unfinished_works import release
from onefold.errors import ConfigurationError
from onefold.telemetry import Event, WorkAttemptFailed, WorkCompleted, WorkIsParked
from tests.steps.places import ASK, ON_SQLITE, Place

NONE = CompletedWorks()


class Stage:
    """A completer whose requests do what the test says."""

    def __init__(self, place: Place, act: Callable[[Abandoned], CompletionAttempt], **config: Any) -> None:
        self.place = place
        self.tried: list[Abandoned] = []
        self.told: list[Event] = []
        self._act = act
        backoff = Backoff(transient_base_s=30.0, cap_s=3600.0)
        self.completer = Completer(
            place.database.dialect,
            self._attempt,
            config=CompleterConfig(**{"abandoned_after_s": 0.0, "backoff": backoff, **config}),
            draw=lambda: 0.5,
            listener=self.told.append,
        )

    def _attempt(self, work: Abandoned) -> CompletionAttempt:
        self.tried.append(work)
        return self._act(work)

    def round(self, limit: int = 10) -> CompletedWorks:
        return self.place.flow(self.completer.complete(limit))


def begin(place: Place, digest: bytes = ASK.digest) -> Held:
    held = place.flow(place.works.claim(ASK._replace(digest=digest)))
    assert isinstance(held, Held)
    return held


def left(place: Place, digest: bytes = ASK.digest) -> None:
    begin(place, digest)
    place.lease_runs_out()


def due_now(place: Place) -> None:
    place.change(f"UPDATE onefold_work SET due_at{' = created_at' if place.is_postgres else '_ms = created_at_ms'}")


def settle(place: Place) -> Callable[[Abandoned], CompletionAttempt]:
    """A request that claims its work, and ends it."""

    def act(work: Abandoned) -> CompletionAttempt:
        begin(place, work.digest)
        place.change("DELETE FROM onefold_work")
        return CompletionAttempt(201)

    return act


def fail(place: Place, status: int = 500) -> Callable[[Abandoned], CompletionAttempt]:
    """A request that claims its work, and gives it back."""

    def act(work: Abandoned) -> CompletionAttempt:
        held = begin(place, work.digest)
        place.flow(place.works.give_back(held)) if held.steps else place.lease_runs_out()
        return CompletionAttempt(status)

    return act


def state(place: Place) -> tuple[int, str | None]:
    [(attempts, parked)] = place.rows("SELECT attempts, parked FROM onefold_work")
    return attempts, parked


def test_a_work_that_was_left_is_completed(place: Place) -> None:
    left(place)
    stage = Stage(place, settle(place))
    assert stage.round() == CompletedWorks(completed=1)
    assert stage.tried == [Abandoned(ASK.digest, "POST /rides", 1, b"what was asked")]
    assert stage.told == [WorkCompleted("POST /rides", 201, 2)]
    assert stage.round() == NONE


def test_what_is_being_done_is_not_picked(place: Place) -> None:
    begin(place)
    assert Stage(place, settle(place)).round() == NONE


def test_the_retry_of_the_client_comes_first(place: Place) -> None:
    left(place)
    stage = Stage(place, settle(place), abandoned_after_s=86_400.0 if place.is_postgres else 7 * 86_400.0)
    if place.is_postgres:
        assert stage.round() == NONE
    else:  # leases of this test end in 1970 there
        place.change("UPDATE onefold_work SET lease_ends_at_ms = created_at_ms")
        assert stage.round() == NONE


def test_a_work_without_its_request_and_one_that_is_no_request_are_left_to_their_callers(place: Place) -> None:
    for digest, change in (
        (b"1" * 16, {"request": None}),
        (b"2" * 16, {"kind": "work"}),
        (b"3" * 16, {"kind": "message"}),
    ):
        ask = ASK._replace(digest=digest, **change)
        assert isinstance(place.flow(place.works.claim(ask)), Held)
    place.lease_runs_out()
    assert Stage(place, settle(place)).round() == NONE


def test_a_work_that_failed_is_tried_again_later_and_in_the_end_parked(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    left(place)
    stage = Stage(place, fail(place), attempts_max=3)
    assert stage.round() == CompletedWorks(failed=1)
    assert state(place) == (2, None)
    assert stage.round() == NONE  # it is not due
    due_now(place)
    assert stage.round() == CompletedWorks(parked=1)
    assert state(place) == (3, "failed 3 times: status 500")
    due_now(place)
    assert stage.round() == NONE
    assert stage.told == [
        WorkAttemptFailed("POST /rides", 2, "status 500"),
        WorkIsParked("POST /rides", 3, "failed 3 times: status 500"),
    ]
    [error] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"POST /rides (work {ASK.digest.hex()}) is parked and is not tried again: failed 3 times: status 500" in (
        error.getMessage()
    )


def test_an_attempt_that_does_not_reach_its_claim_counts_as_well(place: Place) -> None:
    """A route that is gone, a middleware that answers 401."""
    left(place)
    stage = Stage(place, lambda work: CompletionAttempt(404), attempts_max=3)
    assert stage.round() == CompletedWorks(failed=1)
    due_now(place)
    assert stage.round() == CompletedWorks(parked=1)
    assert state(place) == (3, "failed 3 times: status 404")


def test_pauses_grow(place: Place) -> None:
    left(place)
    stage = Stage(place, fail(place), attempts_max=1000)
    column = "extract(epoch FROM due_at - now())" if place.is_postgres else "due_at_ms / 1000 - unixepoch()"
    pauses = []
    for _ in range(3):
        stage.round()
        [(pause,)] = place.rows(f"SELECT {column} FROM onefold_work")
        pauses.append(round(float(pause), -1))
        due_now(place)
    assert pauses == [40.0, 90.0, 180.0]


def test_what_an_error_says_is_kept_short_and_printable(place: Place) -> None:
    left(place)
    Stage(place, lambda work: CompletionAttempt(None, "ValueError: \x1b[31m" + "x" * 1000), attempts_max=1).round()
    _, parked = state(place)
    assert parked is not None
    assert parked.isprintable()
    assert len(parked) < 600


def test_a_retry_that_has_taken_the_work_over_is_left_alone(place: Place) -> None:
    left(place)

    def overtaken(work: Abandoned) -> CompletionAttempt:
        begin(place)  # the client's, which goes on
        return CompletionAttempt(409)

    stage = Stage(place, overtaken, attempts_max=1)
    assert stage.round() == NONE
    assert state(place) == (2, None)
    assert stage.told == []


def test_a_work_that_a_person_releases_meanwhile_is_gone(place: Place) -> None:
    left(place)

    def released(work: Abandoned) -> CompletionAttempt:
        place.flow(release(place.database.dialect, work.digest.hex(), actor="ada"))
        return CompletionAttempt(409)

    assert Stage(place, released).round() == CompletedWorks(completed=1)
    assert place.works_left() == 0


def test_a_work_whose_handler_parks_it_is_parked(place: Place) -> None:
    left(place)

    def parks(work: Abandoned) -> CompletionAttempt:
        place.flow(place.works.park(begin(place), "outcome unknown: charge"))
        return CompletionAttempt(409)

    stage = Stage(place, parks)
    assert stage.round() == CompletedWorks(parked=1)
    assert stage.told == []  # the handler's attempt has told


def test_two_completers_do_not_pick_one_work(place: Place) -> None:
    left(place)
    inner = Stage(place, settle(place))

    def meanwhile(work: Abandoned) -> CompletionAttempt:
        assert inner.round() == NONE
        return settle(place)(work)

    assert Stage(place, meanwhile).round() == CompletedWorks(completed=1)
    assert inner.tried == []


def test_a_round_has_a_limit(place: Place) -> None:
    for number in range(3):
        left(place, bytes([number]) * 16)
    stage = Stage(place, lambda work: CompletionAttempt(500))
    assert stage.round(limit=2) == CompletedWorks(failed=2)
    assert stage.round(limit=2) == CompletedWorks(failed=1)


@ON_SQLITE  # Postgres plans by what the table holds; SQLite's plan shows that the index can be used
def test_the_oldest_is_picked_by_an_index(place: Place) -> None:
    sql = (
        Completer("sqlite", lambda work: None, config=CompleterConfig(), draw=lambda: 0.0)
        ._sql._pick.replace("?1", "0")
        .replace("?2", "0")
    )
    plan = " ".join(str(row[3]) for row in place.rows(f"EXPLAIN QUERY PLAN {sql}"))
    assert "onefold_work_due_at" in plan


@pytest.mark.parametrize(
    "wrong", [{"attempts_max": 0}, {"attempts_max": True}, {"attempts_max": 1.5}, {"abandoned_after_s": -1}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        CompleterConfig(**wrong)
