"""One decision over everything: each situation, what is decided, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.backoff import Draw
from onefold._policy.breaker import Breaker, Permit
from onefold._policy.budget import Allowance, Budget, BudgetConfig
from onefold._policy.outcome import Answered, Outcome, Unanswered
from onefold._policy.retry import (
    IDEMPOTENT_METHODS,
    RETRYABLE_STATUSES,
    Decision,
    Reason,
    RetryAfter,
    RetryPolicy,
    Situation,
    Stop,
    cost,
)
from onefold.errors import ConfigurationError
from tests.policy.properties import planted, properties

NOW = 1000.0
IN_FLIGHT = Answered(status=409, problem_type="urn:onefold:key-in-flight", retry_after_s=1.0)
UNAVAILABLE = Answered(status=503)
POST = Situation(method="POST", has_key=True, attempt=1, outcome=UNAVAILABLE, deadline_at=NOW + 30.0)


def half() -> float:
    return 0.5


def spent() -> Budget:
    budget = Budget()
    while budget.take(NOW):
        pass
    return budget


def opened() -> Breaker:
    """A breaker that is open for five seconds."""
    breaker = Breaker(lambda: 1.0)
    for _ in range(5):
        permit = breaker.admit(NOW)
        assert isinstance(permit, Permit)
        breaker.fail(permit, NOW)
    assert breaker.ready_at(NOW) == NOW + 5.0
    return breaker


def decide(
    situation: Situation,
    *,
    policy: RetryPolicy | None = None,
    budget: Allowance | None = None,
    breaker: Breaker | None = None,
) -> Decision:
    return (policy or RetryPolicy()).decide(situation, now=NOW, draw=half, budget=budget or Budget(), breaker=breaker)


@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        pytest.param(Answered(status=200), Stop(Reason.FINAL), id="200 is an answer"),
        pytest.param(Answered(status=302), Stop(Reason.FINAL), id="302 is an answer"),
        pytest.param(Answered(status=400), Stop(Reason.FINAL), id="400 stays wrong"),
        pytest.param(Answered(status=404), Stop(Reason.FINAL), id="404 stays away"),
        pytest.param(Answered(status=409), Stop(Reason.FINAL), id="a conflict is settled by the caller"),
        pytest.param(Answered(status=410), Stop(Reason.FINAL), id="410 is gone"),
        pytest.param(Answered(status=422, retry_after_s=1.0), Stop(Reason.FINAL), id="422 never, whatever it asks"),
        pytest.param(Answered(status=501), Stop(Reason.FINAL), id="501 will not be implemented meanwhile"),
        pytest.param(Answered(status=408), RetryAfter(0.125, False), id="408 soon"),
        pytest.param(Answered(status=425), RetryAfter(0.125, False), id="425 soon"),
        pytest.param(Answered(status=429), RetryAfter(0.5, True), id="429 with patience"),
        pytest.param(Answered(status=500), RetryAfter(0.125, False), id="500 soon"),
        pytest.param(Answered(status=502), RetryAfter(0.125, False), id="502 soon"),
        pytest.param(Answered(status=503), RetryAfter(0.125, False), id="503 soon"),
        pytest.param(Answered(status=503, retry_after_s=2.0), RetryAfter(2.5, True), id="503 when it asks"),
        pytest.param(Answered(status=504), RetryAfter(0.125, False), id="504 soon"),
        pytest.param(Unanswered(maybe_sent=True), RetryAfter(0.125, False), id="a lost answer soon"),
        pytest.param(Unanswered(maybe_sent=False), RetryAfter(0.125, False), id="a refused connection soon"),
        pytest.param(
            Unanswered(maybe_sent=False, retry_after_s=2.0), RetryAfter(2.125, False), id="as the caller says"
        ),
        pytest.param(IN_FLIGHT, RetryAfter(1.5, True), id="in flight is waited for"),
        pytest.param(replace(IN_FLIGHT, retry_after_s=None), RetryAfter(0.5, True), id="in flight without a time"),
    ],
)
def test_what_a_post_with_a_key_gets(outcome: Outcome, decision: Decision) -> None:
    assert decide(replace(POST, outcome=outcome)) == decision


@pytest.mark.parametrize("outcome", [UNAVAILABLE, IN_FLIGHT, Unanswered(maybe_sent=True)], ids=str)
@pytest.mark.parametrize(
    ("method", "has_key", "repeats"),
    [
        *((method, False, True) for method in sorted(IDEMPOTENT_METHODS)),
        ("get", False, True),
        ("POST", False, False),
        ("PATCH", False, False),
        ("post", False, False),
        ("CHARGE", False, False),
        ("POST", True, True),
        ("PATCH", True, True),
        ("CHARGE", True, True),
    ],
)
def test_what_is_not_idempotent_is_repeated_only_with_a_key(
    method: str, has_key: bool, repeats: bool, outcome: Outcome
) -> None:
    decision = decide(replace(POST, method=method, has_key=has_key, outcome=outcome))
    assert isinstance(decision, RetryAfter if repeats else Stop)
    if isinstance(decision, Stop):
        assert decision.reason is Reason.NO_KEY


@pytest.mark.parametrize("method", ["POST", "PATCH", "CHARGE"])
def test_a_request_that_never_left_is_repeated_without_a_key(method: str) -> None:
    never_left = replace(POST, method=method, has_key=False, outcome=Unanswered(maybe_sent=False))
    assert isinstance(decide(never_left), RetryAfter)


@pytest.mark.parametrize(("attempt", "stops"), [(1, False), (3, False), (4, True), (5, True)])
def test_the_fourth_attempt_is_the_last(attempt: int, stops: bool) -> None:
    decision = decide(replace(POST, attempt=attempt))
    assert decision == Stop(Reason.ATTEMPTS) if stops else isinstance(decision, RetryAfter)


def test_the_number_of_attempts_can_be_chosen() -> None:
    assert decide(POST, policy=RetryPolicy(attempts_max=1)) == Stop(Reason.ATTEMPTS)
    assert isinstance(decide(replace(POST, attempt=9), policy=RetryPolicy(attempts_max=10)), RetryAfter)


@pytest.mark.parametrize(
    ("asked_s", "total_s", "decision"),
    [
        pytest.param(60.0, 300.0, RetryAfter(60.5, True), id="as much as allowed"),
        pytest.param(61.0, 300.0, Stop(Reason.RETRY_AFTER, NOW + 61), id="more than allowed"),
        pytest.param(86_400.0, 1e6, Stop(Reason.RETRY_AFTER, NOW + 86_400), id="a day"),
        pytest.param(10.0, 10.0, Stop(Reason.DEADLINE, NOW + 10), id="up to the deadline"),
        pytest.param(10.0, 10.6, RetryAfter(10.5, True), id="shortly before the deadline"),
        pytest.param(10.0, 5.0, Stop(Reason.DEADLINE, NOW + 10), id="past the deadline"),
        pytest.param(0.0, 5.0, RetryAfter(0.5, True), id="no wait, but the jitter"),
    ],
)
def test_a_wait_the_server_asks_for_is_kept_in_full_or_reported(
    asked_s: float, total_s: float, decision: Decision
) -> None:
    throttled = Answered(status=429, retry_after_s=asked_s)
    assert decide(replace(POST, outcome=throttled, deadline_at=NOW + total_s)) == decision


def test_a_wait_past_the_deadline_is_not_begun() -> None:
    assert decide(replace(POST, deadline_at=NOW + 0.125)) == Stop(Reason.DEADLINE)
    assert isinstance(decide(replace(POST, deadline_at=NOW + 0.126)), RetryAfter)


def test_the_time_the_server_asked_for_is_reported_also_when_something_else_ends_the_call() -> None:
    throttled = replace(POST, outcome=Answered(status=429, retry_after_s=3.0))
    assert decide(replace(throttled, attempt=4)) == Stop(Reason.ATTEMPTS, NOW + 3)
    assert decide(throttled, budget=spent()) == Stop(Reason.BUDGET, NOW + 3)
    assert decide(replace(throttled, has_key=False)) == Stop(Reason.NO_KEY, NOW + 3)


def test_an_open_breaker_ends_the_call_unless_it_is_ready_when_the_wait_is_over() -> None:
    assert decide(POST, breaker=opened()) == Stop(Reason.BREAKER, NOW + 5)
    patient = replace(POST, outcome=Answered(status=503, retry_after_s=5.0))
    assert isinstance(decide(patient, breaker=opened()), RetryAfter)
    assert isinstance(decide(POST, breaker=Breaker(half)), RetryAfter)


def test_a_spent_budget_ends_the_call() -> None:
    assert decide(POST, budget=spent()) == Stop(Reason.BUDGET)


def test_a_retry_takes_exactly_one_token() -> None:
    budget = Budget()
    for _ in range(50):
        budget.succeed(NOW)
    assert isinstance(decide(POST, budget=budget), RetryAfter)
    assert budget.tokens(NOW) == 5.0


@pytest.mark.parametrize(
    ("situation", "reason"),
    [
        (replace(POST, outcome=Answered(status=422)), Reason.FINAL),
        (replace(POST, has_key=False), Reason.NO_KEY),
        (replace(POST, attempt=4), Reason.ATTEMPTS),
        (replace(POST, outcome=Answered(status=429, retry_after_s=61.0)), Reason.RETRY_AFTER),
        (replace(POST, deadline_at=NOW), Reason.DEADLINE),
        (POST, Reason.BREAKER),
    ],
    ids=lambda value: value.name if isinstance(value, Reason) else "",
)
def test_whatever_ends_the_call_takes_no_token(situation: Situation, reason: Reason) -> None:
    budget = Budget()
    decision = decide(situation, budget=budget, breaker=opened() if reason is Reason.BREAKER else None)
    assert isinstance(decision, Stop)
    assert decision.reason is reason
    assert budget.tokens(NOW) == 6.0


WAITS = st.none() | st.floats(0, 1e6)
OUTCOMES = st.builds(Unanswered, maybe_sent=st.booleans()) | st.builds(
    Answered,
    status=st.integers(100, 599) | st.sampled_from(sorted(RETRYABLE_STATUSES)),
    problem_type=st.none() | st.just("urn:onefold:key-in-flight"),
    retry_after_s=WAITS,
)
SITUATIONS = st.builds(
    Situation,
    method=st.sampled_from(["GET", "PUT", "POST", "PATCH", "CHARGE"]),
    has_key=st.booleans(),
    attempt=st.integers(1, 6),
    outcome=OUTCOMES,
    deadline_at=st.floats(-1, 200).map(lambda left_s: NOW + left_s),
)


def check_promises(policy: RetryPolicy, how: settings = properties) -> None:
    @how
    @given(SITUATIONS, st.floats(0, 1, exclude_max=True), st.booleans())
    def check(situation: Situation, chance: float, credit: bool) -> None:
        budget = Budget() if credit else spent()
        before = budget.tokens(NOW)
        decision = policy.decide(situation, now=NOW, draw=lambda: chance, budget=budget)
        outcome = situation.outcome
        asked_s = outcome.retry_after_s if isinstance(outcome, Answered) else None
        match decision:
            case RetryAfter(wait_s=wait_s):
                assert NOW + wait_s < situation.deadline_at
                assert wait_s >= (asked_s or 0.0)
                assert situation.attempt < policy.attempts_max
                assert before - budget.tokens(NOW) == cost(situation.outcome)
                assert isinstance(outcome, Unanswered) or outcome.status in RETRYABLE_STATUSES or outcome.in_flight
                never_left = isinstance(outcome, Unanswered) and not outcome.maybe_sent
                assert situation.has_key or situation.method in IDEMPOTENT_METHODS or never_left
            case Stop(retry_at=retry_at):
                assert budget.tokens(NOW) == before
                assert retry_at is None or (asked_s is not None and retry_at == NOW + asked_s)

    check()


@pytest.mark.parametrize("attempts_max", [1, 4, 100])
def test_no_retry_breaks_a_promise(attempts_max: int) -> None:
    check_promises(RetryPolicy(attempts_max=attempts_max))


class Truncating(RetryPolicy):
    """A planted bug that others ship: what is too long is shortened, and the server asked earlier than it wants."""

    __slots__ = ()

    def decide(
        self,
        situation: Situation,
        *,
        now: float,
        draw: Draw,
        budget: Allowance | None = None,
        breaker: Breaker | None = None,
    ) -> Decision:
        outcome = situation.outcome
        if isinstance(outcome, Answered) and outcome.retry_after_s is not None:
            outcome = replace(outcome, retry_after_s=min(outcome.retry_after_s, self.retry_after_max_s))
        situation = replace(situation, outcome=outcome)
        return RetryPolicy.decide(self, situation, now=now, draw=draw, budget=budget, breaker=breaker)


class Overshooting(RetryPolicy):
    """A planted bug: the deadline is for others."""

    __slots__ = ()

    def decide(
        self,
        situation: Situation,
        *,
        now: float,
        draw: Draw,
        budget: Allowance | None = None,
        breaker: Breaker | None = None,
    ) -> Decision:
        situation = replace(situation, deadline_at=inf)
        return RetryPolicy.decide(self, situation, now=now, draw=draw, budget=budget, breaker=breaker)


@pytest.mark.parametrize("broken", [Truncating(), Overshooting()], ids=["truncating", "overshooting"])
def test_the_check_of_promises_finds_a_policy_that_breaks_one(broken: RetryPolicy) -> None:
    with pytest.raises(AssertionError):
        check_promises(broken, planted)


def test_a_call_never_lasts_longer_than_its_deadline_however_often_it_fails() -> None:
    @properties
    @given(
        st.floats(0.01, 60),
        st.lists(st.tuples(st.floats(0, 1, exclude_max=True), WAITS, st.floats(0, 9)), min_size=20, max_size=20),
    )
    def check(total_s: float, attempts: list[tuple[float, float | None, float]]) -> None:
        policy, now, deadline_at = RetryPolicy(attempts_max=20), NOW, NOW + total_s
        budget = Budget(BudgetConfig(cap_least=20.0, cap_most=20.0))
        for number, (chance, asked_s, takes_s) in enumerate(attempts, start=1):
            now += min(takes_s, max(0.0, deadline_at - now))
            outcome = Answered(status=503, retry_after_s=asked_s)
            situation = replace(POST, attempt=number, outcome=outcome, deadline_at=deadline_at)
            decision = policy.decide(situation, now=now, draw=repeat(chance).__next__, budget=budget)
            if isinstance(decision, Stop):
                break
            now += decision.wait_s
            assert now < deadline_at
        else:
            pytest.fail("nothing ended the call")

    check()


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (lambda: RetryPolicy(attempts_max=0), "attempts_max"),
        (lambda: RetryPolicy(attempts_max=1000), "attempts_max"),
        (lambda: RetryPolicy(retry_after_max_s=-1.0), "retry_after_max_s"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(policy: Callable[[], RetryPolicy], field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}="):
        policy()
