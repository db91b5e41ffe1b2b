"""The workflow that every saga is on Temporal, and what it asks Temporal for.

Theory of operation. A request to cancel is noted and nothing more: the saga runs in a task that is never cancelled, and
sees the note where it next asks for something. So a step that runs ends before its compensation begins, and
compensations are out of the reach of a second request. What the saga was answered is kept beside it, for the activities
(`recorded_saga.py`).

An EngineFault fails the workflow's task and not the workflow: Temporal tries that again until the code fits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from onefold._engines.journalled_attempts import Attempt
from onefold._engines.server_context import TIMEOUT, ServerContext
from onefold._engines.temporal.recorded_saga import IS_CANCELLED, RecordedAnswers, signal_name
from onefold._kernel.extras import missing_extra
from onefold._kernel.telemetry import Listener
from onefold._saga.definition import AnySaga, Start
from onefold._saga.execution import run_saga
from onefold._saga.saga_errors import EngineFault
from onefold._saga.saga_telemetry import StuckSagas, report_end, report_stop
from onefold._saga.saga_values import Json

try:
    from temporalio import workflow
    from temporalio.common import RawValue, RetryPolicy
    from temporalio.exceptions import ActivityError
    from temporalio.worker import (
        ExecuteWorkflowInput,
        Interceptor,
        WorkflowInboundInterceptor,
        WorkflowInterceptorClassInput,
    )
except ModuleNotFoundError as error:
    raise missing_extra(error, "temporal") from None

#: Signals that are not the saga's own. The second has Temporal try again, the third is for the history.
CANCEL, RETRY, ACTION = "onefold.cancel", "onefold.retry", "onefold.action"
_STEP_TIMEOUT: Final = timedelta(days=1)
#: For an activity whose process died, or whose code is wrong: there is no last attempt.
_AGAIN: Final = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=30))


class TemporalTaskFailed(Exception):
    """An EngineFault for Temporal: a task failed, and Temporal is to retry it later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSagas:
    """The sagas that a worker runs, and their settings."""

    sagas: Mapping[str, AnySaga]
    dead_after: timedelta
    listener: Listener | None
    stuck: StuckSagas

    def find(self, start: Start) -> AnySaga:
        """The definition. EngineFault: this worker does not have it (any more)."""
        definition = self.sagas.get(f"{start.saga}@{start.version}")
        if definition is None:
            raise EngineFault(
                f"saga {start.saga_id!r} stops: {start.saga!r} in version {start.version!r} is not run here: add it to "
                "sagas=[...]"
            )
        return definition


_serving: ContextVar[ServedSagas] = ContextVar("onefold.saga.temporal")


class ServedSagasInterceptor(Interceptor):
    """Passes the sagas of one worker to its workflows: their class has no other access to them."""

    def __init__(self, serving: ServedSagas) -> None:
        self._serving = serving

    def workflow_interceptor_class(self, _: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        serving = self._serving

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, call: ExecuteWorkflowInput) -> Any:
                _serving.set(serving)
                return await super().execute_workflow(call)

        return Inbound


@workflow.defn(dynamic=True)
class SagaWorkflow:
    """One saga. Its type is the saga's name and version, its id is the saga's."""

    def __init__(self) -> None:
        self.cancelled: str | None = None
        self.signals: list[tuple[str, Json]] = []
        self._signal_ids: set[tuple[str, str | None]] = set()

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Any:
        serving = _serving.get()
        start = Start.from_json(workflow.payload_converter().from_payload(args[0].payload))
        body = asyncio.create_task(self._run(serving, start))
        while not body.done():
            try:
                await asyncio.shield(body)
            except asyncio.CancelledError:
                if not body.done():
                    self.cancelled = self.cancelled or "cancelled"
            except Exception:
                break
        return body.result()

    @workflow.signal(dynamic=True)
    def take(self, name: str, args: Sequence[RawValue]) -> None:
        if name in (RETRY, ACTION):
            return
        payload = workflow.payload_converter().from_payload(args[0].payload)
        if name == CANCEL:
            self.cancelled = self.cancelled or payload["reason"]
        elif payload["id"] is None or (name, payload["id"]) not in self._signal_ids:
            self._signal_ids.add((name, payload["id"]))
            self.signals.append((name, payload["data"]))

    async def _run(self, serving: ServedSagas, start: Start) -> Json:
        try:
            context = TemporalContext(self, start, serving)
            outcome = await run_saga(serving.find(start), start, context, stuck=serving.stuck)
        except EngineFault as fault:
            report_stop(serving.listener, start, fault)
            # Without its cause: Temporal truncates failures beyond 2 KB, and would lose the message.
            raise TemporalTaskFailed(str(fault)) from None
        if not workflow.unsafe.is_replaying():
            report_end(serving.listener, start, outcome)
        return outcome


class TemporalContext(ServerContext):
    """One running saga, as its workflow sees it."""

    server = "Temporal"

    def __init__(self, saga: SagaWorkflow, start: Start, serving: ServedSagas) -> None:
        super().__init__()
        self._saga = saga
        self._start = start
        self._serving = serving
        self._record = RecordedAnswers([])

    async def wait_signal(self, signal: str, timeout_s: float | None) -> Json:
        name, signals = signal_name(signal), self._saga.signals

        def position() -> int | None:
            return next((at for at, (each, _) in enumerate(signals) if each == name), None)

        if not await self._wait(name, lambda: position() is not None, timeout_s, TIMEOUT):
            return self._record.add(name, None)
        at = position()
        assert at is not None
        return self._record.add(name, {"data": signals.pop(at)[1]})

    async def cancel_requested(self) -> bool:
        # The request may have come with what the saga just failed at: what notes it has its turn first.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return bool(self._record.add(IS_CANCELLED, self._saga.cancelled is not None))

    async def _journal(self, name: str, attempt: Attempt) -> Json:
        """The attempt is made where the activity runs, which finds it by its name."""
        del attempt
        self._check_cancelled(name)
        running = workflow.start_activity(
            name,
            {"start": self._start.to_json(), "answers": list(self._record.answers), "wanted": name},
            start_to_close_timeout=_STEP_TIMEOUT,
            heartbeat_timeout=self._serving.dead_after,
            retry_policy=_AGAIN,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        await workflow.wait_condition(lambda: running.done() or self._is_cancelled())
        if not running.done():
            # One that waits for its next attempt is not made again; one that runs ends first.
            running.cancel()
        try:
            return self._record.add(name, await running)
        except (ActivityError, asyncio.CancelledError) as error:
            self._check_cancelled(name)
            raise EngineFault(f"saga {self._start.saga_id!r} stops: Temporal gave {name!r} up: {error}") from error

    async def _sleep(self, seconds: float, *, name: str) -> None:
        await self._wait(name, lambda: False, seconds, name)
        self._record.add(name, None)

    async def _wait(self, what: str, there: Callable[[], bool], timeout_s: float | None, timer: str) -> bool:
        """Until it is there. False: the time is over. CancelRequested, unless shielded."""
        self._check_cancelled(what)
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        try:
            await workflow.wait_condition(
                lambda: there() or self._is_cancelled(), timeout=timeout, timeout_summary=timer
            )
        except TimeoutError:
            return False
        self._check_cancelled(what)
        return True

    def _is_cancelled(self) -> bool:
        return self._saga.cancelled is not None and not self._shielded

    def _check_cancelled(self, what: str) -> None:
        if self._saga.cancelled is not None and not self._shielded:
            raise self._record.add_cancel(what, self._saga.cancelled)
