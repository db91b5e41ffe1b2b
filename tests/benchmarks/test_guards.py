"""What a request and an event cost, counted: limits that do not depend on how busy the machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from benchmarks.client.__main__ import GET_STEPS_MOST
from benchmarks.client.loopback import added_steps
from benchmarks.guards import LIMITS, Counts, Unit, run_guards
from benchmarks.messages.local_way import LOCAL_LIMITS, count_local, without_notify
from benchmarks.steps import guards as steps
from benchmarks.steps import handlers
from onefold import AsyncOnefold
from onefold._steps.step_records import StepRecords

#: WAL and transaction ids are the whole server's: whatever else it does at that moment counts, too. `make bench` looks.
COUNTED: Final[frozenset[Unit]] = frozenset(
    {
        "round trips",
        "bytes sent",
        "function calls",
        "instructions",
        "statements",
        "commits",
        "hops between threads",
    }
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


async def _count_steps(postgres_dsn: str, tmp_path: Path) -> Counts:
    place = f"{postgres_dsn}?sslmode=disable"
    file = str(tmp_path / "steps.sqlite3")
    for database in (place, file):
        once = AsyncOnefold(database)
        await once.migrate()
        await once.close()
    await steps.prepare("postgres", place)
    await steps.prepare("sqlite", file)
    counts: Counts = {}
    ways = [name for name in handlers.WAYS if name != "DBOS workflow"]
    await steps.count_postgres(place, urlsplit(postgres_dsn).port or 0, counts, ways=ways)
    await steps.count_sqlite(file, counts)
    return counts


async def test_a_recorded_step_costs_a_commit_and_a_round_trip_more_than_the_bare_handler_at_most(
    postgres_dsn: str, tmp_path: Path
) -> None:
    counts = await _count_steps(postgres_dsn, tmp_path)
    assert [verdict for verdict in steps.judge(counts) if verdict.broken] == []
    for unit in ("round trips", "commits"):
        bare = counts["bare", unit] / 2  # it has two transactions
        assert counts["phase", unit] <= bare
        assert counts["finish", unit] <= bare
        assert counts["call", unit] <= 1


async def test_a_step_that_commits_once_more_is_found(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = StepRecords.commit_call

    async def record_twice(self: StepRecords, *args: Any) -> None:
        await record(self, *args)
        await record(self, *args)

    monkeypatch.setattr(StepRecords, "commit_call", record_twice)
    counts = await _count_steps(postgres_dsn, tmp_path)
    broken = {(verdict.limit.subject, verdict.limit.unit) for verdict in steps.judge(counts) if verdict.broken}
    assert {("call", "round trips"), ("call", "commits"), ("sqlite onefold request", "commits")} <= broken
