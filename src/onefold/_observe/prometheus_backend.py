"""Metrics for Prometheus, by prometheus_client. Works in its multiprocess mode, too."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Final, Literal
from weakref import WeakKeyDictionary

from onefold._kernel.extras import missing_extra

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ModuleNotFoundError as error:
    raise missing_extra(error, "prometheus") from None

from onefold._observe.instruments import SECONDS, Instrument, Labels
from onefold._observe.recorder import Record, Recorder

_ACROSS: Final[Mapping[str, Literal["livemax", "livesum"]]] = {"max": "livemax", "sum": "livesum"}


class PrometheusBackend:
    """A registry. A metric is there from its first value on: an application shows none of a relay's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._metrics: dict[Instrument, Counter | Gauge | Histogram] = {}

    def bind(self, instrument: Instrument, labels: Labels) -> Record:
        metric = self._metrics.get(instrument)
        if metric is None:
            metric = self._metrics[instrument] = self._make(instrument)
        series = metric.labels(*labels) if labels else metric
        match series:
            case Counter():
                return _counting(series)
            case Gauge():
                return series.set
            case Histogram():
                return _observing(series)

    def _make(self, instrument: Instrument) -> Counter | Gauge | Histogram:
        name, about, labels = instrument.prometheus_name, instrument.help, instrument.labels
        match instrument.kind:
            case "counter":
                return Counter(name, about, labels, registry=self._registry)
            case "gauge":
                across = _ACROSS[instrument.across]
                return Gauge(name, about, labels, registry=self._registry, multiprocess_mode=across)
            case "histogram":
                return Histogram(name, about, labels, registry=self._registry, buckets=SECONDS)


def _counting(series: Counter) -> Record:
    """What adds to a counter. Without prometheus_client's own layers above its value, of which every request would pay
    for two; by its public method, where a release of it has no such value."""
    value = getattr(series, "_value", None)
    return series.inc if value is None else value.inc


def _observing(series: Histogram) -> Record:
    """What puts a value into a histogram: the same without layers."""
    bounds, total, buckets = (getattr(series, name, None) for name in ("_upper_bounds", "_sum", "_buckets"))
    if bounds is None or total is None or buckets is None:
        return series.observe
    add, counts = total.inc, [(bound, bucket.inc) for bound, bucket in zip(bounds, buckets, strict=True)]

    def observe(amount: float) -> None:
        add(amount)
        for bound, count in counts:
            if amount <= bound:
                count(1)
                return

    return observe


_recorders: Final[WeakKeyDictionary[CollectorRegistry, Recorder]] = WeakKeyDictionary()
_making: Final = Lock()


def prometheus_metrics(registry: CollectorRegistry | None = None) -> Recorder:
    """A listener that moves metrics of prometheus_client: `AsyncOnefold(..., listener=prometheus_metrics())`, and the
    same for Retrying. They are in its default registry, unless another one is given; one registry has one listener."""
    kept_in = REGISTRY if registry is None else registry
    with _making:
        if kept_in not in _recorders:
            _recorders[kept_in] = Recorder(PrometheusBackend(kept_in))
        return _recorders[kept_in]
