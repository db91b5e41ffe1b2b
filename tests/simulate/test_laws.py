"""The simulation obeys the arithmetic that is known beforehand, and is a function of its seed."""

from __future__ import annotations

from math import sqrt

import pytest

from onefold.policy.budget import BudgetTerms
from onefold.policy.retry import RetryPolicy
from onefold.simulate.agenda import Agenda
from onefold.simulate.entrants import DEFAULT, FIXED, NO_RETRIES
from onefold.simulate.experiments import FAILURES, closed_form, recovery_s
from onefold.simulate.ledger import Ledger
from onefold.simulate.scenarios import Scenario, flip
from onefold.simulate.servers import ServerTerms

SECONDS = 4


def off_by(policy: RetryPolicy, retries: int, failure: float) -> float:
    """How far the share of calls that fail is from what arithmetic says, in standard deviations."""
    ledger = flip(policy, failure, "laws", seconds=SECONDS)
    expected, _ = closed_form(failure, retries)
    deviation = sqrt(expected * (1 - expected) / sum(ledger.calls))
    return abs(ledger.success() - expected) / max(deviation, 1 / sum(ledger.calls))


@pytest.mark.parametrize("failure", FAILURES)
def test_fixed_retries_succeed_as_often_as_arithmetic_says(failure: float) -> None:
    assert off_by(FIXED.policy, 3, failure) < 4
    assert off_by(NO_RETRIES.policy, 0, failure) < 4


def test_the_check_finds_a_policy_that_makes_one_retry_less() -> None:
    assert off_by(RetryPolicy(attempts_max=3, budget=None, breaker=None), 3, 0.5) > 10


@pytest.mark.parametrize("failure", FAILURES)
def test_fixed_retries_make_the_load_that_arithmetic_says(failure: float) -> None:
    ledger = flip(FIXED.policy, failure, "laws", seconds=SECONDS)
    _, expected = closed_form(failure, 3)
    # A call makes at most four attempts, whose number has a standard deviation below 1.2; and the attempts of the
    # last second's calls that come after the end are not counted.
    assert ledger.load() == pytest.approx(expected, abs=5 * 1.2 / sqrt(sum(ledger.calls)) + 0.02)


def test_a_budget_bounds_the_load_whatever_fails() -> None:
    """At half failing, with much traffic: what is spent in vain is what was saved and what is earned."""
    ledger = flip(RetryPolicy(breaker=None), 0.5, "bound", seconds=3 * SECONDS)
    terms = BudgetTerms()
    calls, successes = sum(ledger.calls), sum(ledger.succeeded)
    retries = sum(ledger.attempts) - calls
    worth_it = successes - 0.5 * calls  # so many first attempts succeeded, about
    assert 0 < retries <= 100 * terms.cap_least + terms.ratio * successes + 3 * worth_it
    assert ledger.load(SECONDS) < 1.3 < flip(FIXED.policy, 0.5, "bound", seconds=SECONDS).load()


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    def told(seed: str) -> tuple[list[int], ...]:
        ledger = Scenario(processes=5, after_s=20).run(DEFAULT.policy, seed)
        return ledger.calls, ledger.attempts, ledger.answered, ledger.served, ledger.wasted

    assert told("one") == told("one")
    assert told("one") != told("two")


def test_calls_arrive_at_the_same_moments_whatever_the_policy() -> None:
    scenario = Scenario(after_s=10)
    assert scenario.run(NO_RETRIES.policy, "x").calls == scenario.run(DEFAULT.policy, "x").calls


@pytest.mark.parametrize("offered_rps", [60.0, 80.0])
def test_without_retries_a_queue_drains_in_its_length_over_what_is_left_over(offered_rps: float) -> None:
    """T = backlog / (capacity - offered), less the second that clients are ready to wait."""
    scenario = Scenario(offered_rps=offered_rps, after_s=80)
    ledger = scenario.run(NO_RETRIES.policy, "drain")
    over = round(scenario.over_at)
    capacity = scenario.server.capacity_rps
    arrived = 0
    served = 0.0
    for second in range(20, ledger.seconds):  # the same law with the arrivals as they came
        arrived += ledger.calls[second]
        served += capacity if second >= over else 0
        if second >= over and arrived - served <= capacity * scenario.timeout_s:
            break
    found = recovery_s(ledger, over)
    assert found == pytest.approx(second - over, abs=3)
    assert found == pytest.approx(offered_rps * 10 / (capacity - offered_rps), rel=0.35)


@pytest.mark.parametrize(("offered_rps", "recovers"), [(40.0, True), (60.0, False)])
def test_one_retry_per_call_is_survived_only_below_half_of_the_capacity(offered_rps: float, recovers: bool) -> None:
    """rho * (1 + r) < 1, with r = 1."""
    scenario = Scenario(offered_rps=offered_rps, after_s=80)
    ledger = scenario.run(RetryPolicy(attempts_max=2, budget=None, breaker=None), "half")
    assert (recovery_s(ledger, round(scenario.over_at)) is not None) == recovers


def test_work_is_neither_lost_nor_made_up() -> None:
    ledger = Scenario(after_s=60, offered_rps=50).run(NO_RETRIES.policy, "books")
    assert sum(ledger.calls) == sum(ledger.attempts)
    assert sum(ledger.served) == pytest.approx(sum(ledger.attempts), abs=10)
    assert sum(ledger.served) - sum(ledger.wasted) == sum(ledger.answered)


def test_refusals_that_cost_nothing_leave_the_server_its_capacity() -> None:
    scenario = Scenario(server=ServerTerms(queue_most=50), trouble_s=20, peak_rps=300, after_s=10)
    ledger = scenario.run(FIXED.policy, "free")
    assert ledger.goodput(25, 40) == pytest.approx(100, abs=2)


def test_relapses_are_not_taken_for_recovery() -> None:
    ledger = Ledger(40)
    ledger.calls = [10] * 40
    ledger.succeeded = [10] * 15 + [0] * 10 + [10] * 15
    assert recovery_s(ledger, 10) == 15
    ledger.succeeded = [10] * 38 + [0] * 2
    assert recovery_s(ledger, 10) is None
    ledger.succeeded = [10] * 40
    assert recovery_s(ledger, 10) == 0


def test_what_is_due_first_happens_first_and_equals_in_the_order_they_came() -> None:
    agenda, seen = Agenda(), list[tuple[float, str]]()

    def note(what: str) -> None:
        seen.append((agenda.now, what))

    for moment, what in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.5, "late")):
        agenda.at(moment, note, what)
    agenda.run(3.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert agenda.now == 3.0
