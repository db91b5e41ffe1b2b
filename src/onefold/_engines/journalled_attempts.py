"""The attempts of one step on engines with a server: each is an entry of the journal, and so are the pauses between.

A process that ends between two attempts therefore loses none of them: the next one goes on counting. A failed attempt
is a value, as a failed step is, so that replays see the same attempts with the same pauses.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import Final, TypeAlias

from onefold._saga.saga_names import UNDO
from onefold._saga.saga_status import HistoryEntry, entry_of
from onefold._saga.saga_values import Json
from onefold._saga.step_call import StepCall

_ATTEMPT: Final = ":attempt"

Attempt: TypeAlias = Callable[[], Awaitable[Json]]


async def run_attempts(
    call: StepCall,
    journal: Callable[[str, Attempt], Awaitable[Json]],
    pause: Callable[[float], Awaitable[None]],
) -> Json:
    """The record of a step. `journal` gives what is recorded under a name, or runs the attempt and records that."""
    failures: list[str] = []
    for number in count(1):
        name = call.journal_name if number == 1 else f"{call.journal_name}{_ATTEMPT}{number}"
        entry = await journal(name, _attempt(replace(call, failures=list(failures)), number))
        if "retry" not in entry:
            return entry
        failures.append(entry["retry"])
        await pause(entry["pause_s"])
    raise AssertionError("the last attempt gives a record")


def _attempt(call: StepCall, number: int) -> Attempt:
    async def attempt() -> Json:
        try:
            return await call.attempt(last=number >= call.retry.attempts_max)
        except Exception:
            pause_s = call.retry.backoff.wait_s(number, throttled=False, draw=random.random)
            return {"retry": call.failures[-1], "pause_s": pause_s}

    return attempt


def step_of(name: str) -> str:
    """The name of the step or compensation that an entry of the journal is an attempt at."""
    base, found, number = name.rpartition(_ATTEMPT)
    return base if found and number.isdigit() else name


def step_entry(name: str, answers: Sequence[Json], *, started_at: datetime, ended_at: datetime | None) -> HistoryEntry:
    """The entry of a step or compensation whose attempts were answered so; None: not yet."""
    if (entry := entry_of(name, answers[-1], started_at=started_at, ended_at=ended_at)) is not None:
        return entry
    step, _, rest = name.partition(":")
    return HistoryEntry(
        kind="undo" if rest.partition(":")[0] == UNDO else "step",
        name=step,
        attempts=len(answers),
        failures=tuple(each["retry"] for each in answers if each is not None),
        started_at=started_at,
    )


def settled(history: Sequence[HistoryEntry]) -> Sequence[HistoryEntry]:
    """The history without a running round of a compensation: until it has succeeded, the round before it decides the
    status of the saga."""
    if len(history) < 2 or history[-1].ended_at is not None:
        return history
    before = [entry for entry in history[:-1] if entry.kind == "undo"]
    again = bool(before) and (before[-1].name, history[-1].kind) == (history[-1].name, "undo")
    return history[:-1] if again else history
