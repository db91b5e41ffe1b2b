"""Whether to try again: one decision over what happened, what may be repeated, and what time and credit are left.

    question, in this order                                                  if not
    -----------------------------------------------------------------------  ----------------------------------
    may another attempt end differently? (408 425 429 500 502 503 504,       Stop(FINAL)
    network errors, 409 with the problem "key-in-flight")
    is repeating it safe? (GET HEAD OPTIONS TRACE PUT DELETE; any method     Stop(NO_KEY)
    with a key; any method whose request never left)
    are attempts left?                                                       Stop(ATTEMPTS)
    does the server ask for no more patience than we have?                   Stop(RETRY_AFTER)
    does the wait end before the deadline?                                   Stop(DEADLINE)
    will the breaker let the attempt through?                                Stop(BREAKER)
    is there a token in the budget? (it is taken here, before the wait)      Stop(BUDGET)

Invariant: no wait ends past the deadline, and none is shorter than the Retry-After that came with the answer. What
cannot be waited for is reported as `retry_at`, not shortened. The budget is asked last: no token is taken in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, assert_never

from onefold.policy.backoff import Backoff, Draw
from onefold.policy.breaker import Breaker, BreakerTerms
from onefold.policy.budget import Budget, BudgetTerms
from onefold.policy.deadline import Deadline
from onefold.policy.outcome import Answered, Outcome, Unanswered
from onefold.policy.ranges import require

RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})

TOO_MANY_REQUESTS = 429
UNAVAILABLE = 503


class Reason(Enum):
    """Why there is no further attempt."""

    FINAL = "the answer is final: another attempt would end the same way"
    NO_KEY = "the request may have been carried out, and has no idempotency key that would make repeating it safe"
    ATTEMPTS = "all attempts are used up"
    RETRY_AFTER = "the server asks for a longer wait than allowed"
    DEADLINE = "the deadline would pass before the next attempt"
    BREAKER = "the breaker is open: the host fails nearly always"
    BUDGET = "the retry budget of the host is spent"


@dataclass(frozen=True, slots=True)
class Stop:
    """Hand the outcome to the caller."""

    reason: Reason
    retry_at: float | None = None
    """On the monotonic clock: the moment the server asked for, or the breaker's; None when there is none."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Wait, then try again. Its token is taken."""

    wait_s: float
    throttled: bool
    """The server is well and asks for patience; it did not stumble."""


Decision: TypeAlias = Stop | RetryAfter


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One attempt that has just ended."""

    method: str
    has_key: bool
    attempt: int
    """The first is number 1."""
    outcome: Outcome
    deadline: Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient a client is, and how considerate. The defaults survive a storm: see `onefold storm`."""

    attempts_max: int = 4
    deadline_s: float = 30.0
    """For a call as a whole: its attempts and the waits between them."""
    retry_after_max_s: float = 60.0
    backoff: Backoff = field(default_factory=Backoff)
    budget: BudgetTerms | None = field(default_factory=BudgetTerms)
    """None: retries are limited by nothing but the attempts of each call. That does not survive a storm."""
    breaker: BreakerTerms | None = field(default_factory=BreakerTerms)

    def __post_init__(self) -> None:
        require("attempts_max", self.attempts_max, least=1, most=100)
        require("deadline_s", self.deadline_s, least=0.001, most=86_400)
        require("retry_after_max_s", self.retry_after_max_s, most=86_400)

    def decide(
        self,
        situation: Situation,
        *,
        now: float,
        draw: Draw,
        budget: Budget | None = None,
        breaker: Breaker | None = None,
    ) -> Decision:
        """Try again, or stop and say why."""
        outcome = situation.outcome
        if not may_differ(outcome):
            return Stop(Reason.FINAL)
        if not repeatable(situation):
            return Stop(Reason.NO_KEY)

        asked_s = outcome.retry_after_s if isinstance(outcome, Answered) else None
        asked_at = None if asked_s is None else now + asked_s
        if situation.attempt >= self.attempts_max:
            return Stop(Reason.ATTEMPTS, asked_at)
        if asked_s is not None and asked_s > self.retry_after_max_s:
            return Stop(Reason.RETRY_AFTER, asked_at)

        throttled = asks_for_patience(outcome)
        # On top of what the server asks: it tells all its clients the same, and they must not come back as one.
        wait_s = (asked_s or 0.0) + self.backoff.wait_s(situation.attempt, throttled=throttled, draw=draw)
        if not situation.deadline.fits(wait_s, now):
            return Stop(Reason.DEADLINE, asked_at)
        if breaker is not None and (ready_at := breaker.ready_at(now)) > now + wait_s:
            return Stop(Reason.BREAKER, ready_at)
        if budget is not None and not budget.take(now):
            return Stop(Reason.BUDGET, asked_at)
        return RetryAfter(wait_s, throttled)


def may_differ(outcome: Outcome) -> bool:
    """Another attempt may end differently."""
    match outcome:
        case Answered(status=status):
            return status in RETRYABLE_STATUSES or outcome.in_flight
        case Unanswered():
            return True
        case _:
            assert_never(outcome)


def repeatable(situation: Situation) -> bool:
    """Sending the request again cannot make it happen twice."""
    # A method nobody has heard of may do anything, so it needs a key like POST and PATCH.
    if situation.has_key or situation.method.upper() in IDEMPOTENT_METHODS:
        return True
    return isinstance(situation.outcome, Unanswered) and not situation.outcome.maybe_sent


def asks_for_patience(outcome: Outcome) -> bool:
    """The server is well, but busy: with others, or with this very request."""
    match outcome:
        case Answered(status=status):
            if status == UNAVAILABLE:
                return outcome.retry_after_s is not None
            return status == TOO_MANY_REQUESTS or outcome.in_flight
        case Unanswered():
            return False
        case _:
            assert_never(outcome)
