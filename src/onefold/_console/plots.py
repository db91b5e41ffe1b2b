"""Plots: from amounts per span to bars, in the coordinates of an SVG that the template draws. No script, no library.

No information is in colour alone: each series has its total beside its name, and each bar has a label for pointers and
screen readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from onefold._kernel.readable import write_count
from onefold._observe.activity.counts import HOUR_S
from onefold._observe.activity.history import TimeWindow

WIDTH: Final = 600
HEIGHT: Final = 120
#: The number of colours; further series are summed up.
SERIES_MAX: Final = 8
_GAP: Final = 0.15
#: A longer window says the day of each time.
_CLOCK_ALONE_S: Final = 6 * HOUR_S


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a column."""

    number: int
    """Of its series."""
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """One span: its bars, and what they say."""

    bars: tuple[Bar, ...]
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What a template draws."""

    title: str
    unit: str
    legend: tuple[tuple[str, str], ...]
    """Each series with what it has come to, as text."""
    columns: tuple[Column, ...]
    total: str
    """Of the whole window; empty for a level, which has none."""
    top: str
    """What the upper end of the axis stands for: the highest column."""
    begins: str
    ends: str

    @property
    def summary(self) -> str:
        """The text alternative of the plot."""
        amounts = ", ".join(f"{name or self.unit} {amount}" for name, amount in self.legend)
        return f"{self.title}: {amounts or 'nothing'}. {self.begins} to {self.ends}."


def stack(title: str, unit: str, series: Mapping[str, Sequence[int]], window: TimeWindow) -> Plot:
    """Amounts on top of each other, the series that are named first at the bottom."""
    few = _limit(series, window)
    highest = max((sum(amounts) for amounts in zip(*few.values(), strict=True)), default=0)
    legend = tuple((name, f"{sum(amounts):,}") for name, amounts in few.items())
    total = write_count(sum(map(sum, few.values())), unit)
    top = f"top: {highest:,} in {_name_span(window.span_s)}"
    return _draw(title, unit, few, window, highest, legend=legend, total=total, top=top)


def level(title: str, unit: str, amounts: Sequence[int], window: TimeWindow) -> Plot:
    """The greatest value of each span."""
    highest = max(amounts, default=0)
    legend = (("greatest", f"{highest:,} {unit}"),) if highest else ()
    top = f"top: {highest:,} {unit}"
    return _draw(title, unit, {"": list(amounts)}, window, highest, legend=legend, total="", top=top)


def _limit(series: Mapping[str, Sequence[int]], window: TimeWindow) -> dict[str, list[int]]:
    kept = {name: list(amounts) for name, amounts in series.items() if any(amounts)}
    by_size = sorted(kept, key=lambda name: sum(kept[name]), reverse=True)
    if len(by_size) <= SERIES_MAX:
        return kept
    others = [kept.pop(name) for name in by_size[SERIES_MAX - 1 :]]
    kept["others"] = [sum(amounts) for amounts in zip(*others, strict=True)]
    return kept


def _draw(
    title: str,
    unit: str,
    series: Mapping[str, list[int]],
    window: TimeWindow,
    highest: int,
    *,
    legend: tuple[tuple[str, str], ...],
    total: str,
    top: str,
) -> Plot:
    width = WIDTH / window.spans
    columns = []
    for span in range(window.spans):
        bars, y, labels = [], float(HEIGHT), []
        for number, (name, amounts) in enumerate(series.items()):
            if amounts[span]:
                height = HEIGHT * amounts[span] / highest
                y -= height
                place = (span * width + width * _GAP / 2, y, width * (1 - _GAP), height)
                bars.append(Bar(number, *(round(each, 2) for each in place)))
                labels.append(f"{name} {amounts[span]:,}" if name else f"{amounts[span]:,} {unit}")
        if bars:
            columns.append(Column(tuple(bars), f"{clock(window, span)}: {', '.join(labels)}"))
    return Plot(
        title=title,
        unit=unit,
        legend=legend,
        columns=tuple(columns),
        total=total,
        top=top,
        begins=clock(window, 0),
        ends=clock(window, window.spans),
    )


def _name_span(span_s: int) -> str:
    if span_s <= HOUR_S:
        return "an hour" if span_s == HOUR_S else "a minute"
    return f"{span_s // HOUR_S} hours"


def clock(window: TimeWindow, span: int) -> str:
    """When a span of the window begins, in UTC; of one that is to come: now."""
    at = datetime.fromtimestamp(min(window.since_s + span * window.span_s, window.now_s), tz=UTC)
    return at.strftime("%H:%M" if window.span_s * window.spans <= _CLOCK_ALONE_S else "%a %d %b %H:%M")
