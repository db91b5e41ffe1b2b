"""`make bench`: what onefold costs beside the same application without it; fails when it costs more than it may.

See README.md in this folder for what is measured, and why as ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks import metrics_cost
from benchmarks.applications import VALKEY
from benchmarks.client.__main__ import run as run_client
from benchmarks.guards import Verdict, run_guards
from benchmarks.messages import parts as messages
from benchmarks.messages.comparison import Outcome
from benchmarks.natural import run as run_natural
from benchmarks.processes import a_core_to_itself
from benchmarks.report import as_json, busy, guards_of, machine, table_of
from benchmarks.rounds import CONNECTIONS, Effort, Keys, Measured, Variant, compare
from benchmarks.steps.__main__ import run as run_steps
from benchmarks.stores import cache_server, postgres_place, private_postgres, sqlite_place

#: Pools as large as asyncpg makes them when it is not told otherwise.
POOL_SIZE: Final = 10

THOROUGH: Final = Effort(rounds=7, seconds=2.0, warmup_s=0.3, pool_size=POOL_SIZE)
QUICK: Final = Effort(rounds=3, seconds=0.4, warmup_s=0.1, pool_size=POOL_SIZE)
NOOP: Final = Variant(name="noop", application="noop", stores=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One table of the report."""

    title: str
    variants: tuple[Variant, ...]


COMPARISONS: Final = {
    "pg": Comparison(
        title="Postgres, asyncpg",
        variants=(
            Variant(name="bare", application="asyncpg_bare"),
            Variant(name="onefold first", application="asyncpg_onefold", floor=0.8),
            Variant(name="with metrics", application="asyncpg_measured"),
            Variant(name="onefold replay", application="asyncpg_onefold", keys="repeated", floor=1.3),
            Variant(name="textbook", application="asyncpg_textbook"),
            NOOP,
        ),
    ),
    "psycopg": Comparison(
        title="Postgres, psycopg",
        variants=(
            Variant(name="bare", application="psycopg_bare"),
            Variant(name="onefold first", application="psycopg_onefold"),
            Variant(name="onefold replay", application="psycopg_onefold", keys="repeated"),
        ),
    ),
    "sqlite": Comparison(
        title="SQLite, synchronous=FULL",
        variants=(
            Variant(name="bare", application="sqlite_bare"),
            Variant(name="onefold first", application="sqlite_onefold"),
            Variant(name="onefold replay", application="sqlite_onefold", keys="repeated"),
        ),
    ),
}


def _ways(driver: str) -> Comparison:
    """What the driver's private names win: each variant beside the same one by the public API."""
    application = f"{driver}_onefold"
    by_keys: dict[str, Keys] = {"first": "fresh", "replay": "repeated"}
    return Comparison(
        title=f"{driver} by its private names, beside its public API",
        variants=tuple(
            Variant(name=f"{name}, {way}", application=application, keys=keys, public=public, beside=f"{name}, public")
            for name, keys in by_keys.items()
            for way, public in (("public", True), ("private", False))
        ),
    )


def _caches(driver: str, title: str) -> Comparison:
    """What an answer cache wins for retries, and costs first requests: each beside the same without one."""
    by_keys: dict[str, Keys] = {"first": "fresh", "replay": "repeated"}
    return Comparison(
        title=f"{title}: with an answer cache, beside the same without",
        variants=tuple(
            Variant(
                name=f"{name}{how and ', '}{how}", application=f"{driver}_{how or 'onefold'}", keys=keys, beside=name
            )
            for name, keys in by_keys.items()
            for how in ("", "memory", "valkey")
        ),
    )


#: Only where they are asked for.
WAYS: Final = {
    **{f"ways-{driver}": _ways(driver) for driver in ("asyncpg", "psycopg")},
    "cache-pg": _caches("asyncpg", "Postgres, asyncpg"),
    "cache-sqlite": _caches("sqlite", "SQLite, synchronous=FULL"),
}


#: The parts of `make bench` besides the tables.
PARTS: Final = ("guards", "metrics", "steps", "natural", "client", "messages")


