"""What was measured, read from each backend, as the same values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry, generate_latest

from onefold._kernel.telemetry import Listener
from onefold._observe.instrument_table import INSTRUMENTS
from onefold.otel import otel_metrics
from onefold.prometheus import prometheus_metrics

Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]

NAMES = {instrument.name: instrument.prometheus_name for instrument in INSTRUMENTS}


class Measured:
    """A registry of Prometheus and a provider of OpenTelemetry, told the same."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)
        #: As an application gives them.
        self.listeners: list[Listener] = [prometheus_metrics(self.registry), otel_metrics(self.provider)]

    def value(self, name: str, **labels: str) -> float | None:
        """A sample, by its name in the exposition."""
        return self.registry.get_sample_value(name, labels)

    def values(self, name: str) -> Mapping[tuple[str, ...], float]:
        """All samples of a name, by their labels' values in the order of the labels' names."""
        found = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == name:
                    found[tuple(sample.labels[label] for label in sorted(sample.labels))] = sample.value
        return found

    @property
    def exposition(self) -> str:
        return generate_latest(self.registry).decode()

    def prometheus(self) -> dict[Series, float]:
        found: dict[Series, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if not sample.name.endswith(("_bucket", "_created")):
                    found[sample.name, tuple(sorted(sample.labels.items()))] = round(sample.value, 9)
        return found

    def otel(self) -> dict[Series, float]:
        data = self._reader.get_metrics_data()
        found: dict[Series, float] = {}
        if data is None:
            return found
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        labels = tuple(sorted((name, str(value)) for name, value in (point.attributes or {}).items()))
                        name = NAMES[metric.name]
                        if isinstance(point, HistogramDataPoint):
                            found[f"{name}_count", labels] = point.count
                            found[f"{name}_sum", labels] = round(point.sum, 9)
                        elif isinstance(point, NumberDataPoint):
                            found[name, labels] = round(point.value, 9)
        return found
