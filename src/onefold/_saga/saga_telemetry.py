"""What sagas come to, told to the listener of their engine."""

from __future__ import annotations

from threading import Lock

from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.saga_events import SagaEnded, SagaOutcome, StuckSagasCounted
from onefold._saga.definition import Start
from onefold._saga.saga_values import Json


def tell_end(listener: Listener | None, start: Start, outcome: Json) -> None:
    """Tell of what `run_saga` returned."""
    if listener is None:
        return
    ended: SagaOutcome = "cancelled" if outcome.get("cancelled") else outcome["outcome"]
    emit(listener, SagaEnded(start.saga, start.saga_id, ended, outcome.get("error", "")))


def tell_stop(listener: Listener | None, start: Start, why: object) -> None:
    """Tell of a saga that has stopped."""
    emit(listener, SagaEnded(start.saga, start.saga_id, "stopped", str(why)))


class StuckSagas:
    """Which of the sagas that this process runs are stuck. One that it gives up is another process's, or none's for as
    long as its server lets it rest."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._stuck: set[tuple[str, str]] = set()
        self._lock = Lock()  # Temporal runs workflows on threads.

    def add(self, start: Start) -> None:
        """A round of its compensation has failed."""
        self._change(start, stuck=True)

    def remove(self, start: Start) -> None:
        """Its compensation is done, or it is not run here any more."""
        self._change(start, stuck=False)

    def _change(self, start: Start, *, stuck: bool) -> None:
        saga = start.saga, start.saga_id
        with self._lock:
            if stuck == (saga in self._stuck):
                return
            (self._stuck.add if stuck else self._stuck.discard)(saga)
            count = sum(name == start.saga for name, _ in self._stuck)
            emit(self._listener, StuckSagasCounted(start.saga, count))
