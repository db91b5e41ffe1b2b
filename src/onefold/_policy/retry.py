"""Whether to try again: one decision over what happened, what may be repeated, and what time and credit are left.

    question, in this order                                                  if not
    -----------------------------------------------------------------------  ----------------------------------
    may another attempt end differently? (408 425 429 500 502 503 504,       Stop(FINAL)
    network errors, 409 with the problem "key-in-flight"; or the server
    says it: Stripe-Should-Retry, a problem that is not "retryable")
    is repeating it safe? (GET HEAD OPTIONS TRACE PUT DELETE; any method     Stop(NO_KEY)
    with a key; any method whose request never left)
    are attempts left?                                                       Stop(ATTEMPTS)
    does the server ask for no more patience than we have?                   Stop(RETRY_AFTER)
    does the wait end before the deadline?                                   Stop(DEADLINE)
    will the breaker let the attempt through?                                Stop(BREAKER)
    has the budget what it costs? (it is taken here, before the wait)        Stop(BUDGET)

Invariant: no wait ends past the deadline, and none is shorter than the Retry-After of the attempt's outcome. What
cannot be waited for is reported as `retry_at`, not shortened. The budget is checked last: no token is taken in vain.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, TypeAlias, assert_never

from onefold._kernel.arguments import named_settings
from onefold._policy.backoff import Backoff, Draw
from onefold._policy.breaker import Breaker, BreakerConfig
from onefold._policy.budget import Allowance, AllowanceConfig, BudgetConfig
from onefold._policy.limiter import LimiterConfig
from onefold._policy.outcome import Answered, Outcome, Unanswered
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

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
    IN_FLIGHT = "the limit of calls in flight to this host is reached"
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
    deadline_at: float
    """When the call is over, on the monotonic clock; `inf`: its caller bounds it by other means."""


@named_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient a client is, and how considerate. The defaults survive a storm: see `onefold storm`."""

    attempts_max: int = 4
    """Of one call, the first included."""
    deadline_s: float = 30.0
    """For a call as a whole: its attempts and the waits between them."""
    attempt_s: float | None = None
    """What one HTTP attempt may take. None: half of the deadline, so that there is time for a second one. The last
    attempt, and one that must not be repeated, has all that is left."""
    retry_after_max_s: float = 60.0
    """A server that asks for a longer wait is not called again: the caller gets the time when it may be."""
    statuses: Collection[int] = RETRYABLE_STATUSES
    """Answers that another attempt may change: `RetryPolicy.STATUSES | {404}`, or others."""
    backoff: Backoff = field(default_factory=Backoff)
    """How long to wait between attempts."""
    budget: AllowanceConfig | None = field(default_factory=BudgetConfig)
    """None: retries are limited by nothing but the attempts of each call. That does not survive a storm."""
    breaker: BreakerConfig | None = field(default_factory=BreakerConfig)
    """When a host that fails nearly always is left alone. None: never."""
    in_flight: int | LimiterConfig | None = None
    """How many attempts may be in flight to one host; one more is refused at once. A number, or bounds between which
    the limit follows how long calls take. None: no limit."""

    STATUSES: ClassVar[frozenset[int]] = RETRYABLE_STATUSES

    def __post_init__(self) -> None:
        require("attempts_max", self.attempts_max, least=1, most=100, whole=True)
        require("deadline_s", self.deadline_s, least=0.001, most=86_400)
        require("retry_after_max_s", self.retry_after_max_s, most=86_400)
        if self.attempt_s is not None:
            require("attempt_s", self.attempt_s, least=0.001, most=86_400)
        statuses: object = self.statuses
        if isinstance(statuses, str | bytes) or not isinstance(statuses, Collection):
            raise ConfigurationError(
                f"statuses={statuses!r} must be a collection of numbers, as RetryPolicy.STATUSES | {{404}} is"
            )
        for status in self.statuses:
            require("statuses", status, least=400, most=599, whole=True)
        _check_parts(self.backoff, self.budget, self.breaker, self.in_flight)

    def in_flight_config(self) -> LimiterConfig | None:
        """The bounds of the limit for attempts in flight; a number is both of them."""
        if isinstance(self.in_flight, int):
            return LimiterConfig(initial=self.in_flight, least=self.in_flight, most=self.in_flight)
        return self.in_flight

    def attempt_limit_s(self, deadline_s: float | None = None) -> float:
        """What an attempt may take that can be followed by another, in a call of `deadline_s` seconds."""
        if self.attempt_s is not None:
            return self.attempt_s
        return (self.deadline_s if deadline_s is None else deadline_s) / 2

    def decide(
        self,
        situation: Situation,
        *,
        now: float,
        draw: Draw,
        budget: Allowance | None = None,
        breaker: Breaker | None = None,
    ) -> Decision:
        """Try again, or stop with a reason. `situation` is the attempt that has just ended, `now` the monotonic clock,
        `draw` the chance in the wait; `budget` and `breaker` are those of the host, None where it has none."""
        outcome = situation.outcome
        if not may_differ(outcome, self.statuses):
            return Stop(Reason.FINAL)
        asked_s = outcome.retry_after_s
        asked_at = None if asked_s is None else now + asked_s
        if not repeatable(situation):
            return Stop(Reason.NO_KEY, asked_at)
        if situation.attempt >= self.attempts_max:
            return Stop(Reason.ATTEMPTS, asked_at)
        if asked_s is not None and asked_s > self.retry_after_max_s:
            return Stop(Reason.RETRY_AFTER, asked_at)

        throttled = is_throttled(outcome)
        # On top of what the server asks for: all its clients get the same wait, and must not come back as one.
        wait_s = (asked_s or 0.0) + self.backoff.wait_s(situation.attempt, throttled=throttled, draw=draw)
        if now + wait_s >= situation.deadline_at:  # an attempt that begins then would have no time left
            return Stop(Reason.DEADLINE, asked_at)
        if breaker is not None and (ready_at := breaker.ready_at(now)) > now + wait_s:
            return Stop(Reason.BREAKER, ready_at)
        if budget is not None and not budget.take(now, cost(outcome)):
            return Stop(Reason.BUDGET, asked_at)
        return RetryAfter(wait_s, throttled)


