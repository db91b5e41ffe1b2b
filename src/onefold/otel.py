"""Metrics and traces for OpenTelemetry: `AsyncOnefold(..., listener=[otel_metrics(), otel_traces()])`."""

from onefold._observe.otel_backend import otel_metrics
from onefold._observe.otel_traces import otel_traces

__all__ = ["otel_metrics", "otel_traces"]
