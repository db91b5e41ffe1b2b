"""The numbers as plain text for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from benchmarks.guards import Verdict
from benchmarks.rounds import Effort, Measured, Sample

_HEAD: Final = ("", "req/s", "x bare", "min-max", "p50 ms", "p99 ms", "app us", "db us", "x by CPU", "floor", "")
_GUARD_HEAD: Final = ("", "what", "found", "at most", "")


def machine() -> str:
    """What the numbers were measured on."""
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    cores = os.cpu_count()
    return f"Python {platform.python_version()}, {platform.machine()}, {cores} cores, load average {load}"


def busy() -> bool:
    """Whether others have kept this machine's cores from us during the last minute."""
    return os.getloadavg()[0] > (os.cpu_count() or 1) / 2


def table_of(title: str, measured: Sequence[Measured]) -> str:
    """One comparison: medians over the rounds, ratios to the bare variant (or what stands in its place) of the same
    round."""
    rows = []
    bases_us = {one.variant.name: _app_us(one) for one in measured}
    for one in measured:
        base_us = bases_us[one.variant.beside]
        floor = one.variant.floor
        rows.append(
            (
                one.variant.name,
                f"{_median(one.samples, 'rate'):,.0f}",
                f"{one.ratio:.2f}",
                f"{min(one.ratios):.2f}-{max(one.ratios):.2f}",
                f"{_median(one.samples, 'p50_ms'):.1f}",
                f"{_median(one.samples, 'p99_ms'):.1f}",
                f"{_app_us(one):.0f}",
                f"{median(sample.database_us for sample in one.samples):.0f}",
                f"{base_us / _app_us(one):.2f}" if base_us else "",
                "" if floor is None else f"{floor:.2f}",
                one.standing,
            )
        )
    busiest = max(sample.load.busy for one in measured for sample in one.samples)
    note = f"the load generator used at most {busiest:.0%} of a core"
    return f"{title}\n{aligned((_HEAD, *rows))}\n{note}"


def guards_of(verdicts: Iterable[Verdict], *, title: str = "Counted per request") -> str:
    """What was counted."""
    rows = [
        (
            verdict.limit.subject,
            verdict.limit.unit,
            "-" if verdict.found is None else f"{verdict.found:g}",
            f"{verdict.limit.most:g}",
            "FAIL" if verdict.broken else "PASS",
        )
        for verdict in verdicts
    ]
    return f"{title}\n{aligned((_GUARD_HEAD, *rows), words=2)}"


def as_json(effort: Effort, tables: dict[str, list[Measured]], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "effort": asdict(effort),
        "tables": {
            title: [
                {
                    "variant": one.variant.name,
                    "floor": one.variant.floor,
                    "ratio": one.ratio,
                    "ratios": one.ratios,
                    "samples": [asdict(sample) for sample in one.samples],
                }
                for one in measured
            ]
            for title, measured in tables.items()
        },
        "guards": [{**asdict(verdict.limit), "found": verdict.found} for verdict in verdicts],
    }


def _app_us(one: Measured) -> float:
    return median(sample.app_us for sample in one.samples)


def _median(samples: Iterable[Sample], name: str) -> float:
    return median(float(getattr(sample.load, name)) for sample in samples)


def aligned(rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Columns of one width each: the first `words` columns are words and start left, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
