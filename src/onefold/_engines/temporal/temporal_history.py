"""Temporal's history, read as the history of a saga."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from onefold._engines.journalled_attempts import settled, step_entry, step_of
from onefold._engines.server_context import SLEEP
from onefold._engines.temporal.recorded_saga import signal_name
from onefold._engines.temporal.temporal_workflow import ACTION, CANCEL, RETRY
from onefold._kernel.extras import missing_extra
from onefold._saga.definition import Start
from onefold._saga.saga_status import HistoryEntry, State, judge
from onefold._saga.saga_values import Json

try:
    from temporalio.api.common.v1 import Payloads
    from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
    from temporalio.api.history.v1 import HistoryEvent
    from temporalio.converter import PayloadConverter
except ModuleNotFoundError as error:
    raise missing_extra(error, "temporal") from None

_SIGNAL: Final = signal_name("")
#: Temporal itself has a task fail, and makes it again at once: for a signal that came while it was done, for example.
_NOT_THE_CODES: Final = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FAILOVER_CLOSE_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
)
_ENDS: Final = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed out",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "was cancelled as a whole",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "was terminated",
}


@dataclass(slots=True)
class _Event:
    """Something that began, and what it ended with."""

    kind: str
    name: str
    at: datetime
    answer: Json = None
    ended_at: datetime | None = None


@dataclass(slots=True)
class SagaEvents:
    """What a workflow's history says of its saga."""

    start: Start | None = None
    outcome: Json = None
    cancelled: bool = False
    stopped: str | None = None
    stopped_at: datetime | None = None
    resumed_at: datetime | None = None
    """When an operator last resumed it."""
    history: list[HistoryEntry] = field(default_factory=list)

    def judge(self) -> tuple[State, str | None]:
        """The state of the saga, and its error."""
        return judge(self.outcome, settled(self.history), self.stopped)


async def read_events(events: AsyncIterable[HistoryEvent], converter: PayloadConverter) -> SagaEvents:
    """Read a whole history."""
    saga, entries = SagaEvents(), dict[int, _Event]()
    async for event in events:
        _read(event, saga, entries, converter)
    saga.history = _history(entries.values())
    return saga


def _read(event: HistoryEvent, saga: SagaEvents, entries: dict[int, _Event], converter: PayloadConverter) -> None:
    at = event.event_time.ToDatetime(UTC)
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            saga.start = Start.from_json(_value(event.workflow_execution_started_event_attributes.input, converter))
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            saga.outcome = _value(event.workflow_execution_completed_event_attributes.result, converter)
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
            saga.cancelled = True
        case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failed = event.workflow_task_failed_event_attributes
            if failed.cause not in _NOT_THE_CODES:
                saga.stopped, saga.stopped_at = failed.failure.message, at
        case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            saga.stopped = None
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            _read_signal(event, saga, entries, converter)
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            entries[event.event_id] = _Event("step", name, at)
        case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            step = entries[done.scheduled_event_id]
            step.answer, step.ended_at = _value(done.result, converter), at
        case EventType.EVENT_TYPE_TIMER_STARTED:
            # Without a summary it is none of ours, but of an asyncio.sleep in the saga's function.
            summary = event.user_metadata.summary
            if summary.metadata and converter.from_payload(summary, str) == SLEEP:
                entries[event.event_id] = _Event("sleep", "", at)
        case EventType.EVENT_TYPE_TIMER_FIRED:
            if (timer := entries.get(event.timer_fired_event_attributes.started_event_id)) is not None:
                timer.ended_at = at
        case other:
            if (ended := _ENDS.get(other)) is not None:
                saga.stopped, saga.stopped_at = f"its workflow {ended} in Temporal, and nothing was undone", at


def _read_signal(
    event: HistoryEvent, saga: SagaEvents, entries: dict[int, _Event], converter: PayloadConverter
) -> None:
    signal = event.workflow_execution_signaled_event_attributes
    at = event.event_time.ToDatetime(UTC)
    saga.cancelled |= signal.signal_name == CANCEL
    if signal.signal_name in (CANCEL, RETRY):
        # From here on it runs; if it fails again, Temporal adds a new event.
        saga.stopped, saga.resumed_at = None, at
    if signal.signal_name == ACTION:
        payload = _value(signal.input, converter)
        entries[event.event_id] = _Event("action", payload["action"], at, answer=payload["actor"], ended_at=at)
    if signal.signal_name.startswith(_SIGNAL):
        payload = _value(signal.input, converter)
        name = signal.signal_name.removeprefix(_SIGNAL)
        entries[event.event_id] = _Event("signal", name, at, answer=payload["data"], ended_at=at)


def _history(events: Iterable[_Event]) -> list[HistoryEntry]:
    history: list[HistoryEntry] = []
    for (kind, name), group in groupby(events, key=lambda event: (event.kind, step_of(event.name))):
        if kind == "step":
            attempts = list(group)
            answers = [each.answer for each in attempts]
            history.append(step_entry(name, answers, started_at=attempts[0].at, ended_at=attempts[-1].ended_at))
        else:
            history += [_other(each) for each in group]
    return history


def _other(event: _Event) -> HistoryEntry:
    kind: Any = event.kind
    return HistoryEntry(kind=kind, name=event.name, result=event.answer, started_at=event.at, ended_at=event.ended_at)


def _value(payloads: Payloads, converter: PayloadConverter) -> Json:
    return converter.from_payload(payloads.payloads[0]) if payloads.payloads else None
