"""One call from its first attempt to its last: who is asked, who is told, and that nobody is told twice."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold._policy.attempts import Attempts, HostHealth
from onefold._policy.backoff import Backoff
from onefold._policy.breaker import BreakerConfig
from onefold._policy.budget import Budget, BudgetConfig
from onefold._policy.outcome import Answered, Outcome, Unanswered
from onefold._policy.retry import Decision, Reason, RetryAfter, RetryPolicy, Stop
from onefold._steps.model import Busy
from tests.policy.properties import properties

GONE = Unanswered(maybe_sent=True)
REFUSED = Unanswered(maybe_sent=False)
BUSY = Answered(status=503)
WRONG = Answered(status=404)
THROTTLED = Answered(status=429)
IN_FLIGHT = Answered(status=409, problem_type="urn:onefold:key-in-flight")


def host(policy: RetryPolicy | None = None) -> HostHealth:
    return HostHealth(policy or RetryPolicy(), lambda: 0.5, "ledger")


def tripped(config: BreakerConfig | None = None) -> HostHealth:
    found = host(RetryPolicy(budget=None, breaker=config or BreakerConfig()))
    for _ in range(5):
        attempts = Attempts(found, inf)
        attempts.begin(0.0)
        attempts.end(GONE, 0.0)
    return found


def test_a_call_that_succeeds_feeds_the_budget() -> None:
    well = host()
    assert isinstance(well.budget, Budget)
    for _ in range(6):
        assert well.budget.take(0.0)
    for _ in range(20):
        attempts = Attempts(well, inf)
        assert attempts.begin(0.0) is None
        attempts.succeed(0.0)
    assert well.budget.tokens(0.0) == 2.0


@pytest.mark.parametrize(
    ("outcome", "left"), [(BUSY, 4.0), (GONE, 2.0), (REFUSED, 4.0)], ids=["503", "lost", "refused"]
)
def test_a_call_that_succeeds_gives_back_what_its_retries_took_and_one_that_fails_does_not(
    outcome: Outcome, left: float
) -> None:
    for ending in ("succeeds", "fails"):
        well = host(RetryPolicy(breaker=None, attempts_max=3))
        assert isinstance(well.budget, Budget)
        attempts = Attempts(well, inf)
        for _ in range(2):
            assert attempts.begin(0.0) is None
            assert isinstance(attempts.end(outcome, 0.0), RetryAfter)
        assert well.budget.tokens(0.0) == left
        assert attempts.begin(0.0) is None
        if ending == "succeeds":
            attempts.succeed(0.0)
            attempts.succeed(0.0)
            assert well.budget.tokens(0.0) == 6.0
        else:
            assert attempts.end(outcome, 0.0) == Stop(Reason.ATTEMPTS)
            assert well.budget.tokens(0.0) == left


@pytest.mark.parametrize("status", [200, 204, 301, 304, 404, 422])
def test_an_answer_that_is_a_success_is_final_and_counts_as_one(status: int) -> None:
    well = host()
    attempts = Attempts(well, inf)
    attempts.begin(0.0)
    assert well.budget is not None
    for _ in range(6):
        assert well.budget.take(0.0)
    assert attempts.end(Answered(status=status), 0.0) == Stop(Reason.FINAL)
    for _ in range(9):
        assert not well.budget.take(0.0)
        well.budget.succeed(0.0)
    assert well.budget.take(0.0)


def test_attempts_are_counted_as_they_begin() -> None:
    attempts = Attempts(host(RetryPolicy(budget=None, breaker=None)), inf, method="GET", has_key=False)
    waits: list[float] = []
    while attempts.begin(0.0) is None:
        decision = attempts.end(BUSY, 0.0)
        if isinstance(decision, Stop):
            break
        waits.append(decision.wait_s)
    assert decision == Stop(Reason.ATTEMPTS)
    assert (attempts.made, waits) == (4, [0.125, 0.25, 0.5])


def test_a_look_at_a_request_that_is_being_worked_on_is_no_attempt_at_it_until_the_deadline() -> None:
    """The server says when to look again. Without that it counts, as it does where the network fails."""
    told = replace(IN_FLIGHT, retry_after_s=4.0)
    for outcome, made in ((told, 7), (IN_FLIGHT, 4)):
        attempts = Attempts(host(RetryPolicy(budget=None, breaker=None, deadline_s=30.0)), 30.0)
        now = 0.0
        while attempts.begin(now) is None:
            assert attempts.is_last is (outcome is IN_FLIGHT and attempts.made == 4)
            decision = attempts.end(outcome, now)
            if isinstance(decision, Stop):
                break
            now += decision.wait_s
        assert attempts.made == made
        assert isinstance(decision, Stop)
        assert decision.reason is (Reason.DEADLINE if outcome is told else Reason.ATTEMPTS)


def test_looks_are_bounded_by_the_budget_and_leave_the_attempts_for_what_fails() -> None:
    attempts = Attempts(host(RetryPolicy(budget=None, breaker=None)), inf)
    for outcome in (replace(IN_FLIGHT, retry_after_s=1.0), GONE, replace(IN_FLIGHT, retry_after_s=1.0), GONE, GONE):
        assert attempts.begin(0.0) is None
        assert isinstance(attempts.end(outcome, 0.0), RetryAfter)
    assert attempts.begin(0.0) is None
    assert attempts.end(GONE, 0.0) == Stop(Reason.ATTEMPTS)
    poor = Attempts(host(RetryPolicy(breaker=None)), inf)
    while poor.begin(0.0) is None and isinstance(poor.end(replace(IN_FLIGHT, retry_after_s=1.0), 0.0), RetryAfter):
        pass
    assert poor.made < 20


@pytest.mark.parametrize("attempts_max", [1, 2, 7])
def test_a_call_may_have_its_own_number_of_attempts(attempts_max: int) -> None:
    attempts = Attempts(host(RetryPolicy(budget=None, breaker=None)), inf, attempts_max=attempts_max)
    while attempts.begin(0.0) is None and isinstance(attempts.end(BUSY, 0.0), RetryAfter):
        pass
    assert attempts.made == attempts_max


def test_nothing_begins_at_the_deadline() -> None:
    attempts = Attempts(host(), 10.0)
    assert attempts.begin(9.9) is None
    assert attempts.begin(10.0) == Stop(Reason.DEADLINE)
    assert attempts.made == 1


def test_nothing_begins_while_the_breaker_is_open() -> None:
    attempts = Attempts(tripped(), inf)
    stop = attempts.begin(0.1)
    assert isinstance(stop, Stop)
    assert stop.reason is Reason.BREAKER
    assert stop.retry_at is not None
    assert attempts.made == 0
    assert attempts.begin(stop.retry_at) is None


def test_without_a_breaker_everything_begins() -> None:
    down = host(RetryPolicy(breaker=None))
    for _ in range(100):
        attempts = Attempts(down, inf)
        assert attempts.begin(0.0) is None
        attempts.end(GONE, 0.0)


@pytest.mark.parametrize("outcome", [BUSY, GONE], ids=["503", "lost"])
def test_a_call_that_is_broken_off_gives_back_what_it_took_for_a_retry_that_it_did_not_make(outcome: Outcome) -> None:
    down = host(RetryPolicy(breaker=None))
    assert isinstance(down.budget, Budget)
    attempts = Attempts(down, inf)
    for begun in (1, 2):
        assert attempts.begin(0.0) is None
        before = down.budget.tokens(0.0)
        assert isinstance(attempts.end(outcome, 0.0), RetryAfter)
        assert down.budget.tokens(0.0) < before, begun
    attempts.release_without_verdict()
    attempts.release_without_verdict()
    assert down.budget.tokens(0.0) == before  # the first retry was made
    attempts = Attempts(down, inf)
    attempts.begin(0.0)
    attempts.end(BUSY, 0.0)
    attempts.forgo_retry()
    attempts.release_without_verdict()
    assert down.budget.tokens(0.0) == before - 1.0


@pytest.mark.parametrize("ending", ["release", "throttled"])
def test_what_says_nothing_about_the_host_frees_the_place_of_its_probe(ending: str) -> None:
    down = tripped(BreakerConfig(probes=1))
    first = Attempts(down, inf)
    assert first.begin(100.0) is None
    assert isinstance(Attempts(down, inf).begin(100.0), Stop)
    if ending == "release":
        first.release_without_verdict()
    else:
        first.end(THROTTLED, 100.0)
    assert Attempts(down, inf).begin(100.0) is None


def test_a_host_that_mostly_answers_404_does_not_fail() -> None:
    well = host(RetryPolicy(budget=None, attempts_max=1))
    refused = 0
    for number in range(1000):
        attempts = Attempts(well, inf)
        if attempts.begin(number * 0.01) is None:
            attempts.end(WRONG if number % 20 else BUSY, number * 0.01)
        else:
            refused += 1
    assert refused == 0


@pytest.mark.parametrize("answer", [WRONG, IN_FLIGHT], ids=["404", "in flight"])
def test_after_an_outage_an_answer_below_500_closes_the_breaker(answer: Answered) -> None:
    down = tripped(BreakerConfig(probes=2))
    assert down.breaker is not None
    for state in ("half-open", "closed"):
        probe = Attempts(down, inf)
        assert probe.begin(100.0) is None
        probe.end(answer, 100.0)
        assert down.breaker.state(100.0) == state


def test_a_key_in_flight_is_asked_again_and_earns_no_retries() -> None:
    well = host()
    assert isinstance(well.budget, Budget)
    before = well.budget.tokens(0.0)
    attempts = Attempts(well, inf)
    attempts.begin(0.0)
    assert isinstance(attempts.end(IN_FLIGHT, 0.0), RetryAfter)
    assert well.budget.tokens(0.0) <= before - 1


def test_an_attempt_is_reported_once_however_often_it_ends() -> None:
    down = tripped(BreakerConfig(probes=2))
    probe = Attempts(down, inf)
    probe.begin(100.0)
    probe.succeed(100.0)
    probe.succeed(100.0)
    probe.release_without_verdict()
    assert down.breaker is not None
    assert down.breaker.state(100.0) == "half-open"


def test_a_host_tells_each_move_of_its_breaker_once() -> None:
    down = tripped(BreakerConfig(probes=1))
    assert [
        down.take_state_change(0.1),
        down.take_state_change(0.1),
        down.take_state_change(100.0),
        down.take_state_change(100.0),
    ] == ["open", None, "half-open", None]
    probe = Attempts(down, inf)
    probe.begin(100.0)
    probe.succeed(100.0)
    assert [down.take_state_change(100.0), down.take_state_change(100.0)] == ["closed", None]


def test_a_host_without_a_breaker_never_moves() -> None:
    assert host(RetryPolicy(breaker=None)).take_state_change(0.0) is None


OUTCOMES = st.sampled_from([GONE, BUSY, WRONG, Answered(status=429, retry_after_s=3.0), Answered(status=200)])


@properties
@given(
    calls=st.lists(st.tuples(st.floats(0, 20), st.lists(OUTCOMES, min_size=1, max_size=6)), max_size=20),
    deadline_s=st.floats(0.01, 60),
)
def test_whatever_happens_no_wait_passes_the_deadline_and_no_retry_the_budget(
    calls: list[tuple[float, list[Outcome]]], deadline_s: float
) -> None:
    shared, now, retries, successes = host(), 0.0, 0, 0
    for pause_s, outcomes in calls:
        now += pause_s
        attempts = Attempts(shared, now + deadline_s)
        for outcome in outcomes:
            if attempts.begin(now) is not None:
                break
            decision = attempts.end(outcome, now)
            successes += outcome in (Answered(status=200), WRONG)
            if isinstance(decision, Stop):
                break
            retries += 1
            now += decision.wait_s
            assert now < attempts.deadline_at
        assert retries <= 6 + 4 * successes


@pytest.mark.parametrize("way", ["succeeds", "is refused", "is answered", "is broken off", "ends and is broken off"])
def test_an_attempt_holds_a_place_in_flight_until_it_ends_and_no_longer(way: str) -> None:
    one = host(RetryPolicy(in_flight=1))
    first, second = Attempts(one, inf), Attempts(one, inf)
    assert first.begin(0.0) is None
    assert second.begin(0.1) == Stop(Reason.IN_FLIGHT)
    match way:
        case "succeeds":
            first.succeed(0.2)
        case "is refused":
            first.end(BUSY, 0.2)
        case "is answered":
            first.end(WRONG, 0.2)
        case "is broken off":
            first.release_without_verdict()
        case _:
            first.end(GONE, 0.2)
            first.release_without_verdict()
    assert second.begin(0.3) is None
    assert Attempts(one, inf).begin(0.4) == Stop(Reason.IN_FLIGHT), "exactly one place was given back"


def test_a_breaker_that_is_open_takes_no_place_in_flight() -> None:
    sick = host(RetryPolicy(in_flight=1, breaker=BreakerConfig(calls_least=1)))
    attempts = Attempts(sick, inf)
    assert attempts.begin(0.0) is None
    attempts.end(GONE, 0.0)
    for _ in range(3):
        stop = Attempts(sick, inf).begin(0.1)
        assert stop is not None
        assert stop.reason is Reason.BREAKER


@pytest.mark.parametrize("outcome", [GONE, REFUSED, BUSY], ids=["lost", "refused", "503"])
@pytest.mark.parametrize("attempts_max", [4, 5, 20])
def test_a_call_does_not_open_the_breaker_by_its_own_attempts_alone(attempts_max: int, outcome: Outcome) -> None:
    """A restart of the host must not end the call that was made patient enough to wait for it."""
    down = host(RetryPolicy(budget=None, attempts_max=attempts_max))
    attempts = Attempts(down, inf)
    for _ in range(attempts_max):
        assert attempts.begin(0.0) is None
        decision = attempts.end(outcome, 0.0)
    assert decision == Stop(Reason.ATTEMPTS)
    other = Attempts(down, inf)
    assert other.begin(0.0) is None  # closed still
    other.end(outcome, 0.0)
    assert isinstance(Attempts(down, inf).begin(0.0), Stop)  # two calls, and one of them failed five times or more


# --- through a restart ------------------------------------------------------------------------------------

#: What docs/clients.md recommends.
PATIENT = RetryPolicy(
    attempts_max=10, deadline_s=120, backoff=Backoff(transient_base_s=1), budget=BudgetConfig(cap_least=10)
)


def call_through_a_restart(policy: RetryPolicy, seed: int, *, down_s: float, lease_s: float) -> Decision | None:
    """A request in steps, whose process dies in the middle of it. None: it got its answer."""
    attempts = Attempts(HostHealth(policy, Random(seed).random, "rides"), policy.deadline_s)
    now = 0.0
    outcome: Outcome = GONE
    while True:
        assert attempts.begin(now) is None
        decision = attempts.end(outcome, now)
        if isinstance(decision, Stop):
            return decision
        now += decision.wait_s
        left_s = lease_s - now
        if now >= down_s and left_s <= 0:
            return None
        told_s = ceil(Busy.silent(left_s=left_s, lease_s=lease_s).ask_again_s)
        outcome = REFUSED if now < down_s else replace(IN_FLIGHT, retry_after_s=told_s)


@pytest.mark.parametrize("down_s", [0.0, 5.0, 20.0])
def test_the_policy_of_the_docs_gets_through_a_restart_and_the_lease_that_it_leaves(down_s: float) -> None:
    ended = [call_through_a_restart(PATIENT, seed, down_s=down_s, lease_s=60.0) for seed in range(200)]
    assert sum(end is None for end in ended) >= 195


def test_the_default_policy_does_not_wait_for_a_lease_and_says_so() -> None:
    ended = call_through_a_restart(RetryPolicy(), 1, down_s=0.5, lease_s=60.0)
    assert isinstance(ended, Stop)
    assert ended.retry_at is not None
