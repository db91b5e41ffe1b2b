"""Fixed retries never recover from a stall, the default policy does; and the judge tells them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onefold._policy.breaker import BreakerConfig
from onefold._policy.budget import BudgetConfig
from onefold._policy.retry import RetryPolicy
from onefold._simulate import experiments
from onefold._simulate.entrants import (
    AWS,
    BUDGET,
    DEFAULT,
    ENVOY,
    FINAGLE,
    FIXED,
    GRPC,
    NO_RETRIES,
    STANDARD,
    Entrant,
)
from onefold._simulate.experiments import (
    DEADLINES,
    DEARER,
    FIFO,
    PROCESSES,
    RATES_RPS,
    SERVERS,
    SHEDDING_DEADLINES,
    Effort,
    Storm,
    failures,
    overload,
    stall,
)
from onefold._simulate.servers import ServerConfig
from onefold._simulate.verdicts import PolicyVerdict, judge

SHORT = Effort(failing_calls=1000, seeds=1, after_stall_s=40, servers=(FIFO,))
LONG = replace(experiments.FULL, seeds=20, after_stall_s=60)


#: How long after a stall of ten seconds, by the number of processes that the same traffic is spread over. Clients
#: without retries need 40 s: with 400 processes, each has too few calls for its breaker to notice.
RECOVERY_S = {1: 15, 20: 15, 100: 20, 400: 42}


@pytest.mark.parametrize("processes", PROCESSES)
def test_the_default_recovers_soon(processes: int) -> None:
    cell = stall(DEFAULT, FIFO, processes, 1, replace(SHORT, after_stall_s=70))
    assert cell.recovery_s is not None
    assert cell.recovery_s <= RECOVERY_S[processes]
    assert cell.amplification < (2 if processes == 400 else 1.4)


@pytest.mark.soak
@pytest.mark.parametrize("processes", PROCESSES)
def test_the_default_recovers_soon_with_many_seeds(processes: int) -> None:
    cell = stall(DEFAULT, FIFO, processes, 2, LONG)
    assert cell.recovery_s is not None
    assert cell.recovery_s <= RECOVERY_S[processes]


@pytest.mark.parametrize(("failure", "success"), [(1 / 3, 0.97), (0.5, 0.88)])
def test_a_quiet_process_gets_its_retries_for_as_long_as_it_lasts(failure: float, success: float) -> None:
    effort = replace(SHORT, failing_calls=8000)
    found = {entrant: failures(entrant, failure, 0.4, 1, effort) for entrant in (NO_RETRIES, DEFAULT)}
    assert found[DEFAULT].success >= success
    assert found[NO_RETRIES].success == pytest.approx(1 - failure, abs=0.03)


@pytest.mark.parametrize("rival", [AWS, GRPC, FINAGLE, ENVOY], ids=lambda entrant: entrant.name)
def test_no_other_budget_is_back_as_soon_after_a_stall(rival: Entrant) -> None:
    effort = replace(SHORT, after_stall_s=45)
    own, theirs = (stall(entrant, FIFO, 20, 1, effort).recovery_s for entrant in (DEFAULT, rival))
    assert own is not None
    assert theirs is None or theirs > 2 * own


@pytest.mark.soak
@pytest.mark.parametrize("failure", [1 / 3, 0.5])
@pytest.mark.parametrize("rps", RATES_RPS)
def test_the_tables_are_steady_to_one_percent(failure: float, rps: float) -> None:
    once, longer = (
        failures(DEFAULT, failure, rps, 1, replace(experiments.FULL, failing_calls=calls)).success
        for calls in (experiments.FULL.failing_calls, 3 * experiments.FULL.failing_calls)
    )
    assert once == pytest.approx(longer, abs=0.01)


@pytest.mark.parametrize("processes", PROCESSES)
def test_three_fixed_retries_do_not_recover(processes: int) -> None:
    cell = stall(FIXED, FIFO, processes, 1, SHORT)
    assert cell.recovery_s is None
    assert cell.after_rps < 1
    assert cell.amplification > 3
    assert cell.wasted > 0.95


@pytest.mark.soak
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_the_default_recovers_on_every_server(server: ServerConfig) -> None:
    cell = stall(DEFAULT, server, 20, 3, LONG)
    assert cell.recovery_s is not None
    assert cell.recovery_s <= 20
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


def judged(policy: RetryPolicy, processes: int = 20, after_stall_s: int = 66) -> PolicyVerdict:
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
        pytest.param(FIXED.policy, 1, "set budget=BudgetConfig()", id="no budget"),
        pytest.param(
            RetryPolicy(budget=BudgetConfig(ratio=1, cap_least=1000, cap_most=1000), breaker=None),
            20,
            "ratio=1",
            id="generous",
        ),
        pytest.param(
            RetryPolicy(budget=BudgetConfig(cap_least=100, cap_most=100), breaker=None),
            100,
            "cap_least=100",
            id="much saved by many",
        ),
        pytest.param(
            RetryPolicy(breaker=BreakerConfig(open_s=600, open_max_s=600)), 1, "open_max_s=600", id="locked out"
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


def failing(*entrants: Entrant) -> Storm:
    """The failures alone."""
    effort = replace(SHORT, failing_calls=4000)
    cells = [failures(entrant, failure, 0.4, 1, effort) for entrant in entrants for failure in (0.01, 0.5)]
    return Storm(seed=1, effort=effort, failures=cells, stalls=(), overloads=())


def test_the_judge_finds_a_breaker_that_is_worse_than_no_retries_at_all() -> None:
    hasty = Entrant(name="hasty", policy=RetryPolicy(breaker=BreakerConfig(calls_least=1, failure_share=0.01)))
    verdict = judge(hasty, failing(NO_RETRIES, hasty))
    assert not verdict.passes
    assert not verdict.metastable
    [finding] = verdict.findings
    assert (finding.experiment, finding.processes) == ("failures", None)
    assert "failures (50% of the attempts, 0.4 calls/s per process)" in finding.what
    assert "raise failure_share=0.01 or calls_least=1" in finding.advice


def test_the_judge_passes_what_is_better_than_no_retries_and_what_is_none() -> None:
    storm = failing(NO_RETRIES, DEFAULT, FIXED)
    assert all(judge(entrant, storm).passes for entrant in (NO_RETRIES, DEFAULT, FIXED))


def test_the_judge_compares_an_overload_with_clients_without_retries() -> None:
    cells = [overload(entrant, DEARER, 1) for entrant in (NO_RETRIES, FIXED, DEFAULT)]
    storm = Storm(seed=1, effort=SHORT, failures=(), stalls=(), overloads=cells)
    [finding] = judge(FIXED, storm).findings
    assert finding.experiment == "overload"
    assert "without retries it is" in finding.what
    assert not judge(DEFAULT, storm).metastable


def test_a_cell_comes_out_the_same_whatever_is_run_beside_it() -> None:
    effort = Effort(failing_calls=100, seeds=1, after_stall_s=10, servers=(FIFO,))
    told: list[tuple[int, int, str]] = []
    storm = experiments.run((NO_RETRIES, DEFAULT), 5, effort, lambda *what: told.append(what))
    assert experiments.stall(DEFAULT, FIFO, 20, 5, effort) in storm.stalls
    assert [done for done, _, _ in told] == list(range(len(told)))
    assert {entrant.name for entrant in STANDARD} >= {cell.policy for cell in storm.failures}
