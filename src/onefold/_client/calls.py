"""Any callable, retried: as a decorator, or as attempts in a loop.

The loops are written twice, for threads and for asyncio, and not as a flow: a call that succeeds at once must cost less
than a flow's first effect. All that decides is in `policy.attempts`; what is here sends, waits and tells.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from time import monotonic
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar, cast

from onefold._client.call_report import CallReport, attach_to_error, moment, retried_below
from onefold._client.error_outcomes import On, ResultIf, close_answer, outcome_of_result, outcome_on
from onefold._client.hedging import hedged
from onefold._client.host_log import log_breaker, log_layers, log_retry, log_success
from onefold._client.retry_conditions import checked_condition
from onefold._client.sleeping import wait, wait_async
from onefold._kernel.deadlines import shortened
from onefold._kernel.executors import name_of
from onefold._kernel.telemetry import AttemptEnded, BreakerMoved, CallEnded, Listener, RetryPlanned, tell
from onefold._kernel.timeouts import finishing_within
from onefold._policy.attempts import Attempts, Host
from onefold._policy.outcome import Outcome, Unanswered
from onefold._policy.ranges import require
from onefold._policy.retry import Stop
from onefold.errors import CallNotMade, ConfigurationError, ProgrammerError

P = ParamSpec("P")
T = TypeVar("T")


class Calls:
    """Calls to one host, under one name; which errors are worth another attempt is said by `on`, which results by
    `retry_if`. `hedge_s`: see `hedging`."""

    __slots__ = ("_hedge_s", "_host", "_listener", "_retry_if", "name", "outcome")

    def __init__(
        self,
        host: Host,
        on: On,
        listener: Listener | None,
        retry_if: ResultIf | None = None,
        hedge_s: float | None = None,
    ) -> None:
        self._host = host
        self.name = host.name
        self.outcome = outcome_on(on)
        self._listener = listener
        self._retry_if: ResultIf | None = checked_condition(retry_if)
        if hedge_s is not None:
            require("hedge_s", hedge_s)
        self._hedge_s = hedge_s

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, retried."""
        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, T]", self._around_async(function))
        if self._hedge_s is not None:
            raise ConfigurationError(
                f"hedge_s={self._hedge_s!r} for calls of {self.name}: {name_of(function)} is no coroutine function, "
                "and a call on a thread cannot be broken off when another is answered first; write it with `async def`"
            )
        host, listener, deadline_s = self._host, self._listener, self._host.policy.deadline_s
        retry_if = self._retry_if

        @functools.wraps(function)
        def retried(*args: P.args, **kwargs: P.kwargs) -> T:
            result: T
            now = monotonic()
            attempts = Attempts(host, shortened(now + deadline_s))
            while True:
                if (stop := attempts.begin(now)) is not None:
                    raise self.refused(stop, attempts, now)
                try:
                    result = function(*args, **kwargs)
                except Exception as error:
                    wait_s = self.failed(attempts, error, now)
                    if wait_s is None:
                        raise
                except BaseException:
                    attempts.excuse()
                    raise
                else:
                    if result.__class__ is CoroutineType:
                        raise self._not_awaited(attempts, result)
                    if retry_if is None and listener is None and not host.troubled:
                        attempts.succeed(monotonic())
                        return result
                    if (wait_s := self.returned(attempts, result, now)) is None:
                        return result
                wait(wait_s)
                now = monotonic()

        return retried

    def _around_async(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        host, listener, deadline_s = self._host, self._listener, self._host.policy.deadline_s
        retry_if, hedge_s = self._retry_if, self._hedge_s

        @functools.wraps(function)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> T:
            result: T
            now = monotonic()
            attempts = Attempts(host, shortened(now + deadline_s))
            while True:
                if (stop := attempts.begin(now)) is not None:
                    raise self.refused(stop, attempts, now)
                try:
                    if hedge_s is None:
                        attempt = function(*args, **kwargs)
                    else:
                        ask = functools.partial(function, *args, **kwargs)
                        attempt = hedged(ask, hedge_s, host, self._is_good, close_answer)
                    try:
                        waits_for = attempt.send(None)
                    except StopIteration as done:
                        result = done.value  # at once: no alarm was needed
                    else:
                        result = await finishing_within(attempts.deadline_at - now, attempt, waits_for)
                except Exception as error:
                    wait_s = self.failed(attempts, error, now)
                    if wait_s is None:
                        raise
                except BaseException:
                    attempts.excuse()
                    raise
                else:
                    if retry_if is None and listener is None and not host.troubled:
                        attempts.succeed(monotonic())
                        return result
                    if (wait_s := self.returned(attempts, result, now)) is None:
                        return result
                await wait_async(wait_s)
                now = monotonic()

        return retried

    def attempts(self, now: float) -> Attempts:
        """A call that begins now."""
        return Attempts(self._host, shortened(now + self._host.policy.deadline_s))

    def returned(self, attempts: Attempts, result: object, began: float) -> float | None:
        """How long to wait before the next attempt, where the result is none to keep; None: it is the caller's."""
        try:
            outcome = None if self._retry_if is None else outcome_of_result(self._retry_if, result)
        except BaseException:
            attempts.excuse()
            raise
        if outcome is not None:
            return self._decided(attempts, outcome, None, began, monotonic())
        self.succeeded(attempts, began)
        return None

    def succeeded(self, attempts: Attempts, began: float) -> None:
        """The attempt that began then has done what it should."""
        now = monotonic()
        attempts.succeed(now)
        if self._listener is not None:
            self._tell_attempt(attempts, began, now, None)
        if self._host.troubled:
            self._tell_breaker(now)
            log_success(self._host)
        if self._listener is not None:
            tell(self._listener, CallEnded(self.name, "", attempts.made, True))

    def _is_good(self, result: object) -> bool:
        return self._retry_if is None or outcome_of_result(self._retry_if, result) is None

    def failed(self, attempts: Attempts, error: Exception, began: float) -> float | None:
        """How long to wait before the next attempt; None: there is none, and the error is the caller's."""
        now = monotonic()
        if retried_below(error, began):
            attempts.excuse()
            log_layers(self._host)
            return None
        try:
            outcome = self.outcome(error)
        except BaseException:
            attempts.excuse()
            raise
        if outcome is None and isinstance(error, TimeoutError) and now >= attempts.deadline_at:
            # The attempt was broken off by its deadline, whatever `on` says.
            outcome = Unanswered(maybe_sent=True, timed_out=True)
        if outcome is None:
            attempts.excuse()
            return None
        return self._decided(attempts, outcome, error, began, now)

    def _decided(
        self, attempts: Attempts, outcome: Outcome, error: Exception | None, began: float, now: float
    ) -> float | None:
        """What follows an error, or (None) a result that `retry_if` will not have."""
        decision = attempts.end(outcome, now)
        if self._listener is not None:
            self._tell_attempt(attempts, began, now, error)
        self._tell_breaker(now)
        if isinstance(decision, Stop):
            self._ended(decision, attempts, error, now)
            return None
        log_retry(self._host, "its result" if error is None else type(error).__name__, decision)
        if self._listener is not None:
            tell(
                self._listener,
                RetryPlanned(self.name, "", attempts.made, decision.wait_s, decision.throttled),
            )
        return decision.wait_s

    def _not_awaited(self, attempts: Attempts, coroutine: Any) -> ProgrammerError:
        attempts.excuse()
        coroutine.close()
        return ProgrammerError(
            f"a call of {self.name} returned a coroutine, whose errors would come too late to be retried: decorate a "
            "function that is written with `async def`"
        )

    def refused(self, stop: Stop, attempts: Attempts, now: float) -> CallNotMade:
        """The error for an attempt that may not begin."""
        error = CallNotMade(f"{self.name} was not called{' again' if attempts.made else ''}: {stop.reason.value}")
        self._ended(stop, attempts, error, now)
        return error

    def _ended(self, stop: Stop, attempts: Attempts, error: Exception | None, now: float) -> None:
        if error is not None:
            retry_at = moment(stop.retry_at, now, time.time())
            report = CallReport(attempts=attempts.made, reason=stop.reason, retry_at=retry_at)
            attach_to_error(report, error, now)
        if self._listener is not None:
            tell(self._listener, CallEnded(self.name, "", attempts.made, False, stop.reason.name.lower()))

    def _tell_attempt(self, attempts: Attempts, began: float, now: float, error: Exception | None) -> None:
        assert self._listener is not None
        tell(
            self._listener,
            AttemptEnded(
                host=self.name,
                method="",
                attempt=attempts.made,
                elapsed_s=now - began,
                error=None if error is None else type(error).__name__,
                succeeded=error is None,
            ),
        )

    def _tell_breaker(self, now: float) -> None:
        if (state := log_breaker(self._host, now)) is not None:
            tell(self._listener, BreakerMoved(self.name, state))
