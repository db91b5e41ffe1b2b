"""One running saga on Restate: its steps are `ctx.run`, its pauses Restate's timers, its signals durable promises.

Theory of operation. Restate raises a request to cancel once, as TerminalError, at whatever is awaited; the step that
runs then goes on beside it. A saga needs more: the step ends before its compensation begins, and while compensations
run a request changes nothing. So every wait goes through `_wait`, which knows the two cases, and a future is awaited
only when it has its value. Where in the journal the request stands decides what a replay does, so replays do the same.

All that the SDK raises otherwise (a lost connection, a journal that does not fit) stops the attempt; Restate makes
another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from onefold._engines.journalled_attempts import Attempt
from onefold._engines.restate.running_steps import RunningSteps
from onefold._engines.server_context import TIMEOUT, ServerContext
from onefold._kernel.extras import missing_extra
from onefold._saga.saga_errors import CancelRequested, EngineFault
from onefold._saga.saga_values import Json

try:
    from restate import RestateDurableFuture, RunOptions, TerminalError, WorkflowContext, wait_completed
    from restate.serde import JsonSerde
except ModuleNotFoundError as error:
    raise missing_extra(error, "restate") from None

SERDE: Final[JsonSerde[Any]] = JsonSerde()
#: The promise that has the reason of a request to cancel, where one was given.
CANCEL: Final = "cancel"


def signal_promise(signal: str, number: int) -> str:
    """The promise for the n-th signal of this name: a promise is resolved once, and signals may be several."""
    return f"signal:{number}:{signal}"


class RestateAttemptFailed(Exception):
    """An EngineFault for Restate: the attempt failed, and Restate is to make another one later."""

    def __repr__(self) -> str:
        return str(self)  # what the SDK shows of it


class RestateContext(ServerContext):
    """One attempt of Restate's at a saga."""

    server = "Restate"

    def __init__(
        self,
        ctx: WorkflowContext,
        steps: RunningSteps,
        is_cancelled: Callable[[], Awaitable[bool]],
        stop: Callable[[EngineFault], RestateAttemptFailed],
    ) -> None:
        super().__init__()
        self._stop = stop
        self._ctx = ctx
        self._steps = steps
        self._is_cancelled = is_cancelled
        self._cancelled = False
        self._taken: Counter[str] = Counter()

    async def wait_signal(self, signal: str, timeout_s: float | None) -> Json:
        promise = self._ctx.promise(signal_promise(signal, self._taken[signal] + 1), serde=SERDE).value()
        waits: list[RestateDurableFuture[Any]] = [promise]
        if timeout_s is not None:
            waits.append(self._ctx.sleep(timedelta(seconds=timeout_s), name=TIMEOUT))
        if promise not in await self._wait(*waits):
            return None
        self._taken[signal] += 1
        return await promise

    async def cancel_requested(self) -> bool:
        return self._cancelled or await self._is_cancelled()

    async def _journal(self, name: str, attempt: Attempt) -> Json:
        with self._steps.begin() as step:

            async def run() -> Json:
                try:
                    async with step:
                        return await attempt()
                except EngineFault as fault:
                    # Not recorded, and not the step's failure: Restate repeats the whole attempt.
                    raise self._stop(fault) from None

            future = self._ctx.run_typed(name, run, RunOptions(serde=SERDE))
            await self._wait(future, until=step.ended)
            return await future

    async def _sleep(self, seconds: float, *, name: str) -> None:
        await self._wait(self._ctx.sleep(timedelta(seconds=seconds), name=name))

    async def _wait(
        self, *futures: RestateDurableFuture[Any], until: Callable[[], Awaitable[None]] | None = None
    ) -> Sequence[RestateDurableFuture[Any]]:
        """Await until at least one has a value; returns those that have. CancelRequested, unless shielded: first
        `until` is awaited."""
        while True:
            try:
                completed, _ = await wait_completed(*futures)
            except TerminalError:
                self._cancelled = True
                if not self._shielded:
                    if until is not None:
                        await until()
                    raise CancelRequested(await self._reason()) from None
            else:
                return completed

    async def _reason(self) -> str:
        self._shielded = True
        peeked = self._ctx.promise(CANCEL, serde=SERDE).peek()
        assert isinstance(peeked, RestateDurableFuture)
        await self._wait(peeked)
        return str((await peeked or {}).get("data", "cancelled"))
