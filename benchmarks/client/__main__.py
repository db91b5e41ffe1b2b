"""`python -m benchmarks.client`: what a call costs that succeeds at once, and whether that is allowed.

See README.md in the folder above for what is measured, and how.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.client import costs, loopback
from benchmarks.report import aligned, busy, machine

#: Function calls of one call that succeeds, Python's and C's. A change of it is a change of the protocol.
STEPS_MOST = 14

#: Function calls that a GET has more than a bare one, of about 1,400.
GET_STEPS_MOST = 70


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.client", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first impression")
    parser.add_argument("--json", metavar="FILE", help="also write every sample to FILE")
    parser.add_argument("--no-floors", action="store_true", help="what costs too much does not fail the run")
    told = parser.parse_args()
    return run(quick=told.quick, json_file=told.json, floors=not told.no_floors)


def run(*, quick: bool, json_file: str | None, floors: bool) -> int:
    """Measure, print, judge; the exit code."""
    print(machine())
    if busy():
        print("This machine is busy with something else: microseconds below are too high.")
    fields = costs.measured(calls=2_000, rounds=3 if quick else 9)
    ways = loopback.measured(gets=200, rounds=3 if quick else 9)
    steps, added = costs.sync_steps(), loopback.added_steps()
    missed = [*_tell_costs(fields), *_tell_loopback(ways)]
    print(
        f"\nfunction calls per call: {steps}, at most {STEPS_MOST}; added to a GET: {added}, at most {GET_STEPS_MOST}"
    )
    broken = [f"a call makes {steps} function calls, at most {STEPS_MOST}"] if steps > STEPS_MOST else []
    if added > GET_STEPS_MOST:
        broken.append(f"a GET makes {added} function calls more than a bare one, at most {GET_STEPS_MOST}")
    if json_file:
        document: dict[str, Any] = {
            title: {one.name: one.samples_us for one in one_field} for title, one_field in fields.items()
        }
        document["GET"] = {way.name: {"wall_us": way.wall_us, "cpu_us": way.cpu_us} for way in ways}
        Path(json_file).write_text(json.dumps(document, indent=1) + "\n")
    for line in (*missed, *broken):
        print(f"MISSED: {line}", file=sys.stderr)
    return 1 if broken or (missed and floors) else 0


def _tell_costs(fields: dict[str, list[costs.Contestant]]) -> list[str]:
    missed = []
    for title, field in fields.items():
        bare = field[0]
        rows: list[tuple[str, ...]] = [("", "us over bare", "at most", "")]
        for one in field:
            over_us = one.over_us(bare)
            late = one.most_us is not None and over_us > one.most_us
            rows.append(
                (
                    one.name,
                    f"{over_us:.2f}",
                    "" if one.most_us is None else f"{one.most_us:g}",
                    "" if one.most_us is None else "MISSED" if late else "PASS",
                )
            )
            if late:
                missed.append(f"a call {title} costs {over_us:.2f} us over bare, at most {one.most_us:g}")
        print(f"\nA call that succeeds at once, {title}\n{aligned(rows)}")
    return missed


def _tell_loopback(ways: list[loopback.Way]) -> list[str]:
    bare, missed = ways[0], []
    rows: list[tuple[str, ...]] = [("", "us per GET", "x bare", "x by CPU", "at most", "")]
    for way in ways:
        ratio = way.ratio(bare)
        late = way.most is not None and ratio > way.most
        rows.append(
            (
                way.name,
                f"{min(way.wall_us):.0f}",
                f"{ratio:.3f}",
                f"{way.ratio_by_cpu(bare):.3f}",
                "" if way.most is None else f"{way.most:g}",
                "" if way.most is None else "MISSED" if late else "PASS",
            )
        )
        if late:
            missed.append(f"a GET through the transport costs {ratio:.3f} x a bare one, at most {way.most:g}")
    print(f"\nGET over loopback, httpx\n{aligned(rows)}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
