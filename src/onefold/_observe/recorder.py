"""The listener that moves instruments: the same for each backend, which only binds a series to a function.

A series is bound when its labels are seen first; from then on an event costs a look-up and the backend's own call. The
events of every request are looked up once for all of their series, by the fields of their labels (LABELLED_BY). A label
with `values_max` values takes no more: further values count as "other", which is logged once.

Where the numbers are pulled, as by Prometheus, a request need not wait for their update: HoldingRecorder holds its
events, and applies many at once. Between two statements of a request the code that moves them is in no cache of the
processor, and takes several times what it takes in a loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import compress, repeat, starmap
from threading import Lock
from typing import Any, Final, Protocol, TypeAlias, assert_never

from onefold._kernel.fork_and_loop import watch_forks
from onefold._kernel.telemetry.every_event import Event
from onefold._observe.instrument_table import LABELLED_BY, MOVES
from onefold._observe.instruments import Add, AnyMove, Instrument, Labels, Move, Replace

#: Of one label of one instrument.
VALUES_MAX: Final = 200
OTHER: Final = "other"
#: Events that are held: moving them takes less than a tenth of a millisecond.
HELD_MAX: Final = 64

#: Moves one series by the values of one or more events, in their order.
Record: TypeAlias = Callable[[Sequence[float]], object]
#: A record, and what reads its value from an event.
_Valued: TypeAlias = tuple[Record, Callable[[Any], float]]

_ONE: Final = (1.0,)

_log = logging.getLogger("onefold.metrics")


class Backend(Protocol):
    """The destination of the numbers."""

    def bind(self, instrument: Instrument, labels: Labels) -> Record:
        """A function that adds values to a counter, sets a gauge to the last of them, or puts each into a histogram,
        for these labels."""
        ...


class Recorder:
    """A listener. One of them may serve any number of applications and clients in a process."""

    def __init__(self, backend: Backend, *, values_max: int = VALUES_MAX) -> None:
        series = {move.instrument: _SeriesOf(backend, move.instrument, values_max)
                  for moves in MOVES.values() for move in moves}  # fmt: skip
        self._readers: dict[type, Callable[[Any], None]] = {}
        #: By the kind of event, for those of every request.
        self._moves: dict[type, _EventMoves] = {}
        for kind, moves in MOVES.items():
            pairs = [(move, series[move.instrument]) for move in moves]
            simple = [(move, series) for move, series in pairs if isinstance(move, Move)]
            if kind in LABELLED_BY and len(simple) == len(pairs):
                self._moves[kind] = _EventMoves(simple, LABELLED_BY[kind])
            else:
                self._readers[kind] = _make_reader_of_all(pairs)

    def __call__(self, event: Event) -> None:
        try:
            moves = self._moves[event.__class__]
        except KeyError:
            if (read := self._readers.get(event.__class__)) is not None:  # an event that moves nothing has none
                read(event)
            return
        moves.perform(moves.labelled_by(event), (event,))

    def catch_up(self) -> None:
        """Update the numbers by all events so far."""


class HoldingRecorder(Recorder):
    """Holds the events of every request until the numbers are pulled, or there are about HELD_MAX events, and moves
    counters and histograms by all of them together.

    An event that is held is lost with its process, as all numbers of Prometheus are. No lock is taken for it: a deque
    may be appended to by any thread, and only the thread that has `_draining` takes from it."""

    def __init__(self, backend: Backend, *, values_max: int = VALUES_MAX) -> None:
        super().__init__(backend, values_max=values_max)
        self._held: dict[type, deque[Any]] = {kind: deque() for kind in self._moves}
        self._room = HELD_MAX
        self.note_fork()
        watch_forks(self)

    def __call__(self, event: Event) -> None:
        try:
            held = self._held[event.__class__]
        except KeyError:
            super().__call__(event)
            return
        held.append(event)
        # Two threads at once may count as one: then a few more are held.
        self._room -= 1
        if self._room <= 0 and self._draining.acquire(blocking=False):  # another thread that drains is not waited for
            try:
                self._drain()
            finally:
                self._draining.release()

    def catch_up(self) -> None:
        with self._draining:
            self._drain()

    def note_fork(self) -> None:
        """A thread of the parent may have held the lock: here it is never released."""
        self._draining = Lock()

    def _drain(self) -> None:
        self._room = HELD_MAX
        for kind, held in self._held.items():
            # As many as there are now: those that come meanwhile are for the next time.
            if events := [*starmap(held.popleft, repeat((), len(held)))]:
                self._perform(self._moves[kind], events)

    def _perform(self, moves: _EventMoves, events: Sequence[Event]) -> None:
        labels = [*map(moves.labelled_by, events)]
        for one in dict.fromkeys(labels):
            alike = [*compress(events, map(one.__eq__, labels))]
            try:
                moves.perform(one, alike)
            except Exception:
                _log.warning(
                    "%d events were not counted in all metrics, the first is %r", len(alike), alike[0], exc_info=True
                )


class _SeriesOf:
    """The series of one instrument that are there."""

    def __init__(self, backend: Backend, instrument: Instrument, values_max: int) -> None:
        self._backend = backend
        self._instrument = instrument
        self._values_max = values_max
        self._values: tuple[set[str], ...] = tuple(set() for _ in instrument.labels)
        self._logged: set[str] = set()
        self._lock = Lock()
        self.bound: dict[Labels, Record] = {}

    def bind(self, labels: Labels) -> Record:
        """For labels that are not in `bound`: their series, or the one that stands for those beyond the limit."""
        with self._lock:
            folded = self._fold(labels)
            if folded not in self.bound:
                self.bound[folded] = self._backend.bind(self._instrument, folded)
            return self.bound[folded]

    def fold(self, labels: Labels) -> Labels:
        """The labels that these count under: those beyond the limit share a series."""
        with self._lock:
            return self._fold(labels)

    def _fold(self, labels: Labels) -> Labels:
        return tuple(map(self._limit, self._instrument.labels, labels, self._values))

    def _limit(self, name: str, value: str, seen: set[str]) -> str:
        value = str(value)
        if value in seen:
            return value
        if len(seen) < self._values_max:
            seen.add(value)
            return value
        if name not in self._logged:
            self._logged.add(name)
            _log.warning(
                "metric %s has %d values of %s: further ones are counted as %r",
                self._instrument.name, self._values_max, name, OTHER,
            )  # fmt: skip
        return OTHER


class _EventMoves:
    """The moves of one kind of event, whose series are looked up once for each of its labels, all together: counters
    that grow by one, and what takes a value of the event."""

    __slots__ = ("_moves", "known", "labelled_by")

    def __init__(self, moves: Sequence[tuple[Move, _SeriesOf]], labelled_by: Callable[[Any], object]) -> None:
        self._moves = moves
        self.labelled_by = labelled_by
        self.known: dict[object, tuple[Sequence[Record], Sequence[_Valued]]] = {}

    def bind(self, event: Any) -> tuple[Sequence[Record], Sequence[_Valued]]:
        """For labels that are not known."""
        labelled = [
            (move, series, labels) for move, series in self._moves if (labels := move.labels(event)) is not None
        ]
        bound = [(series.bind(labels), move.value) for move, series, labels in labelled]
        records = (
            tuple(record for record, value in bound if value is None),
            tuple((record, value) for record, value in bound if value is not None),
        )
        # What counts as "other" is not remembered: there is no end to its values.
        if all(labels in series.bound for _, series, labels in labelled):
            self.known[self.labelled_by(event)] = records
        return records

    def perform(self, labels: object, events: Sequence[Any]) -> None:
        """By events of the same labels."""
        counters, valued = self.known.get(labels) or self.bind(events[0])
        ones = _ONE * len(events)
        for count in counters:
            count(ones)
        for record, value in valued:
            record([*map(value, events)])


def _make_reader_of_all(moves: Sequence[tuple[AnyMove, _SeriesOf]]) -> Callable[[Any], None]:
    """What an event of one kind is handed to."""
    readers = tuple(_make_reader(move, series) for move, series in moves)

    def read(event: Any) -> None:
        for each in readers:
            each(event)

    return read


def _make_reader(move: AnyMove, series: _SeriesOf) -> Callable[[Any], None]:
    bound, bind = series.bound, series.bind
    match move:
        case Move(_, labels_of, value_of):

            def read(event: Any) -> None:
                labels = labels_of(event)
                if labels is not None:
                    (bound.get(labels) or bind(labels))(_ONE if value_of is None else (value_of(event),))

            return read
        case Add(_, several):

            def add(event: Any) -> None:
                for labels, amount in several(event):
                    (bound.get(labels) or bind(labels))((amount,))

            return add
        case Replace(_, several):
            named: set[Labels] = set()

            def replace(event: Any) -> None:
                now: dict[Labels, float] = dict.fromkeys(named, 0)
                for labels, amount in several(event):
                    folded = series.fold(labels)
                    now[folded] = now.get(folded, 0) + amount
                named.update(now)
                for labels, amount in now.items():
                    (bound.get(labels) or bind(labels))((amount,))

            return replace
        case _:
            assert_never(move)
