"""The outcome of one attempt, and what it says about the server.

Invariant: only what is the server's fault counts against it. An answer below 500 shows that the server works, whatever
the caller asked for; one that asks for patience (408, 425, 429) shows neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

from onefold.errors import KeyInFlight

NOT_IMPLEMENTED = 501

#: Answers that say nothing about the server's health: it throttles, or has not taken the request on.
PATIENCE_STATUSES = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The server answered."""

    status: int
    problem_type: str | None = None
    """The `type` of an application/problem+json body."""
    retry_after_s: float | None = None
    should_retry: bool | None = None
    """What the server says about another attempt, whatever its status; None: nothing."""

    @property
    def in_flight(self) -> bool:
        """The same request, with the same key, is being worked on."""
        return self.status == KeyInFlight.status and (self.problem_type or "").endswith(KeyInFlight.slug)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """The network failed, or the attempt ran out of time."""

    maybe_sent: bool
    """False only when it is certain that no byte of the request left, as when the connection was refused."""
    timed_out: bool = False
    """The time for an answer ran out: the server may still have it before it."""
    retry_after_s: float | None = None
    """The caller's own judgement; a server that did not answer has none."""
    should_retry: bool | None = None
    """What the caller says about another attempt; None: nothing."""


Outcome: TypeAlias = Answered | Unanswered


class Verdict(Enum):
    """What an attempt says about its server: the budget is fed by successes, the breaker by both."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEITHER = "neither"


def verdict(outcome: Outcome) -> Verdict:
    """A caller who cancels makes no outcome: that attempt says nothing either."""
    match outcome:
        case Answered(status=status):
            if status < 500:
                return Verdict.NEITHER if status in PATIENCE_STATUSES else Verdict.SUCCESS
            return Verdict.NEITHER if status == NOT_IMPLEMENTED else Verdict.FAILURE
        case Unanswered():
            return Verdict.FAILURE
        case _:
            assert_never(outcome)
