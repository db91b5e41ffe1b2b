"""`python -m benchmarks.messages`: what the outbox, the relay and the consumers cost, and whether that is allowed.

See README.md in the folder above for what is measured, and how.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from benchmarks.messages.parts import PARTS, QUICK, THOROUGH, with_large
from benchmarks.messages.parts import run as run_parts


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.messages", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything: a first impression")
    parser.add_argument("--only", metavar="PART,...", help=f"some parts only: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help="rounds per comparison")
    parser.add_argument("--large", action="store_true", help="claims beside 5 million published rows, too")
    parser.add_argument("--synced", action="store_true", help="a NATS that syncs every message to disk")
    parser.add_argument("--json", metavar="FILE", help="also write every sample to FILE")
    parser.add_argument("--no-floors", action="store_true", help="a missed ratio does not fail the run")
    told = parser.parse_args()
    only = told.only.split(",") if told.only else list(PARTS)
    if unknown := [name for name in only if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    effort = replace(QUICK if told.quick else THOROUGH, synced=told.synced)
    if told.large:
        effort = with_large(effort)
    return run_parts(only, effort, rounds=told.rounds, json_file=told.json, floors=not told.no_floors)


if __name__ == "__main__":
    sys.exit(main())
