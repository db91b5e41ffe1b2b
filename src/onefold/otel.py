"""Metrics for OpenTelemetry: `AsyncOnefold(..., listener=otel_metrics())`."""

from onefold._observe.otel_backend import otel_metrics

__all__ = ["otel_metrics"]
