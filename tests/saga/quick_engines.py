"""Engines that look sooner for what they would look for anyway: tests wait for that again and again."""

from __future__ import annotations

from datetime import timedelta

import pytest


def hurry(patch: pytest.MonkeyPatch) -> None:
    # When a saga runs that is resumed.
    patch.setattr("onefold._engines.dbos.dbos_engine._QUEUE_S", 0.1)
    # When a workflow's task is tried again that failed, or whose process died.
    patch.setattr("onefold._engines.temporal.temporal_engine._TASK_TIMEOUT", timedelta(seconds=1))
    patch.setattr("onefold._engines.temporal.temporal_engine._STICKY", timedelta(seconds=1))
