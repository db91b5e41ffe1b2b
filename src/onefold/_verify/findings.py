"""The findings of a run of the prober: one per check, with the requests that prove it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "skipped"]
Verdict = Literal["passed", "failed", "unusable", "untold"]


class Violation(Exception):
    """The API breaks the contract; the text says what it does instead. `why` and `advice` are given where
    those of the check do not fit."""

    def __init__(self, seen: str, *, why: str | None = None, advice: str | None = None) -> None:
        super().__init__(seen)
        self.why, self.advice = why, advice


class RanAgain(Violation):
    """A request happened more often than it may."""


class NotApplicable(Exception):
    """The check does not apply to this API, or needs an option that is missing."""


class Untold(NotApplicable):
    """The answers do not show whether the promise is kept; a count would."""


class UnusableTarget(Exception):
    """No check is possible: the API cannot be reached, or refuses valid requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its reply, as a line each; `times`: how often both were the same."""

    sent: str
    came: str
    times: int = 1

    def lines(self) -> tuple[str, str]:
        """The lines of the request and of the reply."""
        return (self.sent if self.times == 1 else f"{self.times} x {self.sent}"), self.came


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """The result of a check. `seen` is a sentence; for a skipped check, why it was skipped."""

    check: str
    promise: str
    why: str
    advice: str
    outcome: Outcome
    seen: str
    untold: bool = False
    """Whether it was skipped because the answers do not show the effect, and there is no count."""
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """A run: all findings, or why there are none."""

    target: str
    profile: str
    run: str
    started_at_s: float
    duration_s: float
    requests: int
    requests_max: int
    counted: bool
    """Whether a command counted the effects; without one, only answers were compared."""
    findings: tuple[CheckFinding, ...]
    unusable: str | None = None

    @property
    def verdict(self) -> Verdict:
        if any(finding.outcome == "failed" for finding in self.findings):
            return "failed"
        if self.unusable is not None:
            return "unusable"
        if any(finding.untold for finding in self.findings):
            return "untold"
        return "passed" if any(finding.outcome == "passed" for finding in self.findings) else "unusable"

    def of(self, outcome: Outcome) -> Sequence[CheckFinding]:
        return [finding for finding in self.findings if finding.outcome == outcome]
