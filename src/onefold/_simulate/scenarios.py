"""One run: clients with a policy, a server, and something that goes wrong; the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random

from onefold._policy.ranges import require
from onefold._policy.retry import RetryPolicy
from onefold._simulate.client_processes import Clients
from onefold._simulate.counters import Counters
from onefold._simulate.event_queue import EventQueue
from onefold._simulate.servers import CoinFlipServer, ServerConfig, build_server

WARM_UP_S = 20
"""Long enough for budgets and breakers to have seen a full window of ordinary traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerScenario:
    """What happens to a server, in seconds since the beginning."""

    server: ServerConfig = field(default_factory=ServerConfig)
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

    def run(self, policy: RetryPolicy, seed: str) -> Counters:
        """What it comes to for clients with this policy."""
        events, counters = EventQueue(), Counters(round(self.over_at + self.after_s))
        clients = Clients(
            events,
            counters,
            policy,
            processes=self.processes,
            timeout_s=self.timeout_s,
            rps_at=self.rps_at,
            seed=seed,
        )
        stall = (float(WARM_UP_S), self.over_at) if self.peak_rps is None else (inf, inf)
        clients.begin(build_server(events, counters, clients, self.server, stall=stall, seed=seed))
        # A little longer than calls arrive, so that the last ones can end.
        events.run(counters.seconds + 2 * self.timeout_s)
        return counters


def flip(
    policy: RetryPolicy, failure: float, seed: str, *, seconds: int, processes: int = 100, rps_each: float = 10.0
) -> Counters:
    """Clients whose every attempt fails with the same probability."""
    events, counters = EventQueue(), Counters(seconds)
    rps = processes * rps_each
    clients = Clients(events, counters, policy, processes=processes, timeout_s=1.0, rps_at=lambda _: rps, seed=seed)
    clients.begin(CoinFlipServer(clients, failure, Random(f"server {seed}")))
    events.run(seconds + policy.deadline_s)
    return counters
