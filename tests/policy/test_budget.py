"""Retries are earned by successes, and no order of events earns more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.budget import Budget, BudgetConfig
from onefold._policy.outcome import Answered, Outcome, Unanswered
from onefold._policy.retry import RetryPolicy, cost
from onefold.errors import ConfigurationError
from tests.policy.properties import planted, properties


class Step(NamedTuple):
    after_s: float
    successes: int
    takes: int
    given_back: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([0.0, 0.5, 3.0, 9.5, 10.0, 25.0]),
        st.integers(0, 130),
        st.integers(0, 12),
        st.integers(0, 3),
    ),
    max_size=12,
)


class Ledger:
    """The rule as it is told: every deposit is made, and capped, at its own time. Counted in tenths of a token."""

    def __init__(self) -> None:
        self.tenths = 60.0
        self.successes: deque[float] = deque()
        self.last: float | None = None

    def cap(self, now: float) -> int:
        while self.successes and now - self.successes[0] >= 10:
            self.successes.popleft()
        return max(60, min(100, len(self.successes)))

    def succeed(self, now: float) -> None:
        silence_s = 0.0 if self.last is None else now - self.last
        self.last = now
        self.successes.append(now)
        self.tenths = min(self.cap(now), self.tenths + max(1.0, min(10.0, 5 * silence_s)))

    def take(self, now: float) -> bool:
        self.tenths = min(self.cap(now), self.tenths)
        if self.tenths < 10:
            return False
        self.tenths -= 10
        return True

    def give_back(self, tokens: int, now: float) -> None:
        self.tenths = min(self.cap(now), self.tenths + 10 * tokens)


def taken(budget: Budget, now: float, times: int, tokens: int = 1) -> int:
    return sum(budget.take(now, tokens) for _ in range(times))


def spent() -> Budget:
    """A budget whose first retries are gone."""
    budget = Budget()
    assert taken(budget, 0.0, 50) == 6
    return budget


def test_a_new_client_has_all_retries_of_its_first_call_and_a_little() -> None:
    assert taken(Budget(), 0.0, 50) == 6 > RetryPolicy().attempts_max - 1


@pytest.mark.parametrize(
    ("outcome", "retries"),
    [
        (Answered(status=503), 6),
        (Unanswered(maybe_sent=False), 6),
        (Unanswered(maybe_sent=False, timed_out=True), 6),
        (Unanswered(maybe_sent=True), 3),
        (Unanswered(maybe_sent=True, timed_out=True), 1),
    ],
    ids=["503", "refused", "no connection in time", "broken", "no answer in time"],
)
def test_what_may_still_wait_in_the_server_costs_more_to_repeat(outcome: Outcome, retries: int) -> None:
    assert taken(Budget(), 0.0, 50, tokens=cost(outcome)) == retries


@pytest.mark.parametrize(
    ("successes", "retries"),
    [
        pytest.param(0, 0, id="no success earns nothing"),
        pytest.param(9, 0, id="nine are not enough"),
        pytest.param(10, 1, id="ten earn exactly one"),
        pytest.param(57, 5, id="fifty-seven earn five"),
        pytest.param(100, 10, id="a hundred earn ten"),
        pytest.param(5000, 10, id="no more than ten are kept"),
    ],
)
def test_ten_successes_earn_a_retry(successes: int, retries: int) -> None:
    budget = spent()
    for _ in range(successes):
        budget.succeed(0.0)
    assert taken(budget, 0.0, 50) == retries


@pytest.mark.parametrize(
    ("silence_s", "tokens"),
    [(0.1, 0.1), (0.2, 0.1), (0.5, 0.25), (1.0, 0.5), (2.0, 1.0), (10.0, 1.0), (3600.0, 1.0)],
    ids=lambda value: f"{value:g}",
)
def test_a_success_after_a_silence_earns_more_and_at_most_one(silence_s: float, tokens: float) -> None:
    budget = spent()
    budget.succeed(0.0)
    before = budget.tokens(0.0)
    budget.succeed(silence_s)
    assert budget.tokens(silence_s) - before == pytest.approx(tokens)


def test_a_quiet_process_has_its_retries_again_after_a_few_successes() -> None:
    budget = spent()
    for minute in range(7):
        budget.succeed(60.0 * minute)
    assert taken(budget, 360.0, 50) == 6


def test_what_a_call_took_that_succeeds_is_given_back_up_to_the_cap() -> None:
    budget = Budget()
    assert taken(budget, 0.0, 3) == 3
    budget.give_back(3, 0.0)
    assert budget.tokens(0.0) == 6
    budget.give_back(3, 0.0)
    assert budget.tokens(0.0) == 6


def test_deposits_of_a_tenth_add_up_to_a_whole_also_when_looked_at_in_between() -> None:
    budget = spent()
    for _ in range(10):
        budget.succeed(0.0)
        budget.tokens(0.0)
    assert budget.take(0.0)


def test_what_was_saved_is_lost_when_the_traffic_ends() -> None:
    budget = Budget()
    for _ in range(100):
        budget.succeed(0.0)
    assert budget.tokens(9.9) == 10
    assert budget.tokens(10.0) == 6


def test_at_total_failure_nothing_is_earned_however_long_it_lasts() -> None:
    budget = Budget()
    assert sum(budget.take(float(now)) for now in range(10_000)) == 6


def test_retries_and_hedges_that_share_a_budget_share_its_tokens() -> None:
    shared = spent()
    for _ in range(20):
        shared.succeed(0.0)
    retries, hedges = taken(shared, 0.0, 1), taken(shared, 0.0, 9)
    assert (retries, hedges) == (1, 1)


def check_against_the_ledger(make: Callable[[], Budget], how: settings = properties) -> None:
    @how
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        budget, ledger, now = make(), Ledger(), 0.0
        for step in steps:
            now += step.after_s
            for _ in range(step.successes):
                budget.succeed(now)
                ledger.succeed(now)
            assert [budget.take(now) for _ in range(step.takes)] == [ledger.take(now) for _ in range(step.takes)]
            if step.given_back:
                budget.give_back(step.given_back, now)
                ledger.give_back(step.given_back, now)
            assert budget.tokens(now) == pytest.approx(min(ledger.tenths, ledger.cap(now)) / 10)

    check()


def check_never_overdrawn(make: Callable[[], Budget], how: settings = properties) -> None:
    @how
    @given(st.lists(st.tuples(st.booleans(), st.floats(0, 30)), max_size=200))
    def check(events: list[tuple[bool, float]]) -> None:
        budget, now, successes, windows, retries = make(), 0.0, 0, set[int](), 0
        for succeeds, after_s in events:
            now += after_s
            if succeeds:
                budget.succeed(now)
                successes += 1
                windows.add(int(now // 2))
            else:
                retries += budget.take(now)
            assert 10 * retries <= 60 + successes + 20 * len(windows)

    check()


def test_counting_late_gives_what_counting_at_once_would_give() -> None:
    check_against_the_ledger(Budget)


def test_no_order_of_successes_and_retries_overdraws_the_budget() -> None:
    check_never_overdrawn(Budget)


class FilledByTime(Budget):
    """A planted bug that other libraries ship: tokens come with time, also in an outage."""

    def take(self, now: float, tokens: int = 1) -> bool:
        for _ in range(int(now)):
            self.succeed(now)
        return super().take(now, tokens)


class EarnedTwice(Budget):
    """A planted bug: what is given back is earned once more."""

    def give_back(self, tokens: int, now: float) -> None:
        super().give_back(2 * tokens, now)


class NeverCapped(Budget):
    """A planted bug: what was earned in a busy hour is kept for the outage after it."""

    def __init__(self) -> None:
        super().__init__(BudgetConfig(window_s=3600))


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (check_never_overdrawn, FilledByTime),
        (check_against_the_ledger, NeverCapped),
        (check_against_the_ledger, EarnedTwice),
    ],
    ids=["filled by time", "never capped", "given back twice"],
)
def test_the_checks_find_a_budget_that_gives_too_much(
    check: Callable[[Callable[[], Budget], settings], None],
    broken: type[NeverCapped] | type[FilledByTime] | type[EarnedTwice],
) -> None:
    with pytest.raises(AssertionError):
        check(broken, planted)


def test_threads_together_take_no_more_than_was_earned() -> None:
    budget = Budget()

    def work(_: int) -> int:
        retries = 0
        for _ in range(2000):
            budget.succeed(0.0)
            retries += budget.take(0.0)
        return retries

    with ThreadPoolExecutor(4) as pool:
        retries = sum(pool.map(work, range(4)))
    assert retries <= 6 + 4 * 2000 // 10
    assert retries + budget.tokens(0.0) == pytest.approx(6 + 4 * 2000 / 10, abs=11)


@pytest.mark.parametrize(
    "settings",
    [
        {"ratio": 0.0},
        {"ratio": 2.0},
        {"cap_least": 20.0},
        {"cap_most": -1.0},
        {"window_s": 0.0},
        {"alone": 2.0},
        {"alone_s": 0.0},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_terms_out_of_range_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        BudgetConfig(**settings)
