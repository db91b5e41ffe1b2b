"""The status and history of a saga as data, made from the records of an engine's journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from onefold._saga.saga_names import UNDO
from onefold._saga.saga_values import Json

State: TypeAlias = Literal["running", "compensating", "stuck", "stopped", "completed", "compensated"]
"""stuck: a compensation keeps failing, and is tried again and again. stopped: the code or the engine is at fault, and
nothing goes on until that is repaired and the saga is retried: by a person, or by the process that takes over when the
one that has it is replaced. The last two are final."""

STATES: tuple[State, ...] = ("running", "compensating", "stuck", "stopped", "completed", "compensated")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """An entry of a saga's history: a step, a compensation, a pause, a received signal, or an operator's action."""

    kind: Literal["step", "undo", "sleep", "signal", "action"]
    """undo is a compensation, sleep a pause, action an operator's."""
    name: str
    """Of the step, the signal or the action."""
    attempts: int = 1
    """How many there were; of a compensation in this round."""
    failures: tuple[str, ...] = ()
    """The errors of the attempts before the last, as far as the engine has kept them."""
    result: Json = None
    """The result of the step, or the data of the signal."""
    error: str | None = None
    """It failed for good, or this round of a compensation did."""
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaStatus:
    """The status of a saga."""

    saga_id: str
    saga: str
    version: str
    state: State
    """running, compensating, stuck (a compensation keeps failing, and is tried again), stopped (it waits for a person),
    completed or compensated."""
    error: str | None = None
    """Why it is stuck or stopped, or why it was compensated."""
    cancelled: bool = False
    """A cancellation is requested, or the saga was compensated for one."""
    started_at: datetime | None = None
    updated_at: datetime | None = None


def entry_of(
    journal_name: str, record: Json, *, started_at: datetime | None = None, ended_at: datetime | None = None
) -> HistoryEntry | None:
    """The entry of a step's record under its name in the journal; None for a record that is not of a step."""
    if not isinstance(record, dict) or "attempts" not in record:
        return None
    step, _, rest = journal_name.partition(":")
    return HistoryEntry(
        kind="undo" if rest.partition(":")[0] == UNDO else "step",
        name=step,
        attempts=record["attempts"],
        failures=tuple(record["failures"]),
        result=record.get("result"),
        error=record.get("error"),
        started_at=started_at,
        ended_at=ended_at,
    )


def judge(outcome: Json, history: Sequence[HistoryEntry], stopped: str | None) -> tuple[State, str | None]:
    """The state and the error of a saga with this outcome (None: it has none yet), history and stopping fault."""
    if outcome is not None:
        return ("completed", None) if outcome["outcome"] == "completed" else ("compensated", outcome["error"])
    if stopped is not None:
        return "stopped", stopped
    undone = [entry for entry in history if entry.kind == "undo"]
    if not undone:
        return "running", None
    last = undone[-1]
    return ("stuck", f"undo of step {last.name!r}: {last.error}") if last.error else ("compensating", None)
