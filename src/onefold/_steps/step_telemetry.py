"""What becomes of steps, told to the application's listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onefold._kernel.telemetry import Listener, tell
from onefold._kernel.telemetry.request_events import StepEnded, StepKind, StepOutcome

StepEnds: TypeAlias = Callable[[StepKind, StepOutcome], None]


def tell_steps(listener: Listener | None, operation: str) -> StepEnds:
    """What is called when a step of the operation has ended."""
    return ignore if listener is None else lambda kind, outcome: tell(listener, StepEnded(operation, kind, outcome))


def ignore(kind: StepKind, outcome: StepOutcome) -> None:
    """Where nothing listens."""
