"""Sagas on a Temporal server: `pip install 'onefold[temporal]'`."""

from onefold._engines.temporal.temporal_engine import Temporal

__all__ = ["Temporal"]
