"""The service that a Restate server calls to run sagas: one workflow for all of them, and three handlers beside it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Final

from onefold._engines.restate.restate_api import ACTION, RUN, SIGNAL
from onefold._engines.restate.restate_context import CANCEL, SERDE, RestateAttemptFailed, RestateContext, signal_promise
from onefold._engines.restate.running_steps import RunningSteps
from onefold._kernel.extras import missing_extra
from onefold._kernel.telemetry import Listener
from onefold._saga.definition import AnySaga, Start
from onefold._saga.execution import run_saga
from onefold._saga.saga_errors import EngineFault
from onefold._saga.saga_telemetry import StuckSagas, report_end, report_stop
from onefold._saga.saga_values import Json
from onefold.errors import ConfigurationError

try:
    import restate
    from hypercorn.asyncio import serve
    from hypercorn.config import Config
    from restate.server_context import DisconnectedException
except ModuleNotFoundError as error:
    raise missing_extra(error, "restate") from None

_log = logging.getLogger("onefold.saga")
_endpoint_log = logging.getLogger("onefold.saga.endpoint")

#: An attempt that failed for the code or the network is made again. After 70, in half an hour, Restate would pause
#: the saga until a person resumes it; these last for years.
_AGAIN: Final = restate.InvocationRetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    exponentiation_factor=2.0,
    max_interval=timedelta(seconds=30),
    max_attempts=10_000_000,
)
#: A step may take as long as its attempts; Restate's ten minutes would run it a second time.
_ABORT_AFTER: Final = timedelta(days=1)
_CUT_S: Final = 0.5

IsCancelled = Callable[[str], Awaitable[bool]]


def make_service(
    name: str,
    sagas: Mapping[str, AnySaga],
    steps: RunningSteps,
    is_cancelled: IsCancelled,
    retention: timedelta,
    listener: Listener | None,
    stuck: StuckSagas,
) -> restate.Workflow:
    """The service as the SDK wants it. Restate keeps a workflow for a day by itself, and then its id is free again."""
    service = restate.Workflow(
        name,
        abort_timeout=_ABORT_AFTER,
        journal_retention=retention,
        idempotency_retention=retention,
        invocation_retry_policy=_AGAIN,
    )

    @service.main(name=RUN, workflow_retention=retention, input_serde=SERDE, output_serde=SERDE)
    async def run(ctx: restate.WorkflowContext, given: Any) -> Any:
        start = Start.from_json(given)
        stop = partial(_stop, start, listener)
        definition = sagas.get(f"{start.saga}@{start.version}")
        if definition is None:
            raise stop(f"saga {start.saga!r} in version {start.version!r} is not run here: add it to sagas=[...]")
        invocation = ctx.request().id
        context = RestateContext(ctx, steps, lambda: is_cancelled(invocation), stop)
        try:
            outcome = await run_saga(definition, start, context, listener=listener, stuck=stuck)
        except EngineFault as fault:
            if isinstance(fault.__cause__, DisconnectedException):
                # The server restarts, or the way to it is cut: the saga goes on when it is back, and has not stopped.
                raise fault.__cause__ from None
            # Without its cause: the SDK looks for a TerminalError among causes, and ends the workflow for one.
            raise stop(fault) from None
        report_end(listener, start, outcome)
        return outcome

    @service.handler(name=SIGNAL, input_serde=SERDE, output_serde=SERDE)
    async def signal(ctx: restate.WorkflowSharedContext, given: Any) -> None:
        for number in count(1):
            if await _keep(ctx, signal_promise(given["signal"], number), given["data"]):
                return

    @service.handler(name=CANCEL, input_serde=SERDE, output_serde=SERDE)
    async def cancel(ctx: restate.WorkflowSharedContext, given: Any) -> None:
        await _keep(ctx, CANCEL, given["data"])

    @service.handler(name=ACTION, input_serde=SERDE, output_serde=SERDE)
    async def note_action(ctx: restate.WorkflowSharedContext, given: Any) -> None:
        for number in count(1):
            if await _keep(ctx, f"{ACTION}:{number}", given):
                return

    return service


async def _keep(ctx: restate.WorkflowSharedContext, promise: str, data: Json) -> bool:
    """Keep a promise, unless it was kept."""
    kept = ctx.promise(promise, serde=SERDE)
    if await kept.peek() is not None:
        return False
    try:
        await kept.resolve({"data": data})
    except restate.TerminalError as refusal:
        if refusal.status_code != 409:
            raise
        return False  # By another signal of that name, in between.
    return True


def _stop(start: Start, listener: Listener | None, why: EngineFault | str) -> RestateAttemptFailed:
    fault = why if isinstance(why, EngineFault) else None
    _log.error("saga %s stops: %s; Restate tries it again, at most 30 s apart", start.saga_id, why, exc_info=fault)
    report_stop(listener, start, why)
    return RestateAttemptFailed(str(why))


class ServiceEndpoint:
    """The service on a port of this process."""

    def __init__(
        self, service: restate.Workflow, steps: RunningSteps, listen: str, identity_keys: Sequence[str]
    ) -> None:
        self._app = restate.app([service], identity_keys=list(identity_keys))
        self._steps = steps
        self._listen = listen
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        """Listen. ConfigurationError where the port cannot be had."""
        host, _, port = self._listen.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigurationError(f"listen={self._listen!r} must be a host and a port, as '127.0.0.1:9080'")
        try:
            listening = socket.create_server((host.strip("[]"), int(port)), family=_family(host))
        except OSError as error:
            raise ConfigurationError(f"listen={self._listen!r}: this process cannot listen there: {error}") from error
        await asyncio.to_thread(asyncio.run, _greet(self._app))
        config = Config()
        config.bind = [f"fd://{listening.detach()}"]
        config.graceful_timeout = _CUT_S
        config.errorlog = _endpoint_log
        self._task = asyncio.create_task(serve(self._answer, config, shutdown_trigger=self._end.wait))

    async def close(self, within_s: float) -> None:
        """Let the steps that run end, and Restate have their records; then cut the connections that it holds open."""
        await self._steps.close(within_s)
        # Restate holds a request open for each saga that runs or waits, and hypercorn cannot stop with them.
        while self._requests:
            for request in self._requests:
                request.cancel()  # The SDK swallows the first, and then waits for Restate to hang up.
            await asyncio.wait(set(self._requests), timeout=_CUT_S / 10)
        self._end.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=4 * _CUT_S)
            self._task.cancel()
            await asyncio.wait({self._task})
            # Of connections that were cut: of a request that Restate still wrote to, or that outlived its time.
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                _log.info("the endpoint at %s ended with connections open (%r)", self._listen, error)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """The SDK's application, with a beginning and an end: it has none of its own, which servers warn of."""
        if scope["type"] != "lifespan":
            await self._answer_request(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    async def _answer_request(self, scope: Any, receive: Any, send: Any) -> None:
        """In a task of its own, which `close` ends without ending hypercorn's."""
        request = asyncio.ensure_future(self._app(scope, receive, send))
        self._requests.add(request)
        try:
            await asyncio.wait({request})
        finally:
            self._requests.discard(request)
            request.cancel()
        if not request.cancelled():
            request.result()


async def _greet(app: Any) -> None:
    """Call the application once, outside of the main thread: there its first request would put a handler of its own in
    the place of the program's for SIGTERM."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Any) -> None:
        pass

    await app({"type": "http", "path": "/health", "headers": []}, receive, send)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
