"""The retry loop: begin an attempt, make it, decide, wait, begin the next. Every call that onefold retries runs in it.

Theory of operation. The loop is a flow, the same lines for threads and asyncio, and differs between kinds of calls only
in what makes an attempt and in what its end means: an HTTP request (`http_call`), a function (`function_calls`), or an
attempt that is made outside, by the block of a `for` loop, by tenacity or by stamina (`manual_attempts`).

The first attempt is made before the flow begins: nearly all calls need no second one, and a flow costs more than all
that is decided about them. `finish` takes over where the first attempt did not simply succeed.

Invariant: every attempt that began is counted once, by its success, its failure or by being broken off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from onefold._client.call_report import CallReport, attach_to_error, moment
from onefold._client.host_log import log_breaker, log_retry, log_success
from onefold._kernel.effects import Call, Now, Sleep
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.client_events import AttemptEnded, BreakerMoved, CallEnded, RetryPlanned
from onefold._policy.attempts import Attempts, HostHealth
from onefold._policy.outcome import Answered, Outcome
from onefold._policy.retry import Reason, RetryAfter, Stop
from onefold.errors import CallNotMade

#: The outcome of an attempt that did what it should, where there is no status.
SUCCESS: Final = Answered(status=200)
_FINAL: Final = Stop(Reason.FINAL)


class Raised:
    """An attempt that ended with an error. Every other value is its result: functions may return errors, too."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def unwrap(ended: Any) -> Any:
    """The result of an attempt; raises its error where it ended with one."""
    if not isinstance(ended, Raised):
        return ended
    error = ended.error
    try:
        raise error
    finally:
        del ended, error  # the error refers to this frame by its traceback: only the garbage collector would free both


