"""How a call went: a report on its response or its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from onefold._policy.retry import Reason

_ATTRIBUTE = "onefold_report"
_CHAIN_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """The course of a call. `reason` is why there was no further attempt, or None where none was needed."""

    attempts: int
    """How many were made."""
    key: str | None = None
    """The Idempotency-Key that was sent, if one was."""
    intent: str | None = None
    """The name of the intent that the key belongs to."""
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


class LayerReport:
    """A report that some layer has left on an answer or an error, and when."""

    __slots__ = ("at", "report")

    def __init__(self, report: CallReport | Callable[[], CallReport], at: float) -> None:
        self.report = report
        self.at = at

    def __call__(self) -> CallReport:
        return self.report if isinstance(self.report, CallReport) else self.report()


def report_of(ended: object) -> CallReport | None:
    """The report of a call, from its response or from the error it raised; None for calls that were not retrying."""
    report: Callable[[], CallReport] | None = getattr(ended, _ATTRIBUTE, None)
    return None if report is None else report()


def was_retried_below(ended: object, began: float) -> bool:
    """Whether another layer has retried what ended like this, or with what it came from, and has given up: in the
    middle of our attempt, which began then. What was left before that is of another call."""
    current = ended
    for _ in range(_CHAIN_MAX):
        if current is None:
            return False
        for each in (current, getattr(current, "response", None)):
            report = getattr(each, _ATTRIBUTE, None)
            if isinstance(report, LayerReport) and report.at >= began:
                return True
        current = getattr(current, "__cause__", None) or getattr(current, "__context__", None)
    return False


def attach(report: Callable[[], CallReport], ended: object) -> None:
    """Leave a report where `report_of` finds it. It is made when it is read, which is rare."""
    if (attributes := getattr(ended, "__dict__", None)) is not None:  # what takes none is handed on as it is
        attributes[_ATTRIBUTE] = report


def attach_to_error(report: CallReport, error: BaseException, at: float) -> None:
    """Attach the report to an error, and show it in the traceback."""
    attach(LayerReport(report, at), error)
    error.add_note(f"onefold: {report}")


def moment(at: float | None, now: float, wall_s: float) -> datetime | None:
    """A moment of the monotonic clock as a date."""
    return None if at is None else datetime.fromtimestamp(wall_s + (at - now), UTC)
