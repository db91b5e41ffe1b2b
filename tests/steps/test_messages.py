"""A consumer's handler that works in recorded steps: what fails goes on behind them, and nothing is handled twice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onefold import StepOptions
from onefold._inbox.discard_and_skip import discard
from onefold._inbox.failed_messages import take
from onefold._inbox.redrive import Filter, redrive
from onefold._kernel.effects import Discard
from onefold._kernel.results import encode_result
from onefold._kernel.telemetry.consumer_events import DeadLettered, Duplicate, Failed, Handled, Parked
from onefold._steps.message_work import MessageName, forget_message, read_operation
from onefold._steps.sealing import Sealing, step_context
from onefold._steps.unfinished_works import list_works, release, resume
from onefold._steps.work_attempt import WorkAttempt
from onefold.errors import StoreUnavailable
from tests.steps.message_stage import Stage, message, stage_at
from tests.steps.places import Place, effects

HANDLED = Handled("billing", "ride.wanted")
DUPLICATE = Duplicate("billing", "ride.wanted")
PARKED = Parked("billing", "ride.wanted")


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture
def stage(place: Place, asynchronous: bool) -> Iterator[Stage]:
    with stage_at(place, asynchronous=asynchronous) as stage:
        yield stage


def once_only(error: Exception) -> Callable[[], None]:
    left = [error]

    def check() -> None:
        if left:
            raise left.pop()

    return check


def assert_done(stage: Stage, name: str = "m1") -> None:
    """It happened once, and nothing is left of its work."""
    assert effects(stage.place) == [f"{name} created", f"{name} paid 500"]
    assert len({key for _, key in stage.charges}) == 1
    assert stage.ledger() == [name]
    assert stage.left() == (0, 0, 0)


def test_a_message_is_handled_once_and_its_work_is_forgotten(stage: Stage) -> None:
    assert stage.deliver() == HANDLED
    assert_done(stage)
    assert stage.deliver() == DUPLICATE
    assert stage.deliver(redelivered=True) == DUPLICATE
    assert stage.runs == ["m1"]
    assert_done(stage)


def test_a_handler_that_raised_goes_on_behind_its_recorded_steps(stage: Stage) -> None:
    stage.between = once_only(KeyError("on purpose"))
    assert isinstance(stage.deliver(), Failed)
    assert [name for _, name, _, _ in stage.place.steps_left()] == ["create", "charge"]
    assert effects(stage.place) == ["m1 created"]
    assert stage.run_due() == [HANDLED]
    assert (stage.runs, len(stage.charges)) == (["m1", "m1"], 1)
    assert_done(stage)


def test_a_call_that_raised_is_made_again_under_the_same_key(stage: Stage) -> None:
    stage.during = once_only(ConnectionError("the answer was lost"))
    assert isinstance(stage.deliver(), Failed)
    assert stage.run_due() == [HANDLED]
    assert len(stage.charges) == 2
    assert_done(stage)


def test_without_finish_the_ledger_row_and_the_end_of_the_work_are_committed_together(stage: Stage) -> None:
    stage.finishes = False
    assert stage.deliver() == HANDLED
    assert (effects(stage.place), stage.ledger(), stage.left()) == (["m1 created"], ["m1"], (0, 0, 0))
    assert stage.deliver() == DUPLICATE


def test_what_is_raised_behind_finish_changes_nothing(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.after = once_only(KeyError("too late"))
    assert stage.deliver() == HANDLED
    assert "message m1 is handled, and its handler raised after work.finish" in caplog.text
    assert_done(stage)


def test_a_message_that_is_busy_elsewhere_is_looked_at_until_it_is_not_and_no_look_counts(stage: Stage) -> None:
    """As after a kill: the process is gone, and its lease still runs."""
    stage.between = once_only(KeyError("on purpose"))
    stage.deliver()
    keep_lease(stage.place)
    for _ in range(5):  # more looks than a suspect may have deaths
        assert stage.run_due()[:1] in ([], [PARKED])
        found = stage.failed()["m1"]
        assert (found.state, found.started, found.failed) == ("waiting", 1, 1)
    assert stage.runs == ["m1"]
    stage.place.lease_runs_out()
    assert stage.run_due() == [HANDLED]
    assert_done(stage)


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_delivery_during_a_call_neither_runs_it_again_nor_is_lost(stage: Stage, redelivered: bool) -> None:
    events: list[Any] = []

    async def deliver_async() -> None:
        events.append(await stage.hand(redelivered=redelivered, inbox=stage.another()))

    def deliver() -> Any:
        if events or stage.asynchronous:
            return deliver_async() if not events else None
        events.append(stage.hand(redelivered=redelivered, inbox=stage.another()))
        return None

    stage.during = deliver
    assert stage.deliver() == HANDLED
    assert (events, stage.runs) == ([PARKED], ["m1"])
    assert_done(stage)


def test_a_holder_whose_work_was_taken_over_writes_nothing_more(stage: Stage) -> None:
    """As after SIGSTOP: its lease has run out, and another process has done the work."""
    events: list[Any] = []

    def take_over() -> Any:
        if len(stage.runs) > 1:
            return None
        stage.place.lease_runs_out()
        if stage.asynchronous:
            return deliver_async()
        events.append(stage.hand(redelivered=True, inbox=stage.another()))
        return None

    async def deliver_async() -> None:
        events.append(await stage.hand(redelivered=True, inbox=stage.another()))

    stage.between = take_over
    assert stage.deliver() == DUPLICATE
    assert (events, stage.runs, len(stage.charges)) == ([HANDLED], ["m1", "m1"], 1)
    assert_done(stage)


def test_a_message_that_is_handled_between_the_look_and_the_claim_is_not_run_again(place: Place) -> None:
    with stage_at(place, asynchronous=False) as stage:
        stepped: Any = stage.inbox._stepped
        begin = stepped._steps.begin

        def handle_elsewhere_first(*given: Any) -> Any:
            assert stage.hand(inbox=stage.another()) == HANDLED
            return begin(*given)

        stepped._steps.begin = handle_elsewhere_first
        assert stage.deliver() == DUPLICATE
        assert stage.runs == ["m1"]
        assert_done(stage)


def test_a_redriven_dead_letter_goes_on_behind_its_recorded_steps(place: Place, asynchronous: bool) -> None:
    with stage_at(place, asynchronous=asynchronous, attempts=1) as stage:
        stage.between = once_only(KeyError("on purpose"))
        assert isinstance(stage.deliver(), DeadLettered)
        place.flow(redrive(place.database.dialect, Filter(consumer="billing"), actor="ada"))
        assert stage.run_due() == [HANDLED]
        assert len(stage.charges) == 1
        assert_done(stage)


def test_a_discarded_dead_letter_takes_its_work_along(place: Place) -> None:
    with stage_at(place, asynchronous=False, attempts=1) as stage:
        stage.between = once_only(KeyError("on purpose"))
        stage.deliver()
        stage.deliver(message("m2"))
        assert stage.left()[0] == 1
        forget = functools.partial(forget_message, place.database.dialect)
        place.flow(discard(place.database.dialect, "billing", ("m1",), actor="ada", forget=forget))
        assert stage.left() == (0, 0, 0)


def test_a_call_whose_outcome_is_unknown_makes_a_dead_letter_until_a_person_says_what_became_of_it(
    stage: Stage,
) -> None:
    stage.charge_step = StepOptions("charge", repeatable=False)
    stage.during = once_only(ConnectionError("the answer was lost"))
    assert isinstance(stage.deliver(), Failed)
    dialect = stage.place.database.dialect
    [event] = stage.run_due()
    assert isinstance(event, DeadLettered)
    [work] = stage.place.flow(list_works(dialect, parked_only=True))
    assert read_operation(work.operation) == MessageName("billing", "shop", "m1")
    assert f"onefold keys show {work.id}" in stage.failed()["m1"].reason
    # Redriven before that, it is dead again at once, and its handler is not called.
    before = list(stage.runs)
    stage.place.flow(redrive(dialect, Filter(consumer="billing"), actor="ada"))
    assert [type(each) for each in stage.run_due()] == [DeadLettered]
    assert stage.runs == before
    result = Sealing().seal(encode_result(500, what="it"), step_context(bytes.fromhex(work.id), 1, "charge"))
    stage.place.flow(resume(dialect, work.id, actor="ada", result=result))
    stage.place.flow(redrive(dialect, Filter(consumer="billing"), actor="ada"))
    assert stage.run_due() == [HANDLED]
    assert len(stage.charges) == 1
    assert_done(stage)


def test_the_end_of_a_message_leaves_anothers_of_the_same_id_alone(stage: Stage) -> None:
    """The one of another source has failed, and waits, while the first is in its call."""
    other = message(source="other")

    def other_comes() -> Any:
        stage.during = once_only(KeyError("on purpose"))
        return stage.hand(other, inbox=stage.another())

    stage.during = other_comes
    assert stage.deliver() == HANDLED
    assert [each.source for each in stage.failed().values()] == ["other"]
    assert stage.run_due() == [HANDLED]
    assert effects(stage.place) == ["m1 created", "m1 created", "m1 paid 500", "m1 paid 500"]
    assert len(stage.ledger()) == 2
    assert stage.left() == (0, 0, 0)


@pytest.mark.parametrize("finishes", [True, False])
def test_a_message_whose_id_was_taken_meanwhile_is_handled_under_another_name(place: Place, finishes: bool) -> None:
    with stage_at(place, asynchronous=False, attempts=1) as stage:
        stage.finishes = finishes
        other = message(source="other")

        def other_comes() -> Any:
            stage.between = lambda: None
            assert stage.hand(other, inbox=stage.another()) == HANDLED

        stage.between = other_comes
        assert stage.deliver() == HANDLED
        assert (len(stage.charges), len({key for _, key in stage.charges})) == (2, 2)
        assert effects(place).count("m1 created") == 2
        assert len(stage.ledger()) == 2
        assert stage.left() == (0, 0, 0)


def test_a_message_that_is_being_handled_keeps_its_work_when_what_waits_of_it_is_discarded(place: Place) -> None:
    with stage_at(place, asynchronous=False) as stage:
        forget = functools.partial(forget_message, place.database.dialect)

        def discarded() -> None:
            stage.during = lambda: None
            assert stage.hand(redelivered=True, inbox=stage.another()) == PARKED
            gone = discard(place.database.dialect, "billing", ("m1",), actor="ada", force=True, forget=forget)
            assert place.flow(gone) == 1

        stage.during = discarded
        assert stage.deliver() == HANDLED
        assert stage.runs == ["m1"]
        assert_done(stage)


def test_a_message_that_is_discarded_while_it_runs_and_fails_stays_discarded_and_leaves_no_work(place: Place) -> None:
    with stage_at(place, asynchronous=False) as stage:
        stage.between = once_only(KeyError("on purpose"))
        stage.deliver()
        forget = functools.partial(forget_message, place.database.dialect)

        def discarded() -> None:
            gone = discard(place.database.dialect, "billing", ("m1",), actor="ada", force=True, forget=forget)
            assert place.flow(gone) == 1
            raise KeyError("on purpose, again")

        stage.between = discarded
        assert stage.run_due() == [DUPLICATE]
        assert (stage.runs, stage.ledger(), stage.left()) == (["m1", "m1"], [], (0, 0, 0))


def test_a_start_that_finds_its_work_taken_over_leaves_the_counts_of_the_process_that_has_it(place: Place) -> None:
    """As after SIGSTOP: both the message and its work are another process's by now."""
    with stage_at(place, asynchronous=False) as stage:
        stage.between = once_only(KeyError("on purpose"))
        stage.deliver()
        stage.hours_pass()
        [mine] = place.flow(take(stage.inbox, 1))

        def take_over() -> None:
            stage.hours_pass()
            assert len(place.flow(take(stage.another(), 1, suspects=True))) == 1
            place.change("UPDATE onefold_work SET fence = fence + 1")

        stage.between = take_over
        stage.perform(lambda tx: stage.inbox.run_failed(mine, tx))
        found = stage.failed()["m1"]
        assert (found.started, found.failed) == (mine.started + 1, mine.failed)


