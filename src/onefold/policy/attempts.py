"""One call, from its first attempt to its last, and what its host has taught the client so far.

    ask                 answer
    ------------------  ----------------------------------------------------------------------------
    begin(now)          None: send it.  Stop: the breaker is open, or the deadline has passed.
    succeed(now)        the call is over.
    end(outcome, now)   RetryAfter: wait, then begin again.  Stop: hand the outcome to the caller.
    excuse()            the attempt was cancelled: it says nothing about the host.

Whoever drives the call sends and waits; nothing here does. Invariant: every attempt that began is reported to the
breaker exactly once, whichever of the three ways it ends.
"""

from __future__ import annotations

from dataclasses import replace

from onefold.policy.backoff import Draw
from onefold.policy.breaker import Admission, Breaker, Permit, Refused, State
from onefold.policy.budget import Budget
from onefold.policy.deadline import Deadline
from onefold.policy.outcome import Outcome, Verdict, verdict
from onefold.policy.retry import Decision, Reason, RetryPolicy, Situation, Stop


class Host:
    """What is known of one host: what its successes have earned, and whether it fails nearly always."""

    __slots__ = ("_told", "breaker", "budget", "draw", "name", "policy")

    def __init__(self, policy: RetryPolicy, draw: Draw, name: str = "") -> None:
        self.policy = policy
        self.draw = draw
        self.name = name
        self.budget = None if policy.budget is None else Budget(policy.budget)
        self.breaker = None if policy.breaker is None else Breaker(draw, policy.breaker)
        self._told: State = "closed"

    def moved(self, now: float) -> State | None:
        """The breaker's state, if it is another one than when this was asked last."""
        if self.breaker is None or (state := self.breaker.state(now)) == self._told:
            return None
        self._told = state
        return state


class Attempts:
    """The attempts of one call. `deadline_at` is a moment on the clock that the machine is told the time by."""

    __slots__ = ("_attempts_max", "_has_key", "_host", "_method", "_permit", "deadline_at", "made")

    def __init__(
        self, host: Host, deadline_at: float, method: str = "", has_key: bool = True, attempts_max: int | None = None
    ) -> None:
        self._host = host
        self._method = method
        self._has_key = has_key
        self._attempts_max = attempts_max
        self._permit: Permit | None = None
        self.deadline_at = deadline_at
        self.made = 0

    def begin(self, now: float) -> Stop | None:
        """May the next attempt be made?"""
        if now >= self.deadline_at:
            return Stop(Reason.DEADLINE)
        breaker = self._host.breaker
        if breaker is not None:
            admission: Admission = breaker.spell or breaker.admit(now)
            if isinstance(admission, Refused):
                return Stop(Reason.BREAKER, admission.retry_at)
            self._permit = admission
        self.made += 1
        return None

    def succeed(self, now: float) -> None:
        """The host did what it was asked."""
        host = self._host
        if host.budget is not None:
            host.budget.succeed(now)
        permit, self._permit = self._permit, None
        if permit is not None and host.breaker is not None:
            host.breaker.succeed(permit, now)

    def end(self, outcome: Outcome, now: float) -> Decision:
        """The attempt ended in some other way: try again, or stop and say why."""
        host = self._host
        judged = verdict(outcome)
        if judged is Verdict.SUCCESS:
            self.succeed(now)
            return Stop(Reason.FINAL)
        permit, self._permit = self._permit, None
        if permit is not None and host.breaker is not None:
            host.breaker.report(permit, judged, now)
        situation = Situation(
            method=self._method,
            has_key=self._has_key,
            attempt=self.made,
            outcome=outcome,
            deadline=Deadline(self.deadline_at),
        )
        policy = host.policy if self._attempts_max is None else replace(host.policy, attempts_max=self._attempts_max)
        return policy.decide(situation, now=now, draw=host.draw, budget=host.budget, breaker=host.breaker)

    def excuse(self) -> None:
        """The attempt was broken off by its caller."""
        permit, self._permit = self._permit, None
        if permit is not None and self._host.breaker is not None:
            self._host.breaker.excuse(permit)
