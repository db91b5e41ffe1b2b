"""Four processes storm a bank that is down for a while: it is asked no more than budgets and breakers allow, and
everything is paid once when it is back.

A planted mistake must be seen: clients that retry without a budget and a breaker break the law.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from onefold import RetryPolicy
from onefold.clients import BreakerConfig, BudgetConfig
from onefold.testing.fault_proxy import HOST, FaultProxy
from tests.client.chaos.bank import open_bank
from tests.client.chaos.customers import Account, Assignment, accounts, customers, serve_unnoted, together
from tests.client.chaos.ledger_checks import make_bank, make_journal, wrong_entries, wrong_payments

PROCESSES = 4
CONCURRENCY = 8
INTENTS = [f"pay:ord-{number}" for number in range(160)]
OUTAGE_S = 2.0
WITHIN_S = 120.0

#: The standard terms, but for a breaker that stays open for a second at most: the test is short, too.
POLICY = RetryPolicy(breaker=BreakerConfig(open_s=1.0, open_max_s=1.0))
CARELESS = RetryPolicy(budget=None, breaker=None)


class Storm(NamedTuple):
    """What happened: how often the dead server was asked, for how long it was dead, and what the customers tell."""

    asked: int
    dead_s: float
    told: list[Account]


@pytest.fixture
def bank(tmp_path: Path) -> str:
    return make_bank(str(tmp_path / "bank.db"))


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return make_journal(str(tmp_path / "journal.db"))


def storm(bank: str, journal: str, policy: RetryPolicy, *, storms: bool = False) -> Storm:
    """The bank is dead from the first call on, and comes back; where its clients storm, once they were seen to."""
    with open_bank(bank) as server, FaultProxy(HOST, server.port) as proxy:
        proxy.switch("reset")
        assignments = [
            Assignment(
                url=f"http://{HOST}:{proxy.address[1]}",
                journal=journal,
                intents=INTENTS[first::PROCESSES],
                concurrency=CONCURRENCY,
                timeout_s=10.0,
                policy=policy,
            )
            for first in range(PROCESSES)
        ]
        began = time.monotonic()
        with customers(assignments) as children:
            while proxy.traffic.connections == 0:
                assert time.monotonic() - began < WITHIN_S, "nobody called"
                time.sleep(0.01)
            time.sleep(OUTAGE_S)
            dead_s, asked = time.monotonic() - began, proxy.traffic.connections
            while storms and asked <= asked_max(dead_s) and dead_s < WITHIN_S / 2:  # on a slow machine it takes longer
                time.sleep(0.1)
                dead_s, asked = time.monotonic() - began, proxy.traffic.connections
            proxy.heal()
            found = Storm(asked, dead_s, accounts(children, WITHIN_S))
        serve_unnoted(assignments[0].url, journal)
    whole = together(found.told)
    print(
        f"dead for {dead_s:.1f} s and asked {asked} times, at most {asked_max(dead_s)}; in all {whole.attempts} "
        f"attempts of {whole.calls} calls, {whole.successes} successes, stops {dict(whole.stops)}",
        file=sys.stderr,
    )
    return found


def asked_max(dead_s: float) -> int:
    """What a breaker lets through to a dead server: what it takes to open it, what was under way by then with the
    retries that a quiet client has, and its probes, each time that it has been open for half of its open time."""
    terms, budget = POLICY.breaker, POLICY.budget
    assert terms is not None
    assert isinstance(budget, BudgetConfig)
    spells = int(dead_s / (terms.open_s / 2)) + 1
    return PROCESSES * (terms.calls_least + CONCURRENCY + int(budget.cap_least) + spells * terms.probes)


def overspent(told: list[Account]) -> list[str]:
    """Processes that made more retries in vain than they had earned: all those of calls that used up their attempts. A
    success after a silence earns up to a whole one, which happens a few times here."""
    terms, silences = POLICY.budget, 5
    assert isinstance(terms, BudgetConfig)
    return [
        f"{in_vain} retries in vain after {account.successes} successes"
        for account in told
        if (in_vain := (POLICY.attempts_max - 1) * account.stops["attempts"])
        > terms.cap_least + terms.ratio * account.successes + silences
    ]


def test_a_dead_server_is_asked_seldom_and_everything_is_paid_once_when_it_is_back(bank: str, journal: str) -> None:
    found = storm(bank, journal, POLICY)
    assert 0 < found.asked <= asked_max(found.dead_s)
    assert overspent(found.told) == []
    whole = together(found.told)
    assert whole.answers.keys() == set(INTENTS)
    assert wrong_payments(bank, INTENTS) == []
    assert wrong_entries(journal, whole.keys) == []


def test_control_clients_without_budget_and_breaker_are_seen_to_storm(bank: str, journal: str) -> None:
    found = storm(bank, journal, CARELESS, storms=True)
    assert found.asked > asked_max(found.dead_s)
    assert overspent(found.told) != []
    assert wrong_payments(bank, INTENTS) == []  # keys they have
