"""Metrics for Prometheus: `AsyncOnefold(..., listener=prometheus_metrics())`."""

from onefold._observe.prometheus_backend import prometheus_metrics

__all__ = ["prometheus_metrics"]
