"""What a request and an event cost, counted: limits that do not depend on how busy the machine is."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from benchmarks.client.__main__ import GET_STEPS_MOST
from benchmarks.client.loopback import added_steps
from benchmarks.guards import LIMITS, Counts, Unit, run_guards
from benchmarks.messages.local_way import LOCAL_LIMITS, count_local, without_notify
from onefold import AsyncOnefold

#: WAL and transaction ids are the whole server's: whatever else it does at that moment counts, too. `make bench` looks.
COUNTED: Final[frozenset[Unit]] = frozenset(
    {"round trips", "bytes sent", "function calls", "statements", "commits", "hops between threads"}
)


def test_a_request_costs_no_more_than_the_benchmarks_allow() -> None:
    verdicts = [verdict for verdict in run_guards(lambda _: None) if verdict.limit.unit in COUNTED]
    assert len(verdicts) == sum(limit.unit in COUNTED for limit in LIMITS) > 0
    assert [verdict for verdict in verdicts if verdict.broken] == []


def test_a_get_through_the_transport_calls_no_more_functions_than_allowed() -> None:
    assert 0 < added_steps() <= GET_STEPS_MOST


async def test_an_event_over_local_costs_no_more_round_trips_than_allowed_whatever_the_driver(
    postgres_dsn: str,
) -> None:
    once = AsyncOnefold(postgres_dsn)
    await once.migrate()
    await once.close()
    counts: Counts = {}
    with without_notify():
        await count_local(f"{postgres_dsn}?sslmode=disable", urlsplit(postgres_dsn).port or 0, counts)
    limits = {(limit.subject, limit.unit): limit.most for limit in LOCAL_LIMITS}
    assert counts.keys() == limits.keys()
    assert {one: found for one, found in counts.items() if found > limits[one]} == {}
