"""Fixed retries never recover from a stall, the default policy does; and the judge tells them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onefold.policy.breaker import BreakerTerms
from onefold.policy.budget import BudgetTerms
from onefold.policy.retry import RetryPolicy
from onefold.simulate import experiments
from onefold.simulate.entrants import BUCKET, BUDGET, DEFAULT, FIXED, NO_RETRIES, STANDARD, Entrant
from onefold.simulate.experiments import (
    DEADLINES,
    DEARER,
    FIFO,
    PROCESSES,
    SERVERS,
    SHEDDING_DEADLINES,
    Effort,
    Storm,
    overload,
    stall,
)
from onefold.simulate.judgement import Verdict, judge
from onefold.simulate.servers import ServerTerms

SHORT = Effort(failures_s=1, seeds=1, after_stall_s=40, servers=(FIFO,))
LONG = replace(experiments.FULL, seeds=20, after_stall_s=60)


@pytest.mark.parametrize("processes", PROCESSES)
def test_the_default_recovers_within_fifteen_seconds(processes: int) -> None:
    cell = stall(DEFAULT, FIFO, processes, 1, replace(SHORT, seeds=3))
    assert cell.recovery_s is not None
    assert cell.recovery_s <= 15
    assert cell.amplification < 1.1


@pytest.mark.soak
@pytest.mark.parametrize("processes", PROCESSES)
def test_the_default_recovers_within_fifteen_seconds_with_many_seeds(processes: int) -> None:
    cell = stall(DEFAULT, FIFO, processes, 2, LONG)
    assert cell.recovery_s is not None
    assert cell.recovery_s <= 15


@pytest.mark.parametrize("processes", PROCESSES)
def test_three_fixed_retries_do_not_recover(processes: int) -> None:
    cell = stall(FIXED, FIFO, processes, 1, SHORT)
    assert cell.recovery_s is None
    assert cell.after_rps < 1
    assert cell.amplification > 3
    assert cell.wasted > 0.95


@pytest.mark.soak
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_the_default_recovers_on_every_server(server: ServerTerms) -> None:
    cell = stall(DEFAULT, server, 20, 3, LONG)
    assert cell.recovery_s is not None
    assert cell.recovery_s <= 15
    assert overload(DEFAULT, server, 3).after_rps > 70


def test_dropping_what_nobody_waits_for_ends_the_stall_of_those_who_do_not_storm() -> None:
    assert stall(NO_RETRIES, DEADLINES, 20, 1, SHORT).recovery_s == 0
    assert stall(FIXED, DEADLINES, 20, 1, SHORT).recovery_s is None


def test_refusals_that_cost_much_do_not_save_a_server_from_fixed_retries() -> None:
    assert overload(FIXED, DEARER, 1).after_rps < 10
    assert overload(DEFAULT, DEARER, 1).after_rps > 70


def test_a_server_that_sheds_works_on_during_an_overload() -> None:
    assert overload(NO_RETRIES, SHEDDING_DEADLINES, 1).during_rps > 60
    assert overload(NO_RETRIES, FIFO, 1).during_rps < 20


def judged(policy: RetryPolicy, processes: int = 20, after_stall_s: int = 66) -> Verdict:
    """The verdict on the stall alone: one run."""
    entrant = Entrant(name="mine", policy=policy)
    effort = replace(SHORT, after_stall_s=after_stall_s)
    cell = stall(entrant, FIFO, processes, 1, effort)
    return judge(entrant, Storm(seed=1, effort=effort, failures=(), stalls=(cell,), overloads=()))


@pytest.mark.parametrize("entrant", [NO_RETRIES, BUDGET, DEFAULT], ids=lambda entrant: entrant.name)
def test_the_judge_passes_what_recovers(entrant: Entrant) -> None:
    assert not judged(entrant.policy).metastable


@pytest.mark.parametrize(
    ("policy", "processes", "advice"),
    [
        pytest.param(FIXED.policy, 1, "set budget=BudgetTerms()", id="no budget"),
        pytest.param(
            RetryPolicy(budget=BudgetTerms(ratio=1, cap_most=1000), breaker=None), 1, "ratio=1", id="generous"
        ),
        pytest.param(BUCKET.policy, 100, "cap_least=10", id="much saved by many"),
        pytest.param(
            RetryPolicy(breaker=BreakerTerms(open_s=600, open_max_s=600)), 1, "open_max_s=600", id="locked out"
        ),
    ],
)
def test_the_judge_finds_what_keeps_a_server_down_and_says_what_to_change(
    policy: RetryPolicy, processes: int, advice: str
) -> None:
    verdict = judged(policy, processes)
    assert verdict.metastable
    [finding] = verdict.findings
    assert (finding.experiment, finding.server, finding.processes) == ("stall", "FIFO", processes)
    assert advice in finding.advice
    assert f"{processes} process" in str(finding)


def test_the_judge_compares_an_overload_with_clients_without_retries() -> None:
    cells = [overload(entrant, DEARER, 1) for entrant in (NO_RETRIES, FIXED, DEFAULT)]
    storm = Storm(seed=1, effort=SHORT, failures=(), stalls=(), overloads=cells)
    [finding] = judge(FIXED, storm).findings
    assert finding.experiment == "overload"
    assert "without retries it is" in finding.what
    assert not judge(DEFAULT, storm).metastable


def test_a_cell_comes_out_the_same_whatever_is_run_beside_it() -> None:
    effort = Effort(failures_s=1, seeds=1, after_stall_s=10, servers=(FIFO,))
    told: list[tuple[int, int, str]] = []
    storm = experiments.run((NO_RETRIES, DEFAULT), 5, effort, lambda *what: told.append(what))
    assert experiments.stall(DEFAULT, FIFO, 20, 5, effort) in storm.stalls
    assert [done for done, _, _ in told] == list(range(len(told)))
    assert {entrant.name for entrant in STANDARD} >= {cell.policy for cell in storm.failures}