class RetryLoop:
    """One call, from before its first attempt to after its last."""

    __slots__ = ("_attempts", "_began", "_host", "_listener", "_method")

    def __init__(
        self, host: HostHealth, attempts: Attempts, listener: Listener | None, began: float, method: str = ""
    ) -> None:
        self._host = host
        self._attempts = attempts
        self._listener = listener
        self._began = began
        self._method = method

    @property
    def deadline_at(self) -> float:
        """On the monotonic clock."""
        return self._attempts.deadline_at

    # --- what a kind of call defines ---------------------------------------------------------------------

    def _sender(self, now: float) -> Callable[[], Any]:
        """What makes the attempt that begins now."""
        raise NotImplementedError

    def _outcome(self, ended: Any, now: float) -> Outcome | None:
        """What the end of an attempt means; None: an error that is the caller's, and no sign of the host's health."""
        raise NotImplementedError

    def _status(self, result: Any) -> int | None:
        """The HTTP status of a result, if it has one."""
        return None

    def _failure(self, result: Any) -> str:
        """Why a result is not kept, for the log."""
        return "its result"

    def _not_made_error(self, again: str, why: str) -> CallNotMade:
        """The error for an attempt that may not begin; `again` is empty where none was made."""
        raise NotImplementedError

    def _reconsider(self, ended: Any, decision: RetryAfter | Stop) -> RetryAfter | Stop:
        return decision

    async def _drop(self, result: Any) -> None:
        """The result of an attempt that another one follows."""

    async def _end(self, ended: Any, outcome: Outcome | None, stop: Stop, now: float) -> None:
        """The caller gets what the attempt ended with. `outcome` is None where the attempt was refused."""
        if isinstance(ended, Raised):
            self._report_error(ended.error, stop, now)
            return
        if outcome is SUCCESS:
            self._log_success(now)
            self._emit_end(None, succeeded=True)
        else:
            self._emit_end(stop, succeeded=False)

    # --- the flow ----------------------------------------------------------------------------------------

    async def run(self) -> Any:
        """Make all attempts: the result of the last one, or its error as `Raised`. Raises CallNotMade."""
        try:
            return await self._repeat(await self._attempt(await self._prepare(), None))
        finally:
            # A flow that is broken off, at whichever effect, leaves no attempt behind that the breaker waits for.
            self._attempts.release_without_verdict()

    async def finish(self, ended: Any) -> Any:
        """`run`, where the first attempt has ended already."""
        try:
            return await self._repeat(ended)
        finally:
            self._attempts.release_without_verdict()

    async def refuse(self, stop: Stop) -> Any:
        """`run`, where the first attempt may not begin."""
        raise await self._refusal(stop, self._began)

    async def _prepare(self) -> float:
        """What has to be done before the first attempt; when it begins."""
        return self._began

    async def _repeat(self, ended: Any) -> Any:
        while True:
            now = await Now()
            decision = await self._decide(ended, now)
            if decision is None:
                return ended
            if isinstance(ended, Raised):
                failure = type(ended.error).__name__
            else:
                await self._drop(ended)
                failure = self._failure(ended)
            log_retry(self._host, failure, decision, now)
            if self._listener is not None:
                planned = (self._attempts.made, decision.wait_s, decision.throttled)
                emit(self._listener, RetryPlanned(self._host.name, self._method, *planned))
            await Sleep(decision.wait_s)
            ended = await self._attempt(await Now(), ended)

    async def _attempt(self, now: float, last: Any) -> Any:
        self._began = now
        stop = self._attempts.begin(now)
        if stop is not None:
            raise await self._refusal(stop, now) from (last.error if isinstance(last, Raised) else None)
        try:
            return await Call(self._sender(now))
        except Exception as error:
            return Raised(error)

    async def _decide(self, ended: Any, now: float) -> RetryAfter | None:
        """What follows; None: the caller gets what the attempt ended with."""
        outcome = self._outcome(ended, now)
        decision = _FINAL if outcome is None else self._reconsider(ended, self._attempts.end(outcome, now))
        if self._listener is not None:
            if isinstance(ended, Raised):
                self._emit_attempt(now, None, type(ended.error).__name__, succeeded=False)
            else:
                status = self._status(ended)
                self._emit_attempt(now, status, None, succeeded=status is None or status < 400)
        self._emit_breaker(now)
        if outcome is None:
            self._emit_end(_FINAL, succeeded=False)
            return None
        if isinstance(decision, Stop):
            await self._end(ended, outcome, decision, now)
            return None
        return decision

    async def _refusal(self, stop: Stop, now: float) -> CallNotMade:
        error = self._not_made_error(" again" if self._attempts.made else "", stop.reason.value)
        await self._end(Raised(error), None, stop, now)
        return error

    # --- reports, logs, telemetry ------------------------------------------------------------------------

    def _report_so_far(self) -> partial[CallReport]:
        """How it went so far. Not a method to be called later: the call knows its request and what that came through,
        and a response must not hold on to them."""
        return partial(CallReport, attempts=self._attempts.made)

    def _report(self, stop: Stop | None, now: float) -> partial[CallReport]:
        report = self._report_so_far()
        if stop is None:
            return report
        return partial(report, reason=stop.reason, retry_at=moment(stop.retry_at, now, time.time()))

    def _report_error(self, error: Exception, stop: Stop, now: float) -> None:
        attach_to_error(self._report(stop, now)(), error, now)
        self._emit_end(stop, succeeded=False)

    def _log_success(self, now: float) -> None:
        if self._attempts.made == 1 and self._host.troubled:
            log_success(self._host, now)

    def _emit_attempt(self, now: float, status: int | None, error: str | None, *, succeeded: bool) -> None:
        made, elapsed_s = self._attempts.made, now - self._began
        emit(self._listener, AttemptEnded(self._host.name, self._method, made, elapsed_s, status, error, succeeded))

    def _emit_breaker(self, now: float) -> None:
        if (state := log_breaker(self._host, now)) is not None:
            emit(self._listener, BreakerMoved(self._host.name, state))

    def _emit_end(self, stop: Stop | None, *, succeeded: bool) -> None:
        reason = None if stop is None else stop.reason.name.lower()
        emit(self._listener, CallEnded(self._host.name, self._method, self._attempts.made, succeeded, reason))
