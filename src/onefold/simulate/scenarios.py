"""One run: clients with a policy, a server, and something that goes wrong; the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random

from onefold.policy.ranges import require
from onefold.policy.retry import RetryPolicy
from onefold.simulate.agenda import Agenda
from onefold.simulate.clients import Clients
from onefold.simulate.ledger import Ledger
from onefold.simulate.servers import Coin, ServerTerms, built

WARM_UP_S = 20
"""Long enough for budgets and breakers to have seen a full window of ordinary traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens to a server, in seconds since the beginning."""

    server: ServerTerms = field(default_factory=ServerTerms)
    processes: int = 20
    offered_rps: float = 80.0
    timeout_s: float = 1.0
    """What a client gives each attempt."""
    trouble_s: float = 10.0
    """How long the trouble lasts, which begins after the warm-up."""
    peak_rps: float | None = None
    """The trouble: so many calls; None: the server stands still."""
    after_s: float = 60.0

    def __post_init__(self) -> None:
        require("processes", self.processes, least=1, most=10_000)
        require("offered_rps", self.offered_rps, least=0.001)
        require("timeout_s", self.timeout_s, least=0.001)

    @property
    def over_at(self) -> float:
        """When the trouble is over."""
        return WARM_UP_S + self.trouble_s

    def rps_at(self, now: float) -> float:
        """How many calls are made."""
        troubled = self.peak_rps is not None and WARM_UP_S <= now < self.over_at
        return self.peak_rps if troubled and self.peak_rps is not None else self.offered_rps

    def run(self, policy: RetryPolicy, seed: str) -> Ledger:
        """What it comes to for clients with this policy."""
        agenda, ledger = Agenda(), Ledger(round(self.over_at + self.after_s))
        clients = Clients(
            agenda,
            ledger,
            policy,
            processes=self.processes,
            timeout_s=self.timeout_s,
            rps_at=self.rps_at,
            seed=seed,
        )
        stall = (float(WARM_UP_S), self.over_at) if self.peak_rps is None else (inf, inf)
        clients.begin(built(agenda, ledger, clients, self.server, stall=stall, seed=seed))
        # A little longer than calls arrive, so that the last ones can end.
        agenda.run(ledger.seconds + 2 * self.timeout_s)
        return ledger


def flip(
    policy: RetryPolicy, failure: float, seed: str, *, seconds: int, processes: int = 100, rps_each: float = 10.0
) -> Ledger:
    """Clients whose every attempt fails with the same probability."""
    agenda, ledger = Agenda(), Ledger(seconds)
    rps = processes * rps_each
    clients = Clients(agenda, ledger, policy, processes=processes, timeout_s=1.0, rps_at=lambda _: rps, seed=seed)
    clients.begin(Coin(clients, failure, Random(f"server {seed}")))
    agenda.run(seconds + policy.deadline_s)
    return ledger