def test_a_store_that_fails_at_the_end_counts_as_no_failure(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = once_only(StoreUnavailable("the connection was lost during COMMIT"))
    commit = WorkAttempt._commit

    async def fail_first(self: WorkAttempt, *args: Any) -> None:
        try:
            lost()
        except StoreUnavailable:
            await Discard()
            raise
        await commit(self, *args)

    monkeypatch.setattr(WorkAttempt, "_commit", fail_first)
    with pytest.raises(StoreUnavailable):
        stage.deliver()
    assert stage.failed() == {}
    assert stage.deliver(redelivered=True) == HANDLED
    assert len(stage.charges) == 1
    assert_done(stage)


def test_a_released_work_begins_from_the_start(stage: Stage) -> None:
    stage.between = once_only(KeyError("on purpose"))
    stage.deliver()
    [work] = stage.place.flow(list_works(stage.place.database.dialect))
    stage.place.flow(release(stage.place.database.dialect, work.id, actor="ada"))
    assert stage.run_due() == [HANDLED]
    assert effects(stage.place) == ["m1 created", "m1 created", "m1 paid 500"]


def test_two_sources_with_one_id_are_two_works(stage: Stage) -> None:
    assert stage.deliver() == HANDLED
    assert stage.deliver(message(source="other shop")) == HANDLED
    assert len({key for _, key in stage.charges}) == 2
    assert stage.left() == (0, 0, 0)
    assert len(stage.ledger()) == 2


# --- order ---------------------------------------------------------------------------------------------------


@pytest.fixture
def strict(place: Place, asynchronous: bool) -> Iterator[Stage]:
    with stage_at(place, asynchronous=asynchronous, order="strict") as stage:
        yield stage


def test_versions_behind_one_that_failed_wait_until_it_has_gone_on(strict: Stage) -> None:
    strict.between = once_only(KeyError("on purpose"))
    assert isinstance(strict.deliver(message("v1", version=1)), Failed)
    assert isinstance(strict.deliver(message("v2", version=2)), Parked)
    assert strict.run_due() == [HANDLED, HANDLED]
    assert (strict.runs, strict.ledger(), strict.left()) == (["v1", "v1", "v2"], ["v1", "v2"], (0, 0, 0))
    assert strict.deliver(message("v3", version=3)) == HANDLED
    assert isinstance(strict.deliver(message("late", version=2)), DeadLettered)


def test_versions_that_come_during_a_call_wait(strict: Stage) -> None:
    events: list[Any] = []

    async def deliver_async() -> None:
        events.append(await strict.hand(message("v2", version=2), inbox=strict.another()))

    def deliver() -> Any:
        if events:
            return None
        if strict.asynchronous:
            return deliver_async()
        events.append(strict.hand(message("v2", version=2), inbox=strict.another()))
        return None

    strict.during = deliver
    assert strict.deliver(message("v1", version=1)) == HANDLED
    assert [type(event) for event in events] == [Parked]
    assert strict.run_due() == [HANDLED]
    assert strict.runs == ["v1", "v2"]


def test_the_second_version_of_a_new_stream_waits_for_the_call_of_the_first_however_long(place: Place) -> None:
    """Nothing of the stream is handled yet, and the wait for its beginning is over."""
    with stage_at(place, asynchronous=False, order="strict", baseline_wait_s=0.0) as strict:
        events: list[Any] = []

        def deliver() -> None:
            if strict.runs == ["v1"]:
                events.append(strict.hand(message("v2", version=2), inbox=strict.another()))
                events.extend(strict.run_due())

        strict.during = deliver
        assert strict.deliver(message("v1", version=1)) == HANDLED
        assert HANDLED not in events
        assert strict.run_due() == [HANDLED]
        assert (strict.runs, strict.ledger(), strict.left()) == (["v1", "v2"], ["v1", "v2"], (0, 0, 0))


def test_a_version_whose_stream_has_moved_on_meanwhile_ends_as_a_dead_letter(strict: Stage) -> None:
    """A new epoch has begun during its call: what `finish` would write is not written."""

    def move() -> None:
        strict.place.change("UPDATE onefold_progress SET epoch = 2, version = 7")

    strict.between = move
    assert strict.deliver(message("v1", version=1)) == PARKED
    assert (effects(strict.place), strict.ledger()) == (["v1 created"], [])
    assert [type(event) for event in strict.run_due()] == [DeadLettered]


def test_a_stream_that_is_seen_in_its_middle_begins_with_the_version_that_is_handled(place: Place) -> None:
    with stage_at(place, asynchronous=False, order="strict", baseline_wait_s=0.0) as stage:
        stage.between = once_only(KeyError("on purpose"))
        stage.deliver(message("v5", version=5))
        assert stage.run_due()[-1] == HANDLED or stage.run_due() == [HANDLED]
        assert stage.deliver(message("v6", version=6)) == HANDLED
        assert stage.ledger() == ["v5", "v6"]


def keep_lease(place: Place) -> None:
    place.change(
        "UPDATE onefold_work SET lease_ends_at = now() + interval '1 hour'"
        if place.is_postgres
        else "UPDATE onefold_work SET lease_ends_at_ms = 32503680000000"
    )
