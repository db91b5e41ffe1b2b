"""Reports the ends of sagas, and counts of stuck ones, to the listener of their engine."""

from __future__ import annotations

from threading import Lock

from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.saga_events import SagaEnded, SagaOutcome, StuckSagasCounted
from onefold._saga.definition import Start
from onefold._saga.saga_values import Json


def report_end(listener: Listener | None, start: Start, outcome: Json) -> None:
    """Report the outcome that `run_saga` returned."""
    if listener is None:
        return
    ended: SagaOutcome = "cancelled" if outcome.get("cancelled") else outcome["outcome"]
    emit(listener, SagaEnded(start.saga, start.saga_id, ended, outcome.get("error", "")))


def report_stop(listener: Listener | None, start: Start, why: object) -> None:
    """Report a saga that has stopped."""
    emit(listener, SagaEnded(start.saga, start.saga_id, "stopped", str(why)))


class StuckSagas:
    """The stuck sagas among those that this process runs. One that it gives up belongs to another process, or to none
    until its server schedules it again."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._stuck: set[tuple[str, str]] = set()
        self._lock = Lock()  # Temporal runs workflows on threads.

    def add(self, start: Start) -> None:
        """Add a saga: a round of its compensation has failed."""
        self._change(start, stuck=True)

    def remove(self, start: Start) -> None:
        """Remove a saga: its compensation is done, or it does not run here any more."""
        self._change(start, stuck=False)

    def _change(self, start: Start, *, stuck: bool) -> None:
        saga = start.saga, start.saga_id
        with self._lock:
            if stuck == (saga in self._stuck):
                return
            (self._stuck.add if stuck else self._stuck.discard)(saga)
            count = sum(name == start.saga for name, _ in self._stuck)
            emit(self._listener, StuckSagasCounted(start.saga, count))
