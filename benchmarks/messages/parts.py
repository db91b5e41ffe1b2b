"""The parts of this bench, how much of each is measured, and running them on one Postgres and one NATS."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.messages import catching_up, claims, consumers, guards, latency, publishing, relay, wakeups, writers
from benchmarks.messages.comparison import Effort, Grounds, Outcome, Say
from benchmarks.messages.servers import BenchNats
from benchmarks.report import busy, machine
from benchmarks.stores import private_postgres

Measure: TypeAlias = Callable[[Grounds], Awaitable[Outcome | list[Outcome]]]

PARTS: Final[dict[str, Measure]] = {
    "relay": relay.measure,
    "publishing": publishing.measure,
    "latency": latency.measure,
    "wakeups": wakeups.measure,
    "writers": writers.measure,
    "consumers": consumers.measure,
    "catching_up": catching_up.measure,
    "claims": claims.measure,
    "guards": guards.measure,
}

THOROUGH: Final = Effort(
    rounds=7,
    backlog=10_000,
    one_by_one=1_000,
    events=30,
    polled_events=6,
    seconds=1.0,
    messages=4_000,
    kept=(10_000, 1_000_000),
)
QUICK: Final = Effort(
    rounds=3,
    backlog=2_000,
    one_by_one=300,
    events=20,
    polled_events=4,
    seconds=0.4,
    messages=1_000,
    kept=(10_000, 100_000),
)


def with_large(effort: Effort) -> Effort:
    return replace(effort, kept=(*effort.kept, 5_000_000))


def run(only: Sequence[str], effort: Effort, *, rounds: int | None, json_file: str | None, floors: bool) -> int:
    """Measure and print; the exit code."""
    effort = effort if rounds is None else replace(effort, rounds=rounds)
    syncs = "syncs always" if effort.synced else "syncs as it comes, now and then"
    print(f"{machine()}\n{effort.rounds} rounds, PostgreSQL 18 with fsync on, NATS JetStream that {syncs}\n")
    if busy():
        print("This machine is busy with something else: the ratios below are rough.\n")
    started = time.monotonic()
    found = measured(only, effort, progress)
    if json_file:
        Path(json_file).write_text(json.dumps(as_json(effort, found), indent=1) + "\n")
    print(f"{time.monotonic() - started:.0f} s; {machine()}")
    return exit_code(found, floors=floors)


def measured(only: Sequence[str], effort: Effort, say: Say) -> dict[str, list[Outcome]]:
    """What each part found, printed as soon as it is there."""
    found: dict[str, list[Outcome]] = {}
    with private_postgres() as postgres, BenchNats(synced=effort.synced) as nats:
        grounds = Grounds(postgres=postgres, nats=nats, effort=effort, say=say)
        for name in only:
            outcomes = asyncio.run(_measured(PARTS[name], grounds))
            found[name] = outcomes
            for outcome in outcomes:
                print(outcome.text, end="\n\n", flush=True)
    return found


def as_json(effort: Effort, found: dict[str, list[Outcome]]) -> dict[str, Any]:
    parts = {name: [outcome.data for outcome in outcomes] for name, outcomes in found.items()}
    return {"machine": machine(), "effort": asdict(effort), "parts": parts}


def exit_code(found: dict[str, list[Outcome]], *, floors: bool) -> int:
    """1 where a guard is broken, or a floor or ceiling is not held; what it is, on standard error."""
    outcomes = [outcome for some in found.values() for outcome in some]
    missed = [line for outcome in outcomes for line in outcome.missed]
    broken = [
        f"{verdict.limit.subject}: {verdict.found} {verdict.limit.unit}, at most {verdict.limit.most:g}"
        for outcome in outcomes
        for verdict in outcome.verdicts
        if verdict.broken
    ]
    for line in (*missed, *broken):
        print(line, file=sys.stderr)
    return 1 if broken or (missed and floors) else 0


def progress(line: str) -> None:
    """On a terminal only, and on one line: what is going on."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line} ...\r", end="", file=sys.stderr, flush=True)


async def _measured(measure: Measure, grounds: Grounds) -> list[Outcome]:
    outcomes = await measure(grounds)
    return outcomes if isinstance(outcomes, list) else [outcomes]
