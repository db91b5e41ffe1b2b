"""What the flow of one running saga asks of its engine: see `execution.py`, which is the only one to call this.

All that is answered here is journalled by the engine and answered alike in every replay. An engine says its own
troubles (a journal that does not fit the code, a shutdown) by `EngineFault` or any other BaseException that is none of
ours: the saga then stops, and nothing is undone.
"""

from __future__ import annotations

from typing import Protocol

from onefold._saga.saga_values import Json
from onefold._saga.step_call import StepCall


class EngineContext(Protocol):
    """One running saga, as its engine sees it."""

    async def run_step(self, call: StepCall) -> Json:
        """The record of this step under `call.journal_name`: from the journal, or of `call.attempt(last=...)`, which is
        tried as often as `call.retry.attempts_max` says, with the pauses of `call.retry.backoff`. An engine that cannot
        tell the last attempt gives `last=False` and makes `call.failure(...)` of what was raised in the end.
        CancelRequested: it was not run, or not to its end, because the saga is asked to cancel; never for an undo."""
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
        """Whether the saga is asked to cancel, now and not from the journal: once True, always True. Asked where the
        saga would stop for a mistake in its own code, so that a stopped saga can be cancelled."""
        ...

    def shield(self) -> None:
        """Compensations begin: from here on requests to cancel are not raised."""
        ...
