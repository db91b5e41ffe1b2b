"""Whether a policy is metastable: whether it keeps a server down that is well again.

A policy fails a stall when the calls do not succeed again within a bound after it. It fails an overload when less is
done after it than by clients without retries: the overload is over, and what keeps the server down are the retries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onefold.policy.retry import RetryPolicy
from onefold.simulate.entrants import NO_RETRIES, Entrant
from onefold.simulate.experiments import LOOK_S, WELL, Overload, Stall, Storm

RECOVERY_S_MAX = 60
"""Clients without retries need 35 s behind a queue that is served in order; twice that is not patience any more."""

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
class Verdict:
    """What was found against a policy; nothing, if it passes."""

    policy: str
    findings: tuple[Finding, ...]

    @property
    def metastable(self) -> bool:
        return bool(self.findings)


def judge(entrant: Entrant, storm: Storm, *, within_s: int = RECOVERY_S_MAX) -> Verdict:
    """The verdict on one of the policies that were run. Those without retries must have been run as well."""
    plain = {cell.server: cell for cell in storm.overloads if cell.policy == NO_RETRIES.name}
    return Verdict(
        policy=entrant.name,
        findings=(*_stalls(entrant, storm, within_s), *_overloads(entrant, storm, plain)),
    )


def _stalls(entrant: Entrant, storm: Storm, within_s: int) -> Iterator[Finding]:
    for cell in storm.stalls:
        if cell.policy != entrant.name or (cell.recovery_s is not None and cell.recovery_s <= within_s):
            continue
        where = f"stall ({cell.server} server, {cell.processes} process{'es' * (cell.processes > 1)})"
        horizon_s = storm.effort.after_stall_s - LOOK_S
        when = f"not within {horizon_s} s" if cell.recovery_s is None else f"only after {cell.recovery_s} s"
        yield Finding(
            experiment="stall",
            server=cell.server,
            processes=cell.processes,
            what=f"{where}: recovers {when}, {within_s} s are allowed; goodput at the end {cell.after_rps:.0f}/s",
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


def advice(policy: RetryPolicy, cell: Stall | Overload) -> str:
    """What to change first."""
    budget, breaker = policy.budget, policy.breaker
    if breaker is not None and isinstance(cell, Stall) and cell.kept_back:
        return f"its breaker keeps the calls back long after: lower open_max_s={breaker.open_max_s:g}"
    if budget is None and policy.attempts_max > 1:
        return f"up to {policy.attempts_max - 1} retries per call, and no budget: set budget=BudgetTerms()"
    if budget is not None and budget.ratio > RATIO_SAFE:
        return f"its budget gives each success ratio={budget.ratio:g} of a retry: take 0.1"
    if budget is not None and budget.cap_least > 1:
        return f"every process may save cap_least={budget.cap_least:g} retries for the worst moment: take 1"
    if breaker is None:
        return "it goes on calling a server that answers nobody: set breaker=BreakerTerms()"
    return "compare it, setting by setting, with RetryPolicy(), which passes"
