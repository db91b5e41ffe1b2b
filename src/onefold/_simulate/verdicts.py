"""Whether a policy does harm: keeps a server down that is well again, or succeeds less often than no retries at all.

A policy fails a run of failures when fewer calls succeed than without retries: attempts fail by chance there, and what
is not even tried is lost for nothing. It fails a stall when the calls do not succeed again within a bound after it. It
fails an overload when less is done after it than by clients without retries: the overload is over, and what keeps the
server down are the retries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

from onefold._policy.budget import BudgetConfig
from onefold._policy.retry import RetryPolicy
from onefold._simulate.entrants import NO_RETRIES, Entrant
from onefold._simulate.experiments import LOOK_S, WELL, Failures, Overload, ServerStall, Storm

RECOVERY_MOST = 6.0
"""In lengths of the stall. Clients without retries need four behind a queue that is served in order."""
RECOVERY_S_LEAST = 60.0
"""And so long after a short one."""

CHANCE = 3.0
"""So many standard deviations below what clients without retries achieve are no bad luck."""

RATIO_SAFE = 0.2
"""At 80 % load, a fifth of a retry for each call is 96 %: hardly anything is left to drain a queue with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One experiment that a policy has failed."""

    experiment: str
    server: str
    processes: int | None
    """None: the experiment has only one number of processes."""
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict:
    """What was found against a policy; nothing, if it passes."""

    policy: str
    findings: tuple[Finding, ...]

    @property
    def metastable(self) -> bool:
        """It keeps a server down that is well again."""
        return any(finding.experiment != "failures" for finding in self.findings)

    @property
    def passes(self) -> bool:
        """Nothing was found against it."""
        return not self.findings


def judge(entrant: Entrant, storm: Storm) -> PolicyVerdict:
    """The verdict on one of the policies that were run. Those without retries must have been run as well."""
    plain = {cell.server: cell for cell in storm.overloads if cell.policy == NO_RETRIES.name}
    return PolicyVerdict(
        policy=entrant.name,
        findings=(*_failures(entrant, storm), *_stalls(entrant, storm), *_overloads(entrant, storm, plain)),
    )


def _failures(entrant: Entrant, storm: Storm) -> Iterator[Finding]:
    plain = {(cell.failure, cell.rps): cell for cell in storm.failures if cell.policy == NO_RETRIES.name}
    for cell in storm.failures:
        if cell.policy != entrant.name:
            continue
        expected = plain[cell.failure, cell.rps]
        if cell.success >= expected.success - CHANCE * _deviation(cell, expected):
            continue
        yield Finding(
            experiment="failures",
            server="coin",
            processes=None,
            what=f"failures ({cell.failure:.0%} of the attempts, {cell.rps:g} calls/s per process): "
            f"{cell.success:.1%} of the calls succeed, without retries {expected.success:.1%}",
            advice=advice(entrant.policy, cell),
        )


def _deviation(cell: Failures, expected: Failures) -> float:
    """Of the difference of two shares that were counted; each had its own luck."""
    return sqrt(sum(found.success * (1 - found.success) / found.calls for found in (cell, expected)))


def _stalls(entrant: Entrant, storm: Storm) -> Iterator[Finding]:
    for cell in storm.stalls:
        within_s = max(RECOVERY_S_LEAST, RECOVERY_MOST * cell.stall_s)
        if cell.policy != entrant.name or (cell.recovery_s is not None and cell.recovery_s <= within_s):
            continue
        count = f"{cell.processes} process{'es' * (cell.processes > 1)}"
        where = f"stall of {cell.stall_s} s ({cell.server} server, {count})"
        horizon_s = storm.effort.after_stall_s - LOOK_S
        when = f"not within {horizon_s} s" if cell.recovery_s is None else f"only after {cell.recovery_s} s"
        yield Finding(
            experiment="stall",
            server=cell.server,
            processes=cell.processes,
            what=f"{where}: recovers {when}, {within_s:g} s are allowed; goodput at the end {cell.after_rps:.0f}/s",
            advice=advice(entrant.policy, cell),
        )


def _overloads(entrant: Entrant, storm: Storm, plain: Mapping[str, Overload]) -> Iterator[Finding]:
    for cell in storm.overloads:
        expected = plain[cell.server].after_rps
        if cell.policy != entrant.name or cell.after_rps >= WELL * expected:
            continue
        yield Finding(
            experiment="overload",
            server=cell.server,
            processes=None,
            what=f"overload ({cell.server} server): goodput stays at {cell.after_rps:.0f}/s when it is over, "
            f"without retries it is {expected:.0f}/s",
            advice=advice(entrant.policy, cell),
        )


def advice(policy: RetryPolicy, cell: Failures | ServerStall | Overload) -> str:
    """What to change first."""
    budget, breaker = policy.budget, policy.breaker
    if breaker is not None and isinstance(cell, Failures):
        return (
            f"its breaker takes chance for an outage: raise failure_share={breaker.failure_share:g} or "
            f"calls_least={breaker.calls_least}"
        )
    if breaker is not None and isinstance(cell, ServerStall) and cell.kept_back:
        return f"its breaker keeps the calls back long after: lower open_max_s={breaker.open_max_s:g}"
    if budget is None and policy.attempts_max > 1:
        return f"up to {policy.attempts_max - 1} retries per call, and no budget: set budget=BudgetConfig()"
    if isinstance(budget, BudgetConfig) and budget.ratio > RATIO_SAFE:
        return f"its budget gives each success ratio={budget.ratio:g} of a retry: take 0.1"
    if isinstance(budget, BudgetConfig) and budget.cap_least > BudgetConfig().cap_least:
        return (
            f"every process may save cap_least={budget.cap_least:g} retries for the worst moment: "
            f"take {BudgetConfig().cap_least:g}"
        )
    if breaker is None:
        return "it goes on calling a server that does not answer: set breaker=BreakerConfig()"
    return "compare it, setting by setting, with RetryPolicy(), which passes"
