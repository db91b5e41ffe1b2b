"""Restate's journal, read as the history of a saga.

Invariant: the order of the entries is that of the journal, and a step that was tried several times is one entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from onefold._engines.journalled_attempts import settled, step_entry, step_of
from onefold._engines.server_context import SLEEP
from onefold._saga.definition import Start
from onefold._saga.saga_status import HistoryEntry, SagaStatus, judge
from onefold._saga.saga_values import Json

#: What Restate counts as the network's or the server's failure, not the code's: the attempt goes on elsewhere.
_NOT_THE_CODES: Final = ("RT0001", "RT0010")
#: Between attempts. In one, the last failure is still there.
_HALTED: Final = ("backing-off", "paused")
_CANCEL_SIGNAL: Final = 1
#: The SDK's additions to a failure: its status, and where it was raised, which is logged.
_LAST_FAILURE: Final = re.compile(r"\A\[\d+[^\]]*\] |\nTraceback .*\Z", re.DOTALL)


@dataclass(slots=True)
class SagaJournal:
    """The content of one journal."""

    start: Start | None = None
    outcome: Json = None
    cancelled: bool = False
    history: list[HistoryEntry] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """A command, and its answer."""

    name: str
    at: datetime
    kind: str
    answered: bool = False
    answer: Json = None
    answered_at: datetime | None = None


def read_journals(rows: Iterable[Mapping[str, Any]]) -> dict[str, SagaJournal]:
    """The journals by the ids of their invocations, of rows in order."""
    return {invocation: _read(list(entries)) for invocation, entries in groupby(rows, key=lambda row: str(row["id"]))}


def status_of(invocation: Mapping[str, Any], journal: SagaJournal) -> SagaStatus:
    """The status of an invocation's saga."""
    outcome, stopped = journal.outcome, None
    if invocation["status"] == "completed" and outcome is None:
        failure = invocation.get("completion_failure") or ""
        outcome = end_without_outcome(failure)
        stopped = None if outcome is not None else describe_kill(failure)
    elif invocation["status"] in _HALTED and invocation.get("last_failure_error_code") not in _NOT_THE_CODES:
        stopped = _LAST_FAILURE.sub("", str(invocation.get("last_failure") or "paused in Restate"))
    state, error = judge(outcome, settled(journal.history), stopped)
    start = journal.start
    return SagaStatus(
        saga_id=invocation["target_service_key"],
        saga="" if start is None else start.saga,
        version="" if start is None else start.version,
        state=state,
        error=error,
        cancelled=journal.cancelled or bool(outcome and outcome.get("cancelled")),
        started_at=_time(invocation["created_at"]),
        updated_at=_time(invocation["modified_at"]),
    )


def end_without_outcome(failure: str) -> Json:
    """The outcome of a workflow that was cancelled before it began: none of its steps ran. None: it was killed."""
    if "cancel" not in failure:
        return None
    return {"outcome": "compensated", "error": "cancelled before it began", "cancelled": True}


def describe_kill(failure: str) -> str:
    """Why a saga has stopped whose workflow was killed."""
    return f"killed in Restate, and nothing was undone: {failure}"


def _read(rows: Sequence[Mapping[str, Any]]) -> SagaJournal:
    journal = SagaJournal()
    open_entries: dict[int, _Open] = {}
    for row in rows:
        entry, at = json.loads(row["entry_json"]), _time(row["appended_at"])
        if "Command" in entry:
            _read_command(journal, open_entries, entry["Command"], at)
        else:
            _read_notification(journal, open_entries, entry["Notification"], at)
    journal.history = _history(open_entries.values())
    return journal


def _read_command(journal: SagaJournal, open_entries: dict[int, _Open], command: Json, at: datetime) -> None:
    [(kind, fields)] = command.items() if isinstance(command, dict) else [(command, {})]
    if kind == "Input":
        journal.start = Start.from_json(_payload(fields["payload"]))
    elif kind == "Output":
        journal.outcome = _payload(fields["result"]["Success"]) if "Success" in fields["result"] else None
    elif kind in ("Run", "Sleep", "GetPromise"):
        name = fields["key"].split(":", 2)[-1] if kind == "GetPromise" else fields["name"]
        open_entries[fields["completion_id"]] = _Open(name=name, at=at, kind=kind)


def _read_notification(journal: SagaJournal, open_entries: dict[int, _Open], notification: Json, at: datetime) -> None:
    if "Signal" in notification:
        journal.cancelled |= notification["Signal"]["id"] == {"Index": _CANCEL_SIGNAL}
        return
    [fields] = notification["Completion"].values()
    if (entry := open_entries.get(fields["completion_id"])) is not None:
        result = fields.get("result")
        entry.answered, entry.answered_at = True, at
        entry.answer = _payload(result["Success"]) if isinstance(result, dict) and "Success" in result else None


def _history(entries: Iterable[_Open]) -> list[HistoryEntry]:
    history: list[HistoryEntry] = []
    # The pauses between attempts are none of the saga's own.
    shown = [entry for entry in entries if entry.kind == "Run" or _other(entry) is not None]
    for step, attempts in groupby(shown, key=lambda entry: (entry.kind == "Run", step_of(entry.name))):
        if step[0]:
            every = list(attempts)
            answers = [each.answer for each in every]
            history.append(step_entry(step[1], answers, started_at=every[0].at, ended_at=every[-1].answered_at))
        else:
            history += [other for each in attempts if (other := _other(each)) is not None]
    return history


def _other(entry: _Open) -> HistoryEntry | None:
    if entry.kind == "Sleep" and entry.name == SLEEP:
        return HistoryEntry(kind="sleep", name="", started_at=entry.at, ended_at=entry.answered_at)
    if entry.kind == "GetPromise" and entry.answered:
        result = (entry.answer or {}).get("data")
        return HistoryEntry(
            kind="signal", name=entry.name, result=result, started_at=entry.at, ended_at=entry.answered_at
        )
    return None


def _payload(octets: Sequence[int]) -> Json:
    return json.loads(bytes(octets)) if octets else None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
