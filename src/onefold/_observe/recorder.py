"""The listener that moves instruments: the same for each backend, which only binds a series to a function.

A series is bound when its labels are seen first; from then on an event costs a look-up and the backend's own call. A
label that has taken `values_max` values takes no more: what comes after that counts as "other", and is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final, Protocol, TypeAlias, assert_never

from onefold._kernel.telemetry.every_event import Event
from onefold._observe.instrument_table import MOVES
from onefold._observe.instruments import Add, AnyMove, Instrument, Labels, Move, Replace

#: Of one label of one instrument.
VALUES_MAX: Final = 200
OTHER: Final = "other"

Record: TypeAlias = Callable[[float], object]

_log = logging.getLogger("onefold.metrics")


class Backend(Protocol):
    """Where numbers go."""

    def bind(self, instrument: Instrument, labels: Labels) -> Record:
        """What adds to a counter, sets a gauge, or puts a value into a histogram, for these labels."""
        ...


class Recorder:
    """A listener. One of them may serve any number of applications and clients in a process."""

    def __init__(self, backend: Backend, *, values_max: int = VALUES_MAX) -> None:
        series = {move.instrument: _SeriesOf(backend, move.instrument, values_max)
                  for moves in MOVES.values() for move in moves}  # fmt: skip
        self._moves: Mapping[type, Sequence[Callable[[Any], None]]] = {
            kind: tuple(_reader(move, series[move.instrument]) for move in moves) for kind, moves in MOVES.items()
        }

    def __call__(self, event: Event) -> None:
        for move in self._moves.get(event.__class__, ()):
            move(event)


class _SeriesOf:
    """The series of one instrument that are there."""

    def __init__(self, backend: Backend, instrument: Instrument, values_max: int) -> None:
        self._backend = backend
        self._instrument = instrument
        self._values_max = values_max
        self._values: tuple[set[str], ...] = tuple(set() for _ in instrument.labels)
        self._told: set[str] = set()
        self._lock = Lock()
        self.bound: dict[Labels, Record] = {}

    def bind(self, labels: Labels) -> Record:
        """For labels that are not in `bound`: their series, or the one that stands for those beyond the limit."""
        with self._lock:
            few = tuple(map(self._limit, self._instrument.labels, labels, self._values))
            if few not in self.bound:
                self.bound[few] = self._backend.bind(self._instrument, few)
            return self.bound[few]

    def _limit(self, name: str, value: str, seen: set[str]) -> str:
        value = str(value)
        if value in seen:
            return value
        if len(seen) < self._values_max:
            seen.add(value)
            return value
        if name not in self._told:
            self._told.add(name)
            _log.warning(
                "metric %s has %d values of %s: further ones are counted as %r",
                self._instrument.name, self._values_max, name, OTHER,
            )  # fmt: skip
        return OTHER


def _reader(move: AnyMove, series: _SeriesOf) -> Callable[[Any], None]:
    """What an event is handed to. Each branch is a function of its own: every request pays for it."""
    bound, bind = series.bound, series.bind
    match move:
        case Move(_, labels_of, None):

            def count(event: Any) -> None:
                labels = labels_of(event)
                if labels is not None:
                    (bound.get(labels) or bind(labels))(1)

            return count
        case Move(_, labels_of, value_of):
            assert value_of is not None
            value = value_of

            def record(event: Any) -> None:
                labels = labels_of(event)
                if labels is not None:
                    (bound.get(labels) or bind(labels))(value(event))

            return record
        case Add(_, several):

            def add(event: Any) -> None:
                for labels, amount in several(event):
                    (bound.get(labels) or bind(labels))(amount)

            return add
        case Replace(_, several):
            named: set[Labels] = set()

            def replace(event: Any) -> None:
                now = dict(several(event))
                for labels in named - now.keys():
                    now[labels] = 0
                named.update(now)
                for labels, amount in now.items():
                    (bound.get(labels) or bind(labels))(amount)

            return replace
        case _:
            assert_never(move)
