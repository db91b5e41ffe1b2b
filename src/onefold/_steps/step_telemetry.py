"""Reports the outcomes of steps to the application's listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.request_events import StepEnded, StepKind, StepOutcome, WorkIsParked

StepEnds: TypeAlias = Callable[[StepKind, StepOutcome], None]


class StepReporter(NamedTuple):
    """Reports the steps of one operation."""

    listener: Listener | None = None
    operation: str = ""

    def report_end(self, kind: StepKind, outcome: StepOutcome) -> None:
        if self.listener is not None:
            emit(self.listener, StepEnded(self.operation, kind, outcome))

    def report_parked(self, attempts: int, reason: str) -> None:
        """Its work waits for a person."""
        if self.listener is not None:
            emit(self.listener, WorkIsParked(self.operation, attempts, reason))


def ignore(kind: StepKind, outcome: StepOutcome) -> None:
    """A StepEnds for a work without a listener."""
