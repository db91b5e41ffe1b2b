"""Thousands of intents through a network that cuts, resets, delays and swallows: as many rows, ten thousand in a soak.

Two planted mistakes must be found by the same campaign: a new key for every try, and no keys at all.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from onefold import RetryPolicy
from onefold.testing.fault_proxy import HOST, FaultProxy
from onefold.testing.servers import PrivatePostgres
from tests.client.chaos.bank import open_bank
from tests.client.chaos.customers import Account, Assignment, Keys, accounts, customers, serve_unnoted, together
from tests.client.chaos.faults import inject_faults
from tests.client.chaos.ledger_checks import make_bank, make_journal, wrong_entries, wrong_payments

PROCESSES = 2
TIMEOUT_S = 0.3  # shorter than a black hole lasts
PAUSE_S = 0.05  # between faults
WITHIN_S = 500.0


class Campaign:
    """Customers, a bad network and a bank; then the ledger."""

    def __init__(self, bank: str, journal: str, count: int, *, keys: Keys = "intents") -> None:
        self.bank, self.journal, self.keys = bank, journal, keys
        self.intents = [f"pay:ord-{number}" for number in range(count)]
        self.account = Account()

    def run(self, seed: int) -> None:
        began = time.monotonic()
        required = "optional" if self.keys == "none" else "required"
        with open_bank(self.bank, required) as bank, FaultProxy(HOST, bank.port) as proxy:
            url = f"http://{HOST}:{proxy.address[1]}"
            assignments = [
                Assignment(
                    url=url,
                    journal=self.journal,
                    intents=self.intents[first::PROCESSES],
                    keys=self.keys,
                    timeout_s=TIMEOUT_S,
                    # A campaign of few intents has few successes, and its first black hole would open a breaker.
                    policy=RetryPolicy() if len(self.intents) >= 1000 else RetryPolicy(breaker=None),
                )
                for first in range(PROCESSES)
            ]
            with customers(assignments) as children, inject_faults(proxy, seed, PAUSE_S) as faults:
                self.account = together(accounts(children, WITHIN_S))
            self.account.add(serve_unnoted(url, self.journal))
            print(
                f"{len(self.intents)} intents in {time.monotonic() - began:.1f} s: {self.account.attempts} attempts, "
                f"{self.account.again} tries again, {self.account.replayed} replays, felt {dict(self.account.faults)}, "
                f"stops {dict(self.account.stops)}, "
                f"injected {dict(faults.done)}, cuts {proxy.traffic.cuts}, bank {bank.figures()}",
                file=sys.stderr,
            )

    def wrong(self) -> list[str]:
        found = wrong_payments(self.bank, self.intents)
        return found + (wrong_entries(self.journal, self.account.keys) if self.keys == "intents" else [])

    def is_one_row_per_intent(self) -> None:
        account = self.account
        assert self.wrong() == []
        assert len(account.answers) == len(self.intents) == len(set(account.keys.values()))
        # A campaign without faults has tested nothing.
        felt = sum(account.faults.values())
        assert felt >= len(self.intents) / 50, account.faults
        assert account.faults["ReadTimeout"] > 0
        assert account.replayed >= len(self.intents) / 500
        assert account.attempts >= len(self.intents) + felt


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a bank's database."""
    if request.param == "sqlite":
        return make_bank(str(tmp_path / "bank.db"))
    server: PrivatePostgres = request.getfixturevalue("postgres")
    return make_bank(server.fresh_database())


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return make_journal(str(tmp_path / "journal.db"))


@pytest.mark.parametrize(("bank", "count"), [("sqlite", 250), ("postgres", 1_000)], indirect=["bank"])
def test_every_intent_is_one_row_whatever_the_network_does(bank: str, journal: str, count: int) -> None:
    campaign = Campaign(bank, journal, count)
    campaign.run(seed=1)
    campaign.is_one_row_per_intent()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_thousand_intents_are_ten_thousand_rows(bank: str, journal: str, seed: int) -> None:
    campaign = Campaign(bank, journal, 10_000)
    campaign.run(seed=seed)
    campaign.is_one_row_per_intent()


@pytest.mark.parametrize("keys", ["fresh", "none"])
@pytest.mark.parametrize("bank", ["postgres"], indirect=True)
def test_control_keys_that_do_not_outlive_a_try_are_seen_to_pay_twice(bank: str, journal: str, keys: Keys) -> None:
    campaign = Campaign(bank, journal, 200, keys=keys)
    campaign.run(seed=4)
    wrong = campaign.wrong()
    assert wrong
    assert all("was paid" in each and " 0 times" not in each for each in wrong)
