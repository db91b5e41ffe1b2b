"""Metrics for OpenTelemetry, by its API alone: which SDK exports them, and where to, is the application's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from onefold._kernel.extras import missing_extra

try:
    from opentelemetry.metrics import MeterProvider, get_meter_provider
except ModuleNotFoundError as error:
    raise missing_extra(error, "otel") from None

from onefold._observe.instruments import SECONDS, Instrument, Labels
from onefold._observe.recorder import Record, Recorder


class OtelBackend:
    """A meter of a provider."""

    def __init__(self, provider: MeterProvider) -> None:
        self._meter = provider.get_meter("onefold")
        self._made: dict[Instrument, Callable[..., object]] = {}

    def bind(self, instrument: Instrument, labels: Labels) -> Record:
        if instrument not in self._made:
            self._made[instrument] = self._make(instrument)
        record = partial(self._made[instrument], attributes=dict(zip(instrument.labels, labels, strict=True)))

        def record_each(amounts: Sequence[float]) -> None:
            for amount in amounts:
                record(amount)

        return record_each

    def _make(self, instrument: Instrument) -> Callable[..., object]:
        name, unit, about, meter = instrument.name, instrument.unit, instrument.help, self._meter
        match instrument.kind:
            case "counter":
                return meter.create_counter(name, unit, about).add
            case "gauge":
                return meter.create_gauge(name, unit, about).set
            case "histogram":
                return meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=SECONDS).record


_recorders: Final[WeakKeyDictionary[MeterProvider, Recorder]] = WeakKeyDictionary()
_making: Final = Lock()


def otel_metrics(provider: MeterProvider | None = None) -> Recorder:
    """A listener that moves metrics of OpenTelemetry: `AsyncOnefold(..., listener=otel_metrics())`, and the same for
    Retrying. They belong to the process's meter provider, unless another is given; one provider has one listener."""
    given = get_meter_provider() if provider is None else provider
    with _making:
        if given not in _recorders:
            _recorders[given] = Recorder(OtelBackend(given))
        return _recorders[given]
