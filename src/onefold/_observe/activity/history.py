"""Reading the activity history: what was counted in the last hour or in the last days, by series.

A read costs as much as its spans have rows, which are bounded: see `counts.py`. Nothing is counted here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Fetch
from onefold._observe.activity.counts import HOUR_S, MINUTE_S, QUARTER_DAY_S
from onefold._observe.activity.statements import STATEMENTS
from onefold._observe.instrument_table import INSTRUMENTS
from onefold._observe.instruments import Instrument, Labels
from onefold.errors import ConfigurationError

_KINDS: Final = {instrument.name: instrument for instrument in INSTRUMENTS}


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A time, in spans of one length. The last of them is not over yet."""

    span_s: int
    since_s: int
    spans: int
    now_s: int

    @property
    def until_s(self) -> int:
        return self.since_s + self.spans * self.span_s


def last_hour(now_s: int) -> TimeWindow:
    """Sixty minutes, with the one that it is now."""
    return _window(now_s, MINUTE_S, 60)


def last_day(now_s: int) -> TimeWindow:
    return _window(now_s, HOUR_S, 24)


def last_week(now_s: int) -> TimeWindow:
    """In quarters of a day: 168 hours would be three times as many rows as any other window has."""
    return _window(now_s, QUARTER_DAY_S, 7 * 4)


def _window(now_s: int, span_s: int, spans: int) -> TimeWindow:
    return TimeWindow(span_s, now_s - now_s % span_s - (spans - 1) * span_s, spans, now_s)


@dataclass(frozen=True, slots=True)
class Activity:
    """What was counted in a window: for each series an amount per span."""

    window: TimeWindow
    series: dict[tuple[str, Labels], list[int]]
    latest_s: int | None
    """When anything was last counted, to the minute. None: never, or too long ago."""

    def by(self, instrument: Instrument, *labels: str) -> dict[str, list[int]]:
        """The amounts of an instrument per span, by the values of these labels: counters are summed over the others,
        and of gauges it is the greatest."""
        places = [_place(instrument, label) for label in labels]
        found: dict[str, list[int]] = {}
        for (name, values), amounts in self.series.items():
            if name != instrument.name:
                continue
            into = found.setdefault(" ".join(values[place] for place in places), [0] * self.window.spans)
            for at, amount in enumerate(amounts):
                into[at] = max(into[at], amount) if instrument.kind == "gauge" else into[at] + amount
        return dict(sorted(found.items()))

    def total(self, instrument: Instrument, wanted: Callable[[Labels], bool] = lambda _: True) -> int:
        """Of a counter, in the whole window."""
        return sum(
            sum(amounts)
            for (name, values), amounts in self.series.items()
            if name == instrument.name and wanted(values)
        )


def _place(instrument: Instrument, label: str) -> int:
    if label not in instrument.labels:
        raise ConfigurationError(f"{instrument.name} has no label {label!r}; it has {instrument.labels}")
    return instrument.labels.index(label)


async def read_activity(dialect: str, window: TimeWindow) -> Activity:
    """What was counted in the window."""
    sql = STATEMENTS[dialect]

    async def work() -> Activity:
        latest = await Fetch(sql.latest(MINUTE_S))
        rows = await Fetch(sql.read(window.span_s, window.since_s, window.until_s)) if latest else []
        return Activity(window, _fill(window, rows), latest[0][0] if latest else None)

    return await with_connection(work)


def _fill(window: TimeWindow, rows: Iterable[tuple[int, str, str, int, int]]) -> dict[tuple[str, Labels], list[int]]:
    found: dict[tuple[str, Labels], list[int]] = {}
    by_text: dict[tuple[str, str], list[int]] = {}  # each text of labels is read once, and not for each span
    for since_s, name, labels, total, greatest in rows:
        instrument = _KINDS.get(name)
        if instrument is None:  # a newer release counts it
            continue
        amounts = by_text.get((name, labels))
        if amounts is None:
            amounts = by_text[name, labels] = found.setdefault((name, tuple(json.loads(labels))), [0] * window.spans)
        amount = greatest if instrument.kind == "gauge" and instrument.across == "max" else total
        amounts[(since_s - window.since_s) // window.span_s] = amount
    return found
