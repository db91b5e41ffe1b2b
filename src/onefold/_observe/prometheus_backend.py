"""Metrics for Prometheus, by prometheus_client. Works in its multiprocess mode, too.

The events of requests are held until Prometheus scrapes (recorder.py): all metrics are one collector of the registry,
which has them moved before it shows them. In multiprocess mode another process may be scraped, and reads what this one
has written: nothing is held there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Occurrences
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Final, Literal
from weakref import WeakKeyDictionary

from onefold._kernel.extras import missing_extra

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric, values
except ModuleNotFoundError as error:
    raise missing_extra(error, "prometheus") from None

from onefold._observe.instrument_table import INSTRUMENTS
from onefold._observe.instruments import SECONDS, Instrument, Labels
from onefold._observe.recorder import HoldingRecorder, Record, Recorder

_ACROSS: Final[Mapping[str, Literal["livemax", "livesum"]]] = {"max": "livemax", "sum": "livesum"}


class PrometheusBackend:
    """The metrics of a registry. One is there from its first value on: an application shows none of a relay's."""

    def __init__(self) -> None:
        self._metrics: dict[Instrument, Counter | Gauge | Histogram] = {}

    def bind(self, instrument: Instrument, labels: Labels) -> Record:
        metric = self._metrics.get(instrument)
        if metric is None:
            metric = self._metrics[instrument] = _make(instrument)
        series = metric.labels(*labels) if labels else metric
        match series:
            case Counter():
                return _make_count(series)
            case Gauge():
                return _make_set(series)
            case Histogram():
                return _make_observe(series)

    def collect(self) -> Iterable[Metric]:
        for metric in list(self._metrics.values()):
            yield from metric.collect()


class _Collector:
    """What the registry asks."""

    def __init__(self, backend: PrometheusBackend, catch_up: Callable[[], None]) -> None:
        self._backend = backend
        self._catch_up = catch_up

    def describe(self) -> Iterable[Metric]:
        """The names that the registry finds this collector by, and that are taken. No metric is made for it: one
        without labels would be there with 0."""
        return [Metric(each.prometheus_name.removesuffix("_total"), each.help, each.kind) for each in INSTRUMENTS]

    def collect(self) -> Iterable[Metric]:
        self._catch_up()
        return self._backend.collect()


def _make(instrument: Instrument) -> Counter | Gauge | Histogram:
    name, about, labels = instrument.prometheus_name, instrument.help, instrument.labels
    match instrument.kind:
        case "counter":
            return Counter(name, about, labels, registry=None)
        case "gauge":
            return Gauge(name, about, labels, registry=None, multiprocess_mode=_ACROSS[instrument.across])
        case "histogram":
            return Histogram(name, about, labels, registry=None, buckets=SECONDS)


def _make_count(series: Counter) -> Record:
    """What adds to a counter. Without prometheus_client's own layers above its value, of which every request would pay
    for two; by its public method, where a release of it has no such value."""
    value = getattr(series, "_value", None)
    add = series.inc if value is None else value.inc

    def count(amounts: Sequence[float]) -> None:
        add(sum(amounts))

    return count


def _make_set(series: Gauge) -> Record:
    return lambda amounts: series.set(amounts[-1])


def _make_observe(series: Histogram) -> Record:
    """What puts values into a histogram: the same without layers, and each bucket once for all that fall into it."""
    bounds, total, buckets = (getattr(series, name, None) for name in ("_upper_bounds", "_sum", "_buckets"))
    if bounds is None or total is None or buckets is None:

        def observe_each(amounts: Sequence[float]) -> None:
            for amount in amounts:
                series.observe(amount)

        return observe_each
    find = partial(bisect_left, bounds)

    def observe(amounts: Sequence[float]) -> None:
        total.inc(sum(amounts))
        for place, number in Occurrences(map(find, amounts)).items():
            buckets[place].inc(number)

    return observe


_recorders: Final[WeakKeyDictionary[CollectorRegistry, Recorder]] = WeakKeyDictionary()
_making: Final = Lock()


def prometheus_metrics(registry: CollectorRegistry | None = None) -> Recorder:
    """A listener that moves metrics of prometheus_client: `AsyncOnefold(..., listener=prometheus_metrics())`, and the
    same for Retrying. They are in its default registry, unless another one is given; one registry has one listener."""
    kept_in = REGISTRY if registry is None else registry
    with _making:
        if kept_in not in _recorders:
            _recorders[kept_in] = _record_in(kept_in)
        return _recorders[kept_in]


def _record_in(registry: CollectorRegistry) -> Recorder:
    backend = PrometheusBackend()
    # Unknown to a release of prometheus_client: then nothing is held, which is right everywhere.
    is_read_by_others = getattr(values.ValueClass, "_multiprocess", True)
    recorder = Recorder(backend) if is_read_by_others else HoldingRecorder(backend)
    registry.register(_Collector(backend, recorder.catch_up))
    return recorder
