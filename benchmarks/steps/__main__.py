"""`python -m benchmarks.steps`: what a handler in recorded steps costs beside the bare one of two commits, and DBOS.

See README.md in the folder above for what is measured, and how.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.guards import Application, Counts
from benchmarks.processes import children_cpu_s
from benchmarks.report import aligned, busy, guards_of, machine
from benchmarks.steps.guards import count_postgres, count_sqlite, count_wal, judge, prepare
from benchmarks.steps.handlers import STORES, WAYS
from benchmarks.stores import postgres_place, private_postgres, sqlite_place

#: Payments under way at once, and connections for them.
CALLERS: Final = 8
ROUNDS: Final = 7
SECONDS: Final = 1.0
WARM_UP: Final = 30
BARE: Final = next(iter(WAYS))

_HEAD: Final = ("", "per second", "x bare", "min-max", "app us", "db us", "x by CPU")
_COUNTED: Final = ("round trips", "statements", "commits", "transaction ids", "WAL bytes")


@dataclass(slots=True)
class Measured:
    """A way over all rounds: payments per second, and CPU in microseconds per payment."""

    rates: list[float] = field(default_factory=list)
    app_us: list[float] = field(default_factory=list)
    database_us: list[float] = field(default_factory=list)


async def compare(
    dialect: str, place: str, *, rounds: int, seconds: float, postmaster: int | None
) -> dict[str, Measured]:
    """Every way once in every round, in an order that turns, in this process and on this loop."""
    await prepare(dialect, place)
    names = list(WAYS)
    found = {name: Measured() for name in names}
    keys = count()
    async with AsyncExitStack() as stack:
        apps: dict[str, Application] = {}
        for name in names:
            way = WAYS[name](STORES[dialect](place, CALLERS))
            await stack.enter_async_context(way.runs)
            apps[name] = Application(way.app)
            await _load(apps[name], keys, lambda made: made < WARM_UP)
        for turn in range(rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                await _sample(apps[name], keys, found[name], seconds, postmaster)
    return found


async def _sample(app: Application, keys: count[int], into: Measured, seconds: float, postmaster: int | None) -> None:
    def used() -> tuple[float, float]:
        return time.process_time(), children_cpu_s(postmaster) if postmaster else 0.0

    since, before = time.perf_counter(), used()
    made = await _load(app, keys, lambda _: time.perf_counter() < since + seconds)
    took, after = time.perf_counter() - since, used()
    into.rates.append(made / took)
    into.app_us.append((after[0] - before[0]) / made * 1e6)
    into.database_us.append((after[1] - before[1]) / made * 1e6)


async def _load(app: Application, keys: count[int], goes_on: Callable[[int], bool]) -> int:
    made = 0

    async def call() -> None:
        nonlocal made
        while goes_on(made):
            status = await app.post(b'"step-%d"' % next(keys))
            if status != 201:
                raise SystemExit(f"a payment was answered {status}, so there is nothing to measure")
            made += 1

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return made


def table_of(title: str, found: dict[str, Measured]) -> str:
    bare = found[BARE]
    rows: list[Sequence[str]] = [_HEAD]
    for name, one in found.items():
        ratios = [ours / base for ours, base in zip(one.rates, bare.rates, strict=True)]
        by_cpu = [base / ours for ours, base in zip(one.app_us, bare.app_us, strict=True)]
        rows.append(
            (
                name,
                f"{median(one.rates):,.0f}",
                f"{median(ratios):.2f}",
                f"{min(ratios):.2f}-{max(ratios):.2f}",
                f"{median(one.app_us):.0f}",
                f"{median(one.database_us):.0f}",
                f"{median(by_cpu):.2f}",
            )
        )
    return f"{title}\n{aligned(rows)}"


def counts_of(counts: Counts) -> str:
    """What each handler and each step was counted with, DBOS's too, which has no limits of ours."""
    subjects = list(dict.fromkeys(subject for subject, _ in counts if not subject.startswith("sqlite")))
    rows = [
        (subject, *(f"{counts[subject, unit]:,.2f}" if (subject, unit) in counts else "" for unit in _COUNTED))
        for subject in subjects
    ]
    return f"Counted per payment, and per step of a work\n{aligned([('', *_COUNTED), *rows])}"


def run(*, rounds: int, seconds: float, only: str | None = None) -> int:
    """Measure and print; 1 where a limit is broken."""
    print(f"{machine()}\n{CALLERS} at a time, {rounds} rounds of {seconds:g} s, fsync on, all in one process\n")
    if busy():
        print("This machine is busy with something else: the ratios below are rough, the CPU columns less so.\n")
    counts: Counts = {}
    with private_postgres() as server, tempfile.TemporaryDirectory() as folder:
        if only != "guards":
            places = {"postgres": postgres_place(server), "sqlite": sqlite_place(Path(folder), "timed")}
            titles = {"postgres": "Postgres, asyncpg", "sqlite": "SQLite, synchronous=FULL"}
            for dialect, place in places.items():
                postmaster = server.pid if dialect == "postgres" else None
                found = asyncio.run(compare(dialect, place, rounds=rounds, seconds=seconds, postmaster=postmaster))
                print(table_of(titles[dialect], found), end="\n\n", flush=True)
        asyncio.run(_count(postgres_place(server), server.port, sqlite_place(Path(folder), "counted"), counts))
    verdicts = judge(counts)
    print(counts_of(counts), guards_of(verdicts), sep="\n\n")
    return int(any(verdict.broken for verdict in verdicts))


async def _count(postgres: str, port: int, sqlite: str, counts: Counts) -> None:
    await prepare("postgres", postgres)
    await prepare("sqlite", sqlite)
    await count_postgres(postgres, port, counts)
    await count_wal(postgres, counts)
    await count_sqlite(sqlite, counts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.steps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds per comparison")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="measured seconds per handler and round")
    parser.add_argument("--only", choices=("guards",), help="only what is counted")
    told = parser.parse_args()
    return run(rounds=told.rounds, seconds=told.seconds, only=told.only)


if __name__ == "__main__":
    sys.exit(main())