def _check_parts(backoff: object, budget: object, breaker: object, in_flight: object) -> None:
    if isinstance(in_flight, int):
        require("in_flight", in_flight, least=1, most=100_000, whole=True)
    elif in_flight is not None and not isinstance(in_flight, LimiterConfig):
        raise ConfigurationError(
            f"in_flight={in_flight!r} must be a whole number, LimiterConfig(initial=20, most=200), or None for no limit"
        )
    if not isinstance(backoff, Backoff):
        raise ConfigurationError(f"backoff={backoff!r} must be a Backoff, as in Backoff(transient_base_s=0.25)")
    if budget is not None and not callable(getattr(budget, "open", None)):
        raise ConfigurationError(f"budget={budget!r} must be a BudgetConfig, as in BudgetConfig(ratio=0.1), or None")
    if breaker is not None and not isinstance(breaker, BreakerConfig):
        raise ConfigurationError(
            f"breaker={breaker!r} must be a BreakerConfig, as in BreakerConfig(open_s=5.0), or None for no breaker"
        )


def may_differ(outcome: Outcome, statuses: Collection[int] = RETRYABLE_STATUSES) -> bool:
    """Another attempt may end differently."""
    match outcome:
        case Answered(status=status):
            if outcome.should_retry is not None:
                return outcome.should_retry
            return status in statuses or outcome.in_flight
        case Unanswered():
            return outcome.should_retry is not False
        case _:
            assert_never(outcome)


def cost(outcome: Outcome) -> int:
    """What a retry after this takes from the budget. After no answer it is more: what was sent may be worked on for
    nothing, and where time ran out it probably still waits in the server's queue, and another is put behind it."""
    if isinstance(outcome, Answered) or not outcome.maybe_sent:
        return 1
    return 4 if outcome.timed_out else 2


def repeatable(situation: Situation) -> bool:
    """Sending the request again cannot make it happen twice."""
    # An unknown method may do anything, so it needs a key like POST and PATCH.
    if situation.has_key or situation.method.upper() in IDEMPOTENT_METHODS:
        return True
    return isinstance(situation.outcome, Unanswered) and not situation.outcome.maybe_sent


def is_throttled(outcome: Outcome) -> bool:
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
