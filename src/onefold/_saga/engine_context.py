"""The port of an engine for one running saga. Only `execution.py` calls it.

The engine journals every answer, and gives the same one in every replay. It raises its own errors (a journal that does
not fit the code, a shutdown) as `EngineFault` or any other BaseException that is not onefold's: the saga then stops,
and nothing is undone.
"""

from __future__ import annotations

from typing import Protocol

from onefold._saga.saga_values import Json
from onefold._saga.step_call import StepCall


class EngineContext(Protocol):
    """One running saga, as its engine sees it."""

    async def run_step(self, call: StepCall) -> Json:
        """The record of this step under `call.journal_name`: from the journal, or of `call.attempt(last=...)`, which is
        tried as often as `call.retry.attempts_max` says, with the pauses of `call.retry.backoff`. An engine that does
        not know which attempt is the last gives `last=False`, and makes a `call.failure(...)` of the final error.
        CancelRequested: it was not run, or not to its end, because a cancellation was requested; never for an undo."""
        ...

    async def run_tx(self, call: StepCall) -> Json:
        """`run_step` in a transaction of the user's database that commits together with the record; the function gets
        its session first. ConfigurationError where the engine has no such thing."""
        ...

    async def sleep(self, seconds: float) -> None:
        """A timer that survives the process. CancelRequested ends it early, but not while the saga compensates."""
        ...

    async def wait_signal(self, signal: str, timeout_s: float | None) -> Json:
        """`{"data": ...}` of the oldest signal of this name that was not taken yet, also one from before; None where
        none came in time. CancelRequested ends it early."""
        ...

    async def cancel_requested(self) -> bool:
        """Whether a cancellation is requested, now and not from the journal: once True, always True. Called when the
        saga would stop for a mistake in its own code, so that a stopped saga can be cancelled."""
        ...

    def shield(self) -> None:
        """Compensations begin: from here on CancelRequested is not raised."""
        ...
