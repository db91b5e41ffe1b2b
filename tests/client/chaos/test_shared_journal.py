"""Processes that share a journal and serve the same intents at the same time, each in an order of its own.

A planted mistake must be seen: processes that keep a journal each have keys of their own, and pay as often.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.client.chaos.bank import open_bank
from tests.client.chaos.customers import Account, Assignment, accounts, customers, serve_unnoted
from tests.client.chaos.ledger_checks import journalled, make_bank, make_journal, paid, wrong_entries, wrong_payments

#: Two processes work at the same intent at the same moment as often among few as among many: how likely an intent is to
#: meet so is what each has under way, by the number of intents.
INTENTS = [f"pay:ord-{number}" for number in range(80)]
WITHIN_S = 120.0


@pytest.fixture
def bank(postgres_dsn: str) -> str:
    return make_bank(postgres_dsn)


@pytest.fixture
def journal(request: pytest.FixtureRequest, tmp_path: Path, bank: str) -> str:
    """On Postgres it is in the bank's own database, which has its table already."""
    return bank if request.param == "postgres" else make_journal(str(tmp_path / "journal.db"))


def served(bank: str, journals: list[str]) -> list[Account]:
    """What each of the processes has to tell; one for every journal named."""
    with open_bank(bank) as server:
        assignments = [
            Assignment(
                url=server.url,
                journal=journal,
                intents=random.Random(number).sample(INTENTS, len(INTENTS)),
                concurrency=8,
                timeout_s=10.0,
            )
            for number, journal in enumerate(journals)
        ]
        with customers(assignments) as children:
            told = accounts(children, WITHIN_S)
        for journal in set(journals):
            serve_unnoted(server.url, journal)
        return told


@pytest.mark.parametrize(
    ("journal", "processes"),
    [
        ("sqlite", 4),
        ("postgres", 2),
        *(pytest.param(*other, marks=pytest.mark.soak) for other in (("sqlite", 2), ("postgres", 4))),
    ],
    indirect=["journal"],
)
def test_processes_that_serve_the_same_intents_at_once_pay_each_of_them_once(
    bank: str, journal: str, processes: int
) -> None:
    told = served(bank, [journal] * processes)
    assert wrong_payments(bank, INTENTS) == []
    assert wrong_entries(journal, told[0].keys) == []
    first = told[0]
    assert first.answers.keys() == set(INTENTS)
    for account in told[1:]:
        assert account.answers == first.answers
        assert account.keys == first.keys
    assert sum(account.replayed for account in told) == (processes - 1) * len(INTENTS)
    # Every process has claimed every intent, at the least.
    assert all(tries >= processes for _, _, _, tries in journalled(journal))


def test_control_processes_with_a_journal_each_are_seen_to_pay_twice(bank: str, tmp_path: Path) -> None:
    told = served(bank, [make_journal(str(tmp_path / f"journal-{number}.db")) for number in range(2)])
    assert set(paid(bank).values()) == {2}
    assert set(told[0].keys.values()).isdisjoint(told[1].keys.values())
