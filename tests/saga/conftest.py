"""Fixtures of the engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest


@pytest.fixture(scope="session")
def quick_temporal() -> Iterator[None]:
    """Temporal tries a workflow's task again when its time is over: sooner than with the engine's own setting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onefold._engines.temporal.temporal_engine._TASK_TIMEOUT", timedelta(seconds=1))
        yield
