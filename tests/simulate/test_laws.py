"""The simulation obeys the arithmetic that is known beforehand, and is a function of its seed."""

from __future__ import annotations

from math import sqrt

import pytest

from onefold._policy.budget import BudgetConfig
from onefold._policy.retry import RetryPolicy
from onefold._simulate.counters import Counters
from onefold._simulate.entrants import DEFAULT, FIXED, NO_RETRIES
from onefold._simulate.event_queue import EventQueue
from onefold._simulate.experiments import FAILURES, closed_form, recovery_s
from onefold._simulate.scenarios import ServerScenario, flip
from onefold._simulate.servers import ServerConfig

SECONDS = 4


def off_by(policy: RetryPolicy, retries: int, failure: float) -> float:
    """How far the share of calls that fail is from what arithmetic says, in standard deviations."""
    counters = flip(policy, failure, "laws", seconds=SECONDS)
    expected, _ = closed_form(failure, retries)
    deviation = sqrt(expected * (1 - expected) / sum(counters.calls))
    return abs(counters.success() - expected) / max(deviation, 1 / sum(counters.calls))


@pytest.mark.parametrize("failure", FAILURES)
def test_fixed_retries_succeed_as_often_as_arithmetic_says(failure: float) -> None:
    assert off_by(FIXED.policy, 3, failure) < 4
    assert off_by(NO_RETRIES.policy, 0, failure) < 4


def test_the_check_finds_a_policy_that_makes_one_retry_less() -> None:
    assert off_by(RetryPolicy(attempts_max=3, budget=None, breaker=None), 3, 0.5) > 10


@pytest.mark.parametrize("failure", FAILURES)
def test_fixed_retries_make_the_load_that_arithmetic_says(failure: float) -> None:
    counters = flip(FIXED.policy, failure, "laws", seconds=SECONDS)
    _, expected = closed_form(failure, 3)
    # A call makes at most four attempts, whose number has a standard deviation below 1.2; and the attempts of the
    # last second's calls that come after the end are not counted.
    assert counters.load() == pytest.approx(expected, abs=5 * 1.2 / sqrt(sum(counters.calls)) + 0.02)


def test_a_budget_bounds_the_load_whatever_fails() -> None:
    """At half failing, with much traffic: what is spent in vain is what was saved and what is earned."""
    counters = flip(RetryPolicy(breaker=None), 0.5, "bound", seconds=3 * SECONDS)
    config = BudgetConfig()
    calls, successes = sum(counters.calls), sum(counters.succeeded)
    retries = sum(counters.attempts) - calls
    worth_it = successes - 0.5 * calls  # so many first attempts succeeded, about
    assert 0 < retries <= 100 * config.cap_least + config.ratio * successes + 3 * worth_it
    assert counters.load(SECONDS) < 1.3 < flip(FIXED.policy, 0.5, "bound", seconds=SECONDS).load()


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    def told(seed: str) -> tuple[list[int], ...]:
        counters = ServerScenario(processes=5, after_s=20).run(DEFAULT.policy, seed)
        return counters.calls, counters.attempts, counters.answered, counters.served, counters.wasted

    assert told("one") == told("one")
    assert told("one") != told("two")


def test_calls_arrive_at_the_same_moments_whatever_the_policy() -> None:
    scenario = ServerScenario(after_s=10)
    assert scenario.run(NO_RETRIES.policy, "x").calls == scenario.run(DEFAULT.policy, "x").calls


@pytest.mark.parametrize("offered_rps", [60.0, 80.0])
def test_without_retries_a_queue_drains_in_its_length_over_what_is_left_over(offered_rps: float) -> None:
    """T = backlog / (capacity - offered), less the second that clients are ready to wait."""
    scenario = ServerScenario(offered_rps=offered_rps, after_s=80)
    counters = scenario.run(NO_RETRIES.policy, "drain")
    over = round(scenario.over_at)
    capacity = scenario.server.capacity_rps
    arrived = 0
    served = 0.0
    for second in range(20, counters.seconds):  # the same law with the arrivals as they came
        arrived += counters.calls[second]
        served += capacity if second >= over else 0
        if second >= over and arrived - served <= capacity * scenario.timeout_s:
            break
    found = recovery_s(counters, over)
    assert found == pytest.approx(second - over, abs=3)
    assert found == pytest.approx(offered_rps * 10 / (capacity - offered_rps), rel=0.35)


@pytest.mark.parametrize(("offered_rps", "recovers"), [(40.0, True), (60.0, False)])
def test_one_retry_per_call_is_survived_only_below_half_of_the_capacity(offered_rps: float, recovers: bool) -> None:
    """rho * (1 + r) < 1, with r = 1."""
    scenario = ServerScenario(offered_rps=offered_rps, after_s=80)
    counters = scenario.run(RetryPolicy(attempts_max=2, budget=None, breaker=None), "half")
    assert (recovery_s(counters, round(scenario.over_at)) is not None) == recovers


def test_work_is_neither_lost_nor_made_up() -> None:
    counters = ServerScenario(after_s=60, offered_rps=50).run(NO_RETRIES.policy, "books")
    assert sum(counters.calls) == sum(counters.attempts)
    assert sum(counters.served) == pytest.approx(sum(counters.attempts), abs=10)
    assert sum(counters.served) - sum(counters.wasted) == sum(counters.answered)


def test_refusals_that_cost_nothing_leave_the_server_its_capacity() -> None:
    scenario = ServerScenario(server=ServerConfig(queue_most=50), trouble_s=20, peak_rps=300, after_s=10)
    counters = scenario.run(FIXED.policy, "free")
    assert counters.goodput(25, 40) == pytest.approx(100, abs=2)


def test_relapses_are_not_taken_for_recovery() -> None:
    counters = Counters(40)
    counters.calls = [10] * 40
    counters.succeeded = [10] * 15 + [0] * 10 + [10] * 15
    assert recovery_s(counters, 10) == 15
    counters.succeeded = [10] * 38 + [0] * 2
    assert recovery_s(counters, 10) is None
    counters.succeeded = [10] * 40
    assert recovery_s(counters, 10) == 0


def test_what_is_due_first_happens_first_and_equals_in_the_order_they_came() -> None:
    events, seen = EventQueue(), list[tuple[float, str]]()

    def note(what: str) -> None:
        seen.append((events.now, what))

    for moment, what in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.5, "late")):
        events.at(moment, note, what)
    events.run(3.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert events.now == 3.0
