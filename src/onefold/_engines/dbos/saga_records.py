"""Converts DBOS's records of a saga to a status and a history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from dbos import StepInfo, WorkflowStatus

from onefold._engines.dbos.saga_context import AUDIT, CANCEL, NOW, PAUSE, STOPPED
from onefold._saga.definition import Start
from onefold._saga.saga_status import HistoryEntry, SagaStatus, entry_of, judge
from onefold._saga.saga_values import Json

#: DBOS calls a saga's end SUCCESS, whether it completed or was compensated: that is in its outcome.
ENDED: Final = "SUCCESS"
#: It raised an error that no saga raises: DBOS does not run it again.
FAILED: Final = "ERROR"
#: Waiting, or at work.
OPEN: Final = ("PENDING", "ENQUEUED", "DELAYED")

#: DBOS's names of a wait for a message, and of a timer.
RECEIVE: Final = "DBOS.recv"
SLEEP: Final = "DBOS.sleep"

_FOREIGN = "DBOS has it as {} ({}), which is not onefold's doing: nothing is undone. `retry` has it go on where it was"


def start_of(workflow: WorkflowStatus) -> Start:
    """The Start of a saga."""
    assert workflow.input is not None
    return Start.from_json(workflow.input["args"][0])


def outcome_of(workflow: WorkflowStatus) -> Json:
    """The outcome of the saga; None: it has not ended."""
    return workflow.output if workflow.status == ENDED else None


def stopped_of(workflow: WorkflowStatus) -> str | None:
    """The fault that stopped the saga; None: it has ended, or goes on."""
    if workflow.status not in (*OPEN, ENDED):
        return _FOREIGN.format(workflow.status, workflow.error)
    stopped: str | None = (workflow.attributes or {}).get(STOPPED)
    return stopped


def status_of(workflow: WorkflowStatus, history: Sequence[HistoryEntry]) -> SagaStatus:
    start, attributes = start_of(workflow), workflow.attributes or {}
    outcome = outcome_of(workflow)
    state, error = judge(outcome, history, stopped_of(workflow))
    return SagaStatus(
        saga_id=start.saga_id,
        saga=start.saga,
        version=start.version,
        state=state,
        error=error,
        cancelled=bool(outcome["cancelled"] if outcome and "cancelled" in outcome else attributes.get(CANCEL)),
        started_at=moment(workflow.created_at),
        updated_at=moment(workflow.updated_at),
    )


def history_of(steps: Sequence[StepInfo]) -> list[HistoryEntry]:
    """Every step, in order. Each attempt of a transaction is a step of its own to DBOS, and an entry here."""
    entries = zip(steps, _entries(steps), strict=True)
    return [
        replace(entry, started_at=moment(step["started_at_epoch_ms"]), ended_at=moment(step["completed_at_epoch_ms"]))
        for step, entry in entries
        if entry is not None
    ]


def _entries(steps: Sequence[StepInfo]) -> Iterator[HistoryEntry | None]:
    names = {step["function_id"]: step["function_name"] for step in steps}
    is_pause = False
    for step in steps:
        name = step["function_name"]
        is_pause = name == PAUSE if name in (NOW, PAUSE) else is_pause
        # The timer after a wait for a message is the time limit of that wait.
        is_limit = name == SLEEP and names.get(step["function_id"] - 1, RECEIVE) == RECEIVE
        entry = _entry(step, is_pause=is_pause)
        yield None if is_limit and entry is not None and entry.kind == "sleep" else entry


def _entry(step: StepInfo, *, is_pause: bool) -> HistoryEntry | None:
    name, output, error = step["function_name"], step["output"], step["error"]
    if isinstance(output, dict) and "attempts" in output:  # first, for a step may have any name
        return entry_of(name, output)
    if name == SLEEP:
        return HistoryEntry(kind="sleep", name="")
    if name == RECEIVE:
        if not isinstance(output, dict):
            return HistoryEntry(kind="sleep", name="") if is_pause else None
        if "cancel" in output:
            return HistoryEntry(kind="signal", name="cancel", result=output["cancel"])
        return HistoryEntry(kind="signal", name=output["signal"], result=output["data"])
    if isinstance(output, dict) and "cancelled" in output:
        return HistoryEntry(kind="signal", name="cancel", result=output["cancelled"])
    record: Json = output if error is None else {"error": str(error), "attempts": 1, "failures": [str(error)]}
    return entry_of(name, record)


def actions_of(workflow: WorkflowStatus) -> list[HistoryEntry]:
    """The actions of operators on a saga."""
    return [
        HistoryEntry(kind="action", name=each["action"], result=each["actor"], ended_at=moment(each["at_ms"]))
        for name, each in (workflow.attributes or {}).items()
        if name.startswith(AUDIT)
    ]


def moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
