"""One step as an engine runs it: its function, its arguments as JSON, its key, and its record.

Theory of operation. An engine runs `attempt` until it gives a record, which the engine journals and gives to every
replay. A record says that the step has a result, or that it failed for good: failures are values, so that all engines
store them alike. The engine retries an attempt that raises, except for `EngineFault`, which stops the saga.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from onefold._kernel.results import result_type_of
from onefold._kernel.serial_thread import call_in_thread
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.saga_events import AttemptOutcome, SagaStepAttempted, SagaStuck
from onefold._kernel.tracing import tracer_of
from onefold._policy.retry import RetryPolicy
from onefold._saga.saga_errors import Abort, EngineFault, StepFailed, describe_stop
from onefold._saga.saga_names import UNDO, step_key, undo_key
from onefold._saga.saga_values import Json, decode, encode, parameter_types
from onefold._saga.step_keys import StepKeys, running
from onefold.errors import ResultNotSerializable, ResultUnreadable

_log = logging.getLogger("onefold.saga")

ERROR_CHARACTERS_MAX: Final = 1000
#: How many failed attempts a record lists.
FAILURES_MAX: Final = 20


class StepBrokeOff(Exception):
    """An attempt raised something that is not an Exception. The step has failed; its process goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCall:
    """A step of one saga, or one round of its compensation, and how its attempts have failed so far."""

    saga: str
    saga_id: str
    step: str
    function: Callable[..., Any]
    args: tuple[Json, ...]
    """As JSON: an engine may run the function in another process."""
    retry: RetryPolicy
    undo: bool = False
    round: int = 1
    """Of a compensation: the rounds before have used up their attempts."""
    failures: list[str] = field(default_factory=list)
    """Of its attempts, in this process: it grows with each."""
    listener: Listener | None = None

    @property
    def journal_name(self) -> str:
        """Its name in the engine's journal."""
        if not self.undo:
            return self.step
        return f"{self.step}:{UNDO}" if self.round == 1 else f"{self.step}:{UNDO}:{self.round}"

    @property
    def keys(self) -> StepKeys:
        """Its idempotency keys, the same in every attempt and round."""
        forward = step_key(self.saga_id, self.step)
        return StepKeys(
            key=undo_key(self.saga_id, self.step) if self.undo else forward, forward=forward, undo=self.undo
        )

    async def attempt(self, *, last: bool) -> Json:
        """Run the function once. The record of its result, or of its failure where that is final: it aborted, or this
        is the `last` attempt. Else what it raised."""
        args = self.arguments()
        try:
            with self.running():
                value = await self._call(args)
        except Exception as error:
            return self.fail(error, last=last)
        record = self.record(value)
        self.report_attempt("done")
        return record

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block in which its function runs, under its keys, and in a span where traces are made."""
        keys, tracer = self.keys, tracer_of(self.listener)
        with running(keys), ExitStack() as stack:
            if tracer is not None:
                from onefold._saga.saga_trace import trace_attempt

                stack.enter_context(trace_attempt(
                    tracer, saga=self.saga, saga_id=self.saga_id, name=self.journal_name, key=keys.key,
                    attempt=len(self.failures) + 1,
                ))  # fmt: skip
            yield

    def arguments(self, *, after: int = 0) -> list[Any]:
        """The decoded arguments of the function, after those that an engine puts first."""
        types = parameter_types(self.function, len(self.args), after=after)
        what = f"an argument of step {self.journal_name!r}"
        try:
            return [decode(arg, annotation, what=what) for arg, annotation in zip(self.args, types, strict=True)]
        except ResultUnreadable as error:
            raise EngineFault(f"{describe_stop(self.saga_id)}{error}") from None

    def record(self, value: object) -> Json:
        """The record of a result. One that is not JSON stops the saga: its effect has happened, and compensating for a
        mistake in the code would hide it. Repaired code runs the step again, under the same key. The result of a
        compensation is left out, because nothing reads it."""
        try:
            result = encode(
                value, result_type_of(self.function), what=f"the result of step {self.journal_name!r}, which has run,"
            )
        except ResultNotSerializable as error:
            if not self.undo:
                raise EngineFault(f"{describe_stop(self.saga_id)}{error}") from None
            _log.warning(
                "saga %s: step %s is undone, and what its compensation returned is not kept: %s",
                self.saga_id, self.step, error,
            )  # fmt: skip
            result = None
        return {"result": result, "attempts": len(self.failures) + 1, "failures": self.failures[:FAILURES_MAX]}

    def failure(self, error: str, *, aborted: bool) -> Json:
        """The record of a failure that is final."""
        return {
            "error": error,
            "aborted": aborted,
            "attempts": max(1, len(self.failures)),
            "failures": self.failures[:FAILURES_MAX],
        }

    def read(self, record: Json) -> Any:
        """The result in a record, or StepFailed."""
        if "error" in record:
            raise StepFailed(self.journal_name, record["error"], aborted=record["aborted"])
        what = f"the result of step {self.journal_name!r}"
        return decode(record["result"], result_type_of(self.function), what=what)

    async def _call(self, args: list[Any]) -> Any:
        try:
            if inspect.iscoroutinefunction(self.function):
                value = self.function(*args)
            else:
                # The thread has this context, and so the step's keys. Without the limit: a thread cannot be broken off,
                # and the next attempt, or the compensation, would run beside it.
                value = await call_in_thread(partial(self._call_in_thread, args))
                if not inspect.isawaitable(value):
                    return value
            async with asyncio.timeout(self.retry.attempt_s):
                return await value
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # This process ends, or gives up the saga.
            # From a task that the step awaits. An engine would take it for its own, and the saga would hang.
            raise StepBrokeOff("it was cancelled by something that it awaits") from error

    def _call_in_thread(self, args: list[Any]) -> Any:
        try:
            return self.function(*args)
        except SystemExit as error:
            # No signal of the process is raised in this thread; passed on it would end the event loop.
            raise StepBrokeOff(f"it called sys.exit({error.code!r})") from error

    def fail(self, error: Exception, *, last: bool) -> Json:
        """Count a failed attempt. Returns its record if it is final, else raises the error again."""
        aborted, text = isinstance(error, Abort), describe(error)
        self.failures.append(text)
        self.report_failure(text, last=last, aborted=aborted)
        if last or aborted:
            return self.failure(text, aborted=aborted)
        raise error

    def report_attempt(self, outcome: AttemptOutcome) -> None:
        """Report an attempt that was just made in this process to the listener."""
        kind: Literal["step", "undo"] = "undo" if self.undo else "step"
        emit(self.listener, SagaStepAttempted(self.saga, self.saga_id, self.step, kind, outcome))

    def report_failure(self, error: str, *, last: bool, aborted: bool) -> None:
        """Log and report an attempt that has just failed. `last`: no attempt is left."""
        self.report_attempt("aborted" if aborted else "failed" if last else "retried")
        if self.undo and (last or aborted):
            emit(self.listener, SagaStuck(self.saga, self.saga_id, self.step, self.round, error))
        if self.undo and (last or aborted):
            _log.error(
                "saga %s is stuck: the compensation of step %s failed in round %d (%s); the next begins after a pause",
                self.saga_id, self.step, self.round, error,
            )  # fmt: skip
        elif aborted:
            _log.info("saga %s: step %s aborted (%s)", self.saga_id, self.step, error)
        elif last:
            _log.warning("saga %s: step %s failed, and has no attempts left (%s)", self.saga_id, self.step, error)
        else:
            _log.info(
                "saga %s: attempt %d at step %s failed (%s); it is tried again",
                self.saga_id, len(self.failures), self.journal_name, error,
            )  # fmt: skip


def describe(error: BaseException) -> str:
    """The text of an error in records and lists."""
    return f"{type(error).__qualname__}: {error}"[:ERROR_CHARACTERS_MAX]
