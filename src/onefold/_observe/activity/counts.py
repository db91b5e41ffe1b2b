"""Counting in memory: what happened since the last write, and what each span that is not written yet has come to.

Theory of operation. An event costs a look-up and an addition under a lock. `take` moves what was counted into the
minute, the hour and the quarter of a day that it is now, so that a count may be some seconds late; what a span has come
to is written whole, and what could not be written stays here until it is, or until it is too much.

Invariant: bounded, whatever is counted and however long the database is away. What is left out is logged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from math import ceil
from threading import Lock
from typing import Final, TypeAlias
from uuid import uuid4

from onefold._kernel.fork_and_loop import watch_forks
from onefold._observe import instrument_table as table
from onefold._observe.activity.statements import Count
from onefold._observe.instruments import Instrument, Labels
from onefold._observe.recorder import OTHER, Record

MINUTE_S: Final = 60
HOUR_S: Final = 3600
QUARTER_DAY_S: Final = 6 * HOUR_S
#: Each count is kept in spans of each of these lengths. A plot of any time reads about as many spans as another.
SPANS_S: Final = (MINUTE_S, HOUR_S, QUARTER_DAY_S)

#: Histograms are not kept, nor numbers that a query of the tables gives.
KEPT: Final = (
    table.REQUESTS, table.RELEASED, table.DUPLICATES, table.COMPLETIONS,
    table.MESSAGES, table.REDRIVES, table.FAILED_MESSAGES,
    table.PUBLISHED, table.PUBLISH_FAILURES, table.OUTBOX_DEAD_LETTERS, table.OUTBOX_OLDEST, table.OUTBOX_STOPPED,
    table.RETRIES, table.SHED,
)  # fmt: skip

#: Of one label, and of all instruments together: of one process.
VALUES_MAX: Final = 50
SERIES_MAX: Final = 500
#: Rows that wait for a database that is away: about an hour of the most that can be counted in a minute, a day of the
#: usual.
UNWRITTEN_MAX: Final = 20 * SERIES_MAX * len(SPANS_S)

_Series: TypeAlias = tuple[str, str]
_Span: TypeAlias = tuple[int, int]

_GAUGES: Final = frozenset(instrument.name for instrument in KEPT if instrument.kind == "gauge")

_log = logging.getLogger("onefold.activity")


class ActivityCounts:
    """The counts of one process. A child that is forked begins with none, under a name of its own."""

    def __init__(self) -> None:
        self._bound: set[_Series] = set()
        self.note_fork()
        watch_forks(self)

    def note_fork(self) -> None:
        """What the parent has counted, the parent writes. Its lock may be held for ever."""
        self.process = uuid4().hex[:16]
        self._lock = Lock()
        self._fresh: dict[_Series, int] = {}
        self._spans: dict[_Span, dict[_Series, int]] = {}
        self._unwritten: dict[tuple[_Span, _Series], int] = {}

    def __bool__(self) -> bool:
        """Whether anything is to be written."""
        return bool(self._fresh or self._unwritten)

    def bind(self, instrument: Instrument, labels: Labels) -> Record:
        """Implements `Backend`."""
        if instrument not in KEPT:
            return _ignore
        if len(self._bound) >= SERIES_MAX:
            labels = (OTHER,) * len(labels)
        series = (instrument.name, json.dumps(labels))
        self._bound.add(series)
        return self._make_raise(series) if instrument.kind == "gauge" else self._make_add(series)

    def _make_add(self, series: _Series) -> Record:
        def add(amounts: Sequence[float]) -> None:
            with self._lock:
                self._fresh[series] = self._fresh.get(series, 0) + int(sum(amounts))

        return add

    def _make_raise(self, series: _Series) -> Record:
        """The greatest value counts. 0 is what is not there."""

        def raise_to(amounts: Sequence[float]) -> None:
            if (amount := max(amounts)) > 0:
                with self._lock:
                    self._fresh[series] = max(self._fresh.get(series, 0), ceil(amount))

        return raise_to

    def take(self, now_s: int) -> list[Count]:
        """The counts to write now. They stay until `written` is called."""
        with self._lock:
            for span_s in SPANS_S:
                self._merge((span_s, now_s - now_s % span_s))
            self._fresh.clear()
            left_out = self._limit()
            if left_out:
                self._forget_spans(now_s)
            found = [
                Count(span_s, since_s, instrument, labels, amount)
                for ((span_s, since_s), (instrument, labels)), amount in self._unwritten.items()
            ]
        if left_out:
            _log.warning(
                "activity: %d counts were dropped, the oldest first: the database has not taken them for too long",
                left_out,
            )
        return found

    def _merge(self, span: _Span) -> None:
        if not self._fresh:
            return
        counted = self._spans.setdefault(span, {})
        for series, amount in self._fresh.items():
            before = counted.get(series, 0)
            counted[series] = max(before, amount) if series[0] in _GAUGES else before + amount
            if counted[series] != before:
                self._unwritten[span, series] = counted[series]

    def _limit(self) -> int:
        left_out = len(self._unwritten) - UNWRITTEN_MAX
        for key in sorted(self._unwritten, key=_age)[: max(0, left_out)]:
            del self._unwritten[key]
        return max(0, left_out)

    def written(self, counts: Sequence[Count], now_s: int) -> None:
        """These are in the database. Spans that are over need not be known any longer."""
        with self._lock:
            for span_s, since_s, instrument, labels, amount in counts:
                key = ((span_s, since_s), (instrument, labels))
                if self._unwritten.get(key) == amount:
                    del self._unwritten[key]
            self._forget_spans(now_s)

    def _forget_spans(self, now_s: int) -> None:
        """Those that are over, and of which nothing is to be written any more."""
        waiting = {span for span, _ in self._unwritten}
        for span in list(self._spans):
            if sum(span) <= now_s and span not in waiting:
                del self._spans[span]


def _age(key: tuple[_Span, _Series]) -> int:
    return sum(key[0])


def _ignore(amounts: Sequence[float]) -> None:
    """Of an instrument that has no history."""
