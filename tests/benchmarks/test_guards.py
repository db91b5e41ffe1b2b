"""What a request costs, counted: the limits of the benchmarks that do not depend on how busy the machine is."""

from __future__ import annotations

from typing import Final

from benchmarks.guards import LIMITS, Unit, run_guards

#: WAL and transaction ids are the whole server's: whatever else it does at that moment counts, too. `make bench` looks.
COUNTED: Final[frozenset[Unit]] = frozenset(
    {"round trips", "function calls", "statements", "commits", "hops between threads"}
)


def test_a_request_costs_no_more_than_the_benchmarks_allow() -> None:
    verdicts = [verdict for verdict in run_guards(lambda _: None) if verdict.limit.unit in COUNTED]
    assert len(verdicts) == sum(limit.unit in COUNTED for limit in LIMITS) > 0
    assert [verdict for verdict in verdicts if verdict.broken] == []