def main() -> int:
    told = _told()
    effort = _effort(told)
    print(f"{machine()}\n{CONNECTIONS} connections, {effort.rounds} rounds of {effort.seconds:g} s, pools of "
          f"{effort.pool_size}, fsync on, one uvicorn worker\n")  # fmt: skip
    if busy():
        print("This machine is busy with something else: the ratios below are rough, the CPU columns less so.\n")
    started = time.monotonic()
    tables: dict[str, list[Measured]] = {}
    verdicts: list[Verdict] = []
    found: dict[str, list[Outcome]] = {}
    usual = messages.QUICK if told.quick else messages.THOROUGH
    messages_effort = replace(usual, rounds=told.rounds or usual.rounds)
    client_code = steps_code = natural_code = 0
    costs: list[metrics_cost.Cost] = []
    for part in [told.only] if told.only else [*COMPARISONS, *PARTS]:
        if part == "guards":
            verdicts = run_guards(_progress)
            print(guards_of(verdicts), end="\n\n")
        elif part == "metrics":
            costs = metrics_cost.run(metrics_cost.ROUNDS_QUICK if told.quick else metrics_cost.ROUNDS, _progress)
            print(metrics_cost.table_of(costs), end="\n\n")
        elif part == "steps":
            steps_code = run_steps(rounds=effort.rounds, seconds=min(effort.seconds, 1.0))
            print()
        elif part == "natural":
            natural_code = run_natural()
            print()
        elif part == "client":
            client_code = run_client(quick=told.quick, json_file=None, floors=not told.no_floors)
            print()
        elif part == "messages":
            found = messages.measured(list(messages.PARTS), messages_effort, _progress)
        else:
            comparison = {**COMPARISONS, **WAYS}[part]
            tables[part] = _run(comparison, effort, shared=told.shared)
            print(table_of(comparison.title, tables[part]), end="\n\n")
    if told.json:
        document = {**as_json(effort, tables, verdicts), "messages": messages.as_json(messages_effort, found)}
        Path(told.json).write_text(json.dumps(document, indent=1) + "\n")
    print(f"{time.monotonic() - started:.0f} s; {machine()}")
    floors = not told.no_floors
    metrics_code = int(floors and any(cost.standing != "PASS" for cost in costs))
    codes = (_exit_code(tables, verdicts, floors=floors), metrics_code, steps_code, natural_code, client_code)
    return max(*codes, messages.exit_code(found, floors=floors))


def _run(comparison: Comparison, effort: Effort, *, shared: bool) -> list[Measured]:
    with contextlib.ExitStack() as stack:
        core = None if shared else stack.enter_context(a_core_to_itself())
        if any(variant.application.endswith("_valkey") for variant in comparison.variants):
            os.environ[VALKEY] = stack.enter_context(cache_server())
        if "sqlite" in comparison.variants[0].application:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            postmaster = None

            def place_for(name: str) -> str:
                return sqlite_place(folder, name.replace(" ", "-"))
        else:
            server = stack.enter_context(private_postgres())
            postmaster = server.pid

            def place_for(name: str) -> str:
                return postgres_place(server)

        return compare(
            comparison.variants, effort, place_for=place_for, postmaster=postmaster, core=core, say=_progress
        )


def _exit_code(tables: dict[str, list[Measured]], verdicts: Sequence[Verdict], *, floors: bool) -> int:
    missed = [
        f"{one.standing}: {part} {one.variant.name} is {one.ratio:.2f} x bare ({min(one.ratios):.2f} to "
        f"{max(one.ratios):.2f}), its floor is {one.variant.floor}"
        for part, measured in tables.items()
        for one in measured
        if one.standing in ("MISSED", "UNCLEAR")
    ]
    broken = [
        f"{verdict.limit.subject}: {verdict.found} {verdict.limit.unit}, at most {verdict.limit.most:g}"
        for verdict in verdicts
        if verdict.broken
    ]
    for line in (*missed, *broken):
        print(line, file=sys.stderr)
    return 1 if broken or (missed and floors) else 0


def _told() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter rounds, fewer of them: a first impression")
    parser.add_argument("--only", choices=[*COMPARISONS, *WAYS, *PARTS], help="one part")
    parser.add_argument("--rounds", type=int, help="rounds per comparison")
    parser.add_argument("--seconds", type=float, help="measured seconds per variant and round")
    parser.add_argument("--pool", type=int, help="connections in each pool")
    parser.add_argument("--shared", action="store_true", help="the worker gets no core to itself")
    parser.add_argument("--json", metavar="FILE", help="also write every sample to FILE")
    parser.add_argument("--no-floors", action="store_true", help="a missed ratio does not fail the run")
    return parser.parse_args()


def _effort(told: argparse.Namespace) -> Effort:
    usual = QUICK if told.quick else THOROUGH
    return Effort(
        rounds=told.rounds or usual.rounds,
        seconds=told.seconds or usual.seconds,
        warmup_s=usual.warmup_s,
        pool_size=told.pool or usual.pool_size,
    )


def _progress(line: str) -> None:
    """On a terminal only, and on one line: what is going on."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line} ...\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
