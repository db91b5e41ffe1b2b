"""How a call went, for whoever holds its response or its error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from onefold.policy.retry import Reason

_ATTRIBUTE = "onefold_report"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """What became of a call. `reason` says why there was no further attempt, or is None where none was needed."""

    attempts: int
    key: str | None = None
    intent: str | None = None
    reason: Reason | None = None
    retry_at: datetime | None = None
    """When asking again makes sense: the moment the server asked for, or the breaker's."""

    def __str__(self) -> str:
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        text = f"after {times}" + (f", {self.reason.value}" if self.reason else "")
        if self.retry_at is not None:
            text += f"; ask again at {self.retry_at.isoformat(timespec='seconds')}"
        if self.intent is not None and self.reason is not None:
            text += f"; intent {self.intent!r} stays open"
        return text


def report_of(ended: object) -> CallReport | None:
    """The report of a call, from its response or from the error it raised; None for calls that were not retrying."""
    made: Callable[[], CallReport] | None = getattr(ended, _ATTRIBUTE, None)
    return made() if callable(made) else None


def attach(report: Callable[[], CallReport], ended: object) -> None:
    """Leave a report where `report_of` finds it. It is made when somebody asks: hardly anybody does."""
    with suppress(AttributeError):  # an object that takes no attributes is handed on as it is
        setattr(ended, _ATTRIBUTE, report)


def attach_to_error(report: CallReport, error: BaseException) -> None:
    """The same, and in the traceback."""
    attach(lambda: report, error)
    error.add_note(f"onefold: {report}")


def moment(at: float | None, now: float, wall_s: float) -> datetime | None:
    """A moment of the monotonic clock as a date."""
    return None if at is None else datetime.fromtimestamp(wall_s + (at - now), UTC)
