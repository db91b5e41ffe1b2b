"""One call, from its first attempt to its last, and what is known of its host so far.

    call                       answer
    -------------------------  ---------------------------------------------------------------------------------------
    begin(now)                 None: send it.  Stop: the breaker is open, too many are in flight, or the deadline has
                               passed.
    succeed(now)               the call is over.
    end(outcome, now)          RetryAfter: wait, then begin again.  Stop: hand the outcome to the caller.
    release_without_verdict()  the call was broken off: an attempt that began says nothing about the host, and the
                               tokens of a retry that did not begin are given back.

The retry loop of the client sends and waits; nothing here does. Invariant: every attempt that began is reported to the
breaker exactly once, and leaves the limiter exactly once, in each of the three ways to end.
"""

from __future__ import annotations

from dataclasses import replace

from onefold._policy.backoff import Draw
from onefold._policy.breaker import Admission, Breaker, Permit, Refused, State
from onefold._policy.budget import Allowance
from onefold._policy.limiter import Gradient2, Limiter
from onefold._policy.outcome import Answered, Outcome, Verdict, verdict
from onefold._policy.retry import Decision, Reason, RetryAfter, RetryPolicy, Situation, Stop, cost, may_differ


class HostHealth:
    """What is known of one host: what its successes have earned, and whether it fails nearly always."""

    __slots__ = (
        "_state_reported",
        "breaker",
        "budget",
        "draw",
        "failed_at",
        "layered",
        "limiter",
        "name",
        "policy",
        "troubled",
    )

    def __init__(self, policy: RetryPolicy, draw: Draw, name: str = "") -> None:
        self.policy = policy
        self.draw = draw
        self.name = name
        self.budget: Allowance | None = None if policy.budget is None else policy.budget.open()
        self.breaker = None if policy.breaker is None else Breaker(draw, policy.breaker)
        limits = policy.in_flight_config()
        self.limiter = None if limits is None else Limiter(Gradient2(), limits)
        self._state_reported: State = "closed"
        #: Whether calls were retried or refused lately, and when one was last.
        self.troubled = False
        self.failed_at = 0.0
        #: Whether it was logged that what is called retries by itself.
        self.layered = False

    @property
    def is_closed(self) -> bool:
        """Whether the breaker was closed at the last `take_state_change`, or there is none."""
        return self._state_reported == "closed"

    def take_state_change(self, now: float) -> State | None:
        """The breaker's state, if it is another one than at the last call."""
        if self.breaker is None or (state := self.breaker.state(now)) == self._state_reported:
            return None
        self._state_reported = state
        return state


class Attempts:
    """The attempts of one call. `deadline_at` is a moment on the clock that `now` is read from."""

    __slots__ = (
        "_attempts_max", "_entered_at", "_host", "_in_flight_replies", "_method", "_permit", "_planned", "_planned_at",
        "_taken", "deadline_at", "has_key", "made",
    )  # fmt: skip

    def __init__(
        self,
        host: HostHealth,
        deadline_at: float,
        method: str = "",
        has_key: bool = True,
        attempts_max: int | None = None,
    ) -> None:
        self._host = host
        self._method = method
        self.has_key = has_key
        self._attempts_max = attempts_max
        self._permit: Permit | None = None
        #: When the attempt took its slot in the limiter, until it has left.
        self._entered_at: float | None = None
        self._taken = 0
        #: How many of the attempts found that the request is being worked on, and when to look again: they were not
        #: executed, and are not counted. The deadline and the budget bound them.
        self._in_flight_replies = 0
        #: What was taken for a retry that has not begun yet, and when.
        self._planned = 0
        self._planned_at = 0.0
        self.deadline_at = deadline_at
        self.made = 0

    @property
    def is_last(self) -> bool:
        """No attempt follows the one that was begun, unless it finds that the request is being worked on."""
        return self.made - self._in_flight_replies >= (self._attempts_max or self._host.policy.attempts_max)

    def begin(self, now: float) -> Stop | None:
        """May the next attempt be made?"""
        if now >= self.deadline_at:
            return Stop(Reason.DEADLINE)
        limiter = self._host.limiter
        if limiter is not None:
            if not limiter.enter():
                return Stop(Reason.IN_FLIGHT)
            self._entered_at = now
        breaker = self._host.breaker
        if breaker is not None:
            admission: Admission = breaker.closed_permit or breaker.admit(now)
            if isinstance(admission, Refused):
                self._leave(None)
                return Stop(Reason.BREAKER, admission.retry_at)
            self._permit = admission
        self.made += 1
        self._planned = 0
        return None

    def forgo_retry(self) -> None:
        """The retry that was decided on is made elsewhere."""
        self._planned = 0

    def succeed(self, now: float) -> None:
        """The attempt succeeded."""
        host = self._host
        if self._entered_at is not None:
            self._leave(now)
        if host.budget is not None:
            host.budget.succeed(now)
            if self._taken:
                host.budget.give_back(self._taken, now)
                self._taken = 0
        permit, self._permit = self._permit, None
        if permit is not None and host.breaker is not None:
            host.breaker.succeed(permit, now)

    def end(self, outcome: Outcome, now: float) -> Decision:
        """The attempt ended in some other way: try again, or stop with a reason."""
        host = self._host
        judged = verdict(outcome)
        if judged is Verdict.SUCCESS and not may_differ(outcome, host.policy.statuses):
            self.succeed(now)
            return Stop(Reason.FINAL)
        if self._entered_at is not None:
            self._leave(now, dropped=judged is not Verdict.SUCCESS)
        # A key in flight: the host works, and the request is sent again. It earns the budget nothing.
        permit, self._permit = self._permit, None
        if permit is not None and host.breaker is not None:
            host.breaker.report(permit, judged, now, attempt=self.made)
        if isinstance(outcome, Answered) and outcome.in_flight and outcome.retry_after_s is not None:
            self._in_flight_replies += 1
        situation = Situation(
            method=self._method,
            has_key=self.has_key,
            attempt=max(1, self.made - self._in_flight_replies),
            outcome=outcome,
            deadline_at=self.deadline_at,
        )
        policy = host.policy if self._attempts_max is None else replace(host.policy, attempts_max=self._attempts_max)
        decision = policy.decide(situation, now=now, draw=host.draw, budget=host.budget, breaker=host.breaker)
        if isinstance(decision, RetryAfter) and host.budget is not None:
            self._planned, self._planned_at = cost(outcome), now
            self._taken += self._planned
        return decision

    def release_without_verdict(self) -> None:
        """The caller broke off: give back what the attempt, or the planned retry, still holds."""
        planned, self._planned = self._planned, 0
        if planned and self._host.budget is not None:
            self._taken -= planned
            self._host.budget.give_back(planned, self._planned_at)
        if self._entered_at is not None:
            self._leave(None)
        permit, self._permit = self._permit, None
        if permit is not None and self._host.breaker is not None:
            self._host.breaker.release_without_verdict(permit)

    def _leave(self, now: float | None, *, dropped: bool = False) -> None:
        """Free the slot of the attempt; None: how long it took says nothing."""
        entered_at, self._entered_at = self._entered_at, None
        if entered_at is not None and self._host.limiter is not None:
            latency_s = None if now is None else max(0.0, now - entered_at)
            self._host.limiter.leave(now or entered_at, latency_s, dropped=dropped)
