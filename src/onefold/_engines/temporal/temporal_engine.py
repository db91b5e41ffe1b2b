"""Sagas on a Temporal server."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from onefold._engines.temporal.recorded_saga import signal_name
from onefold._engines.temporal.temporal_history import SagaEvents, read_events
from onefold._engines.temporal.temporal_steps import StepActivity
from onefold._engines.temporal.temporal_workflow import (
    ACTION,
    CANCEL,
    RETRY,
    SagaWorkflow,
    ServedSagas,
    ServedSagasInterceptor,
    TemporalTaskFailed,
)
from onefold._kernel.extras import missing_extra
from onefold._kernel.telemetry import Listeners
from onefold._policy.ranges import require
from onefold._saga.definition import AnySaga, Start
from onefold._saga.engine import SagaEngine
from onefold._saga.saga_errors import SagaStopped, SagaUnknown
from onefold._saga.saga_names import check_saga_id
from onefold._saga.saga_status import HistoryEntry, SagaStatus, State
from onefold._saga.saga_values import Json
from onefold.errors import ConfigurationError, OnefoldError, StoreUnavailable

try:
    from temporalio.api.enums.v1 import PendingActivityState
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, ResetActivityRequest
    from temporalio.client import Client, WorkflowExecutionDescription, WorkflowFailureError, WorkflowHandle
    from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
    from temporalio.exceptions import WorkflowAlreadyStartedError
    from temporalio.runtime import Runtime, TelemetryConfig
    from temporalio.service import RPCError, RPCStatusCode
    from temporalio.worker import UnsandboxedWorkflowRunner, Worker
except ModuleNotFoundError as error:
    raise missing_extra(error, "temporal") from None

_log = logging.getLogger("onefold.saga")

_MEMO: Final = "onefold"
_RETENTION_LEAST: Final = timedelta(days=7)
#: How long a task waits for the process that has the workflow in its memory; then any other takes it.
_STICKY: Final = timedelta(seconds=2)
#: After so long the workflow of a process that died goes on elsewhere, and one that stopped is tried again.
_TASK_TIMEOUT: Final = timedelta(seconds=5)
_AWAY: Final = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
_AWAY_S: Final = 0.5


class Temporal(SagaEngine):
    """Runs sagas on a Temporal server: `async with Temporal("localhost:7233", sagas=[order]) as engine`.

    `server` is its address, or a `temporalio.client.Client` of your own, which may have TLS and keys; `namespace` is
    one of that server's, `sagas` are those that it runs. Processes with the same `task_queue` run the same sagas; with
    `serve=False` the engine runs none, and starts what others run. A step whose process says nothing for `dead_after_s`
    is run again by another. Ids are known for the retention of the namespace. At its end a step that runs has `stop_s`
    to end. `listener` gets the events of this process."""

    def __init__(
        self,
        server: str | Client,
        *,
        sagas: Sequence[AnySaga],
        namespace: str = "default",
        task_queue: str = "onefold-sagas",
        serve: bool = True,
        dead_after_s: float = 30.0,
        stop_s: float = 10.0,
        listener: Listeners | None = None,
    ) -> None:
        super().__init__(sagas, listener)
        if not isinstance(server, str | Client):
            raise ConfigurationError(
                f"server={server!r} must be an address, as 'localhost:7233', or a Client of temporalio"
            )
        require("dead_after_s", dead_after_s, least=1, most=3600)
        require("stop_s", stop_s, most=3600)
        self._server = server
        self._namespace = server.namespace if isinstance(server, Client) else namespace
        self._task_queue = task_queue
        self._serve = serve
        self._serving = ServedSagas(
            sagas=self._sagas,
            dead_after=timedelta(seconds=dead_after_s),
            listener=self._listener,
            stuck=self._stuck,
        )
        self._stop = timedelta(seconds=stop_s)
        self._client: Client | None = server if isinstance(server, Client) else None
        self._worker: Worker | None = None
        #: Sagas that were resumed here, and since when they had stopped: Temporal shows a signal sent during a retried
        #: task only when that has timed out, minutes later if it was retried often.
        self._resumed: dict[str, datetime | None] = {}

    async def _open(self) -> None:
        if isinstance(self._server, str):
            try:
                self._client = await Client.connect(self._server, namespace=self._namespace, runtime=_runtime())
            except RuntimeError as error:
                raise StoreUnavailable(f"Temporal at {self._server} does not answer: {error}") from error
        await self._check_namespace()
        if self._serve and self._runs_sagas:
            self._worker = Worker(
                self._connected,
                task_queue=self._task_queue,
                workflows=[SagaWorkflow],
                activities=[StepActivity(self._serving).run],
                interceptors=[ServedSagasInterceptor(self._serving)],
                # A saga's function is the user's, in the user's modules: the sandbox would import them anew.
                workflow_runner=UnsandboxedWorkflowRunner(),
                graceful_shutdown_timeout=self._stop,
                sticky_queue_schedule_to_start_timeout=_STICKY,
            )
            await self._worker.__aenter__()

    async def _close(self) -> None:
        """Let the steps that run end, for `stop_s`."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.__aexit__(None, None, None)

    async def _note(self, saga_id: str, action: str, actor: str) -> None:
        # False: it has ended, and nothing can be done to it.
        await self._send_signal(saga_id, ACTION, {"action": action, "actor": actor})

    async def _submit(self, start: Start) -> Start | None:
        memo = {"saga": start.saga, "version": start.version, "fingerprint": start.fingerprint}
        try:
            await self._connected.start_workflow(
                f"{start.saga}@{start.version}",
                start.to_json(),
                id=start.saga_id,
                task_queue=self._task_queue,
                task_timeout=_TASK_TIMEOUT,
                # By default an id is free again when its workflow has ended.
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                memo={_MEMO: memo},
            )
        except WorkflowAlreadyStartedError:
            described = await self._describe(start.saga_id)
            known = (await described.memo()).get(_MEMO)
            # A workflow that is none of ours is another saga.
            known = known or {"saga": described.workflow_type, "version": "", "fingerprint": ""}
            return Start(saga_id=start.saga_id, input=None, **known)
        except RPCError as error:
            raise self._error(start.saga_id, error) from error
        return None

    async def _outcome(self, saga_id: str) -> Json:
        handle = self._handle(saga_id)
        while True:
            try:
                return await handle.result()
            except WorkflowFailureError as error:
                raise SagaStopped(
                    saga_id, f"it was ended in Temporal, and nothing was undone: {error.cause}"
                ) from error
            except RPCError as error:
                if error.status not in _AWAY:
                    raise self._error(saga_id, error) from error
                # A server that restarts has the result when it is back.
                await asyncio.sleep(_AWAY_S)

    async def _signal(self, saga_id: str, signal: str, data: Json, signal_id: str | None) -> None:
        if not await self._send_signal(saga_id, signal_name(signal), {"data": data, "id": signal_id}):
            await self._describe(saga_id)

    async def _list(self, state: State | None, limit: int) -> Sequence[SagaStatus]:
        query = f"TaskQueue = '{self._task_queue}'"
        if state is not None:
            ended = state in ("completed", "compensated")
            query += f" AND ExecutionStatus {'=' if ended else '!='} 'Completed'"
        listed: list[SagaStatus] = []
        try:
            async for found in self._connected.list_workflows(query):
                try:
                    status = await self.status(found.id)
                except SagaUnknown:  # deleted at the end of its retention, and still listed for a while
                    continue
                if state in (None, status.state):
                    listed.append(status)
                if len(listed) == limit:
                    break
        except RPCError as error:
            raise self._error("", error) from error
        return listed

    async def status(self, saga_id: str) -> SagaStatus:
        described, found = await self._look(saga_id)
        if saga_id in self._resumed and self._resumed[saga_id] == found.stopped_at:
            found.stopped = None
        else:
            self._resumed.pop(saga_id, None)
        state, error = found.judge()
        saga, _, version = described.workflow_type.partition("@")
        return SagaStatus(
            saga_id=saga_id,
            saga=found.start.saga if found.start else saga,
            version=found.start.version if found.start else version,
            state=state,
            error=error,
            cancelled=found.cancelled,
            started_at=described.start_time,
            updated_at=described.close_time,
        )

    async def history(self, saga_id: str) -> Sequence[HistoryEntry]:
        return (await self._events(check_saga_id(saga_id))).history

    async def cancel(self, saga_id: str, *, reason: str = "cancelled") -> bool:
        _, found = await self._look(saga_id)
        return await self._signal_stopped(saga_id, found, CANCEL, {"reason": reason})

    async def _resume(self, saga_id: str) -> bool:
        described, found = await self._look(saga_id)
        if not await self._signal_stopped(saga_id, found, RETRY, {}):
            return False
        for each in described.raw_description.pending_activities:
            if each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
                continue  # it is tried just now
            # An old server cannot; then it is retried when its pause is over.
            with suppress(RPCError):
                await self._connected.workflow_service.reset_activity(
                    ResetActivityRequest(
                        namespace=self._namespace,
                        execution=described.raw_description.workflow_execution_info.execution,
                        id=each.activity_id,
                    )
                )
        return True

    @property
    def _connected(self) -> Client:
        assert self._client is not None, "it is open"
        return self._client

    def _handle(self, saga_id: str) -> WorkflowHandle[Any, Any]:
        check_saga_id(saga_id)
        self._check_open()
        return self._connected.get_workflow_handle(saga_id)

    async def _describe(self, saga_id: str) -> WorkflowExecutionDescription:
        try:
            return await self._handle(saga_id).describe()
        except RPCError as error:
            raise self._error(saga_id, error) from error

    async def _events(self, saga_id: str) -> SagaEvents:
        handle = self._handle(saga_id)
        try:
            converter = self._connected.data_converter.payload_converter
            return await read_events(handle.fetch_history_events(), converter)
        except RPCError as error:
            raise self._error(saga_id, error) from error

    async def _look(self, saga_id: str) -> tuple[WorkflowExecutionDescription, SagaEvents]:
        described, found = await self._describe(saga_id), await self._events(saga_id)
        if found.stopped is None:
            found.stopped, found.stopped_at = _stopped_step(described, found.resumed_at)
        return described, found

    async def _signal_stopped(self, saga_id: str, events: SagaEvents, signal: str, payload: Json) -> bool:
        """Send a signal that resumes the saga, if it has stopped. False: it has ended."""
        if not await self._send_signal(saga_id, signal, payload):
            return False
        if events.stopped is not None:
            self._resumed[saga_id] = events.stopped_at
        return True

    async def _send_signal(self, saga_id: str, signal: str, payload: Json) -> bool:
        """Send a signal. False: the saga has ended, or does not exist."""
        try:
            await self._handle(saga_id).signal(signal, payload)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            raise self._error(saga_id, error) from error
        return True

    async def _check_namespace(self) -> None:
        try:
            found = await self._connected.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=self._namespace)
            )
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise ConfigurationError(f"namespace={self._namespace!r} is not there: {error.message}") from error
            raise self._error("", error) from error
        retention = found.config.workflow_execution_retention_ttl.ToTimedelta()
        if retention < _RETENTION_LEAST:
            _log.warning(
                "Temporal keeps what has ended in namespace %s for %s: a start that is repeated later runs again; the "
                "retention of the namespace should be 7 days or more",
                self._namespace, retention,
            )  # fmt: skip

    def _error(self, saga_id: str, error: RPCError) -> Exception:
        if error.status == RPCStatusCode.NOT_FOUND:
            return SagaUnknown(f"there is no saga {saga_id!r} in Temporal's namespace {self._namespace!r}")
        if error.status in _AWAY:
            return StoreUnavailable(f"Temporal does not answer: {error.message}")
        return OnefoldError(f"Temporal refuses: {error.message} ({error.status.name})")


@functools.cache
def _runtime() -> Runtime:
    """One for the process. By default Temporal's core logs to the standard output, where answers of programs go.
    What matters is raised as well."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


def _stopped_step(
    described: WorkflowExecutionDescription, resumed_at: datetime | None
) -> tuple[str, datetime] | tuple[None, None]:
    """Why a step is tried again and again without being a failure of its own, and when it last was. None: none is, or
    it is tried just now."""
    for each in described.raw_description.pending_activities:
        failed_at = each.last_attempt_complete_time.ToDatetime(UTC)
        if each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
            continue
        if resumed_at is not None and failed_at < resumed_at:
            continue
        failure = each.last_failure
        if not failure.application_failure_info.type:
            failure = failure.cause  # of what the server cut short
        if failure.application_failure_info.type == TemporalTaskFailed.__name__:
            return failure.message, failed_at
    return None, None
