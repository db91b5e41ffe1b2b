"""Replays a saga up to one attempt at a step, in any process that has its definition.

Theory of operation. Temporal runs a workflow here and its activities there, and a step's function is an object of the
process that runs the workflow: a closure, a method, with arguments of this order. So an activity gets the saga's
recorded answers, runs the saga's function with them up to the requested attempt, makes that attempt, and leaves. Sagas
are written to be replayed from their beginning; this is one more replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from onefold._engines.journalled_attempts import Attempt
from onefold._engines.server_context import ServerContext
from onefold._kernel.telemetry import Listener
from onefold._saga.definition import AnySaga, Start
from onefold._saga.execution import run_saga
from onefold._saga.saga_errors import CancelRequested, EngineFault, describe_stop
from onefold._saga.saga_values import Json

IS_CANCELLED: Final = "is cancelled"
_NONE_YET: Final = object()


def signal_name(signal: str) -> str:
    """The name of a wait for a signal in the record."""
    return f"signal:{signal}"


@dataclass(slots=True)
class RecordedAnswers:
    """The answers of the engine so far, in order: the name of each operation, and its answer."""

    answers: list[tuple[str, Json]]

    def add(self, name: str, answer: Json) -> Json:
        self.answers.append((name, answer))
        return answer

    def add_cancel(self, name: str, reason: str) -> CancelRequested:
        self.answers.append((name, {"cancelled": reason}))
        return CancelRequested(reason)


class _Reached(BaseException):
    """The attempt was made. Not an Exception: a saga catches those."""

    def __init__(self, record: Json) -> None:
        super().__init__()
        self.record = record


async def run_recorded(
    definition: AnySaga,
    start: Start,
    answers: Sequence[tuple[str, Json]],
    target: str,
    listener: Listener | None = None,
) -> Json:
    """Make the attempt `target`, which follows these answers. EngineFault: this definition takes other steps."""
    try:
        await run_saga(definition, start, _Recorded(start, answers, target), listener=listener)
    except _Reached as reached:
        return reached.record
    raise EngineFault(
        f"{describe_stop(start.saga_id)}its function now ends before {target!r}; another "
        "order of steps needs another version"
    )


class _Recorded(ServerContext):
    """The engine of a replayed saga."""

    server = "Temporal"

    def __init__(self, start: Start, answers: Sequence[tuple[str, Json]], target: str) -> None:
        super().__init__()
        self._start = start
        self._answers = iter(answers)
        self._target = target

    async def wait_signal(self, signal: str, timeout_s: float | None) -> Json:
        return await self._next(signal_name(signal))

    async def cancel_requested(self) -> bool:
        return bool(await self._next(IS_CANCELLED))

    async def _journal(self, name: str, attempt: Attempt) -> Json:
        return await self._next(name, attempt)

    async def _sleep(self, seconds: float, *, name: str) -> None:
        await self._next(name)

    async def _next(self, name: str, attempt: Attempt | None = None) -> Json:
        recorded, answer = next(self._answers, (self._target, _NONE_YET))
        if recorded != name:
            raise EngineFault(
                f"{describe_stop(self._start.saga_id)}its record has {recorded!r} where its "
                f"function now has {name!r}; another order of steps needs another version"
            )
        if answer is _NONE_YET:
            assert attempt is not None
            raise _Reached(await attempt())
        if isinstance(answer, dict) and "cancelled" in answer:
            raise CancelRequested(answer["cancelled"])
        return answer
