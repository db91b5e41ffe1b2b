"""The budgets of others do what their descriptions say, so that what is compared is really theirs."""

from __future__ import annotations

import pytest

from onefold._policy.outcome import Answered, Outcome, Unanswered
from onefold._simulate.rivals import AwsStandard, Envoy, Finagle, GrpcThrottling, Rival

BUSY = Answered(status=503)
TIMED_OUT = Unanswered(maybe_sent=True)


def begun(rival: Rival, calls: int = 1, now: float = 0.0) -> None:
    for _ in range(calls):
        rival.begin(object(), now)


def retries(rival: Rival, outcome: Outcome = BUSY, now: float = 0.0, most: int = 1000) -> int:
    """How many calls in a row get a retry when all of them fail, each for the first time."""
    for given in range(most):
        call = object()
        rival.begin(call, now)
        rival.end(call, outcome, 1, now)
        if not rival.take(now):
            return given
    return most


@pytest.mark.parametrize(("outcome", "given"), [(BUSY, 100), (TIMED_OUT, 50)], ids=["refused", "timed out"])
def test_aws_has_five_hundred_tokens_and_a_timeout_takes_twice_as_many(outcome: Outcome, given: int) -> None:
    assert retries(AwsStandard(), outcome) == given


def test_aws_gives_back_what_the_last_retry_took_and_one_for_a_call_that_succeeds_at_once() -> None:
    spent = AwsStandard()
    retries(spent)
    for _ in range(5):
        spent.end(object(), None, 1, 0.0)
    call = object()
    spent.end(call, BUSY, 1, 0.0)
    assert spent.take(0.0)
    spent.end(call, None, 2, 0.0)
    assert retries(spent) == 1


def test_grpc_retries_while_more_than_half_of_ten_tokens_are_there() -> None:
    throttled = GrpcThrottling()
    assert retries(throttled) == 4
    for _ in range(10):
        throttled.end(object(), None, 1, 0.0)
    assert retries(throttled) == 0
    for _ in range(20):
        throttled.end(object(), None, 1, 0.0)
    assert retries(throttled) == 1, "7 tokens: 6 after the first failure, and 5 are half"


def test_finagle_has_ten_retries_per_second_and_a_fifth_of_the_calls_within_ten_seconds() -> None:
    budget = Finagle()
    begun(budget, 50)
    assert sum(budget.take(0.0) for _ in range(1000)) == 110
    assert sum(budget.take(9.9) for _ in range(1000)) == 0
    assert sum(budget.take(10.0) for _ in range(1000)) == 100


def test_envoy_has_three_retries_at_once_or_a_fifth_of_what_is_under_way() -> None:
    budget = Envoy()
    calls = [object() for _ in range(4)]
    for call in calls:
        budget.begin(call, 0.0)
        budget.end(call, BUSY, 1, 0.0)
    assert [budget.take(0.0) for _ in calls] == [True, True, True, False]
    budget.end(calls[0], BUSY, 2, 0.0)
    assert budget.take(0.0)
    begun(budget, 100)
    assert sum(budget.take(0.0) for _ in range(1000)) == 22  # 25 of 125 in the end
