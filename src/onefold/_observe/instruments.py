"""What an instrument is, and how a telemetry event moves it: data, of which each backend makes its own.

Invariant: a label has few values. It is a route template, a consumer, a topic, a host or a word of ours; never a key,
an id, a principal or a body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]

#: From a replay on SQLite to a handler that waits for a slow service.
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_SUFFIXES: Final = {"s": "_seconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One metric, under the name that OpenTelemetry knows it by."""

    name: str
    kind: Kind
    unit: str
    """As UCUM writes it: `s`, or what is counted, in braces."""
    labels: tuple[str, ...] = ()
    help: str
    across: Literal["max", "sum"] = "max"
    """Of a gauge: what the value of several processes is (prometheus_client's multiprocess mode)."""

    @property
    def prometheus_name(self) -> str:
        """What the exposition calls it. It is what OpenTelemetry's exporters make of the name, too."""
        total = "_total" if self.kind == "counter" else ""
        return self.name.replace(".", "_") + _SUFFIXES.get(self.unit, "") + total


@dataclass(frozen=True, slots=True)
class Move:
    """What one kind of event does to an instrument: a counter grows by `value`, a gauge is set to it, a histogram gets
    it. Without a `value` it is 1. `labels` gives None for an event that does not concern the instrument."""

    instrument: Instrument
    labels: Callable[[Any], Labels | None]
    value: Callable[[Any], float] | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """What one kind of event says about all series of a gauge: those that it does not name any more are 0."""

    instrument: Instrument
    series: Callable[[Any], Iterable[tuple[Labels, float]]]


@dataclass(frozen=True, slots=True)
class Add:
    """What one kind of event adds to several series of a counter."""

    instrument: Instrument
    series: Callable[[Any], Iterable[tuple[Labels, float]]]


AnyMove: TypeAlias = Move | Replace | Add
