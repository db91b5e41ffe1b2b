"""Any callable, retried: as a decorator, or as attempts in a loop.

The loops are written twice, for threads and for asyncio, and not as a flow: a call that succeeds at once must cost less
than a flow's first effect. All that decides is in `policy.attempts`; what is here sends, waits and tells.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Coroutine
from time import monotonic
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar, cast

from onefold._kernel.deadlines import shortened
from onefold._kernel.events import AttemptEnded, BreakerMoved, CallEnded, Listener, RetryPlanned, tell
from onefold._kernel.prompt import finishing_within
from onefold.client.outcomes import On, outcome_on
from onefold.client.report import CallReport, attach_to_error, moment, retried_below
from onefold.client.waiting import wait, wait_async
from onefold.errors import CallNotMade, ProgrammerError
from onefold.policy.attempts import Attempts, Host
from onefold.policy.outcome import Outcome, Unanswered
from onefold.policy.retry import Stop

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("onefold")


class Calls:
    """Calls to one host, under one name; which errors are worth another attempt is said by `on`."""

    __slots__ = ("_host", "_listener", "_warned", "name", "outcome")

    def __init__(self, host: Host, on: On, listener: Listener | None) -> None:
        self._host = host
        self.name = host.name
        self.outcome = outcome_on(on)
        self._listener = listener
        self._warned = False

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, retried."""
        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, T]", self._around_async(function))
        host, listener, deadline_s = self._host, self._listener, self._host.policy.deadline_s

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
                    if listener is None:
                        attempts.succeed(monotonic())
                    else:
                        self.succeeded(attempts, now)
                    return result
                wait(wait_s)
                now = monotonic()

        return retried

    def _around_async(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        host, listener, deadline_s = self._host, self._listener, self._host.policy.deadline_s

        @functools.wraps(function)
        async def retried(*args: P.args, **kwargs: P.kwargs) -> T:
            result: T
            now = monotonic()
            attempts = Attempts(host, shortened(now + deadline_s))
            while True:
                if (stop := attempts.begin(now)) is not None:
                    raise self.refused(stop, attempts, now)
                try:
                    attempt = function(*args, **kwargs)
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
                    if listener is None:
                        attempts.succeed(monotonic())
                    else:
                        self.succeeded(attempts, now)
                    return result
                await wait_async(wait_s)
                now = monotonic()

        return retried

    def attempts(self, now: float) -> Attempts:
        """A call that begins now."""
        return Attempts(self._host, shortened(now + self._host.policy.deadline_s))

    def succeeded(self, attempts: Attempts, began: float) -> None:
        """The attempt that began then has done what it should."""
        now = monotonic()
        attempts.succeed(now)
        if self._listener is not None:
            self._tell_attempt(attempts, began, now, None)
            tell(self._listener, CallEnded(self.name, "", attempts.made, True))

    def failed(self, attempts: Attempts, error: Exception, began: float) -> float | None:
        """How long to wait before the next attempt; None: there is none, and the error is the caller's."""
        now = monotonic()
        if retried_below(error, self._host):
            attempts.excuse()
            self._warn_of_layers()
            return None
        outcome = self.outcome(error)
        if outcome is None and isinstance(error, TimeoutError) and now >= attempts.deadline_at:
            outcome = Unanswered(maybe_sent=True)  # the attempt was broken off by its deadline, whatever `on` says
        if outcome is None:
            attempts.excuse()
            return None
        return self._decided(attempts, outcome, error, began, now)

    def _decided(
        self, attempts: Attempts, outcome: Outcome, error: Exception, began: float, now: float
    ) -> float | None:
        decision = attempts.end(outcome, now)
        if self._listener is not None:
            self._tell_attempt(attempts, began, now, error)
        if isinstance(decision, Stop):
            self._ended(decision, attempts, error, now)
            return None
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

    def _warn_of_layers(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "calls of %s are retried, and so is what they call: attempts would multiply, so this layer does not "
                "try again what the other has given up. Keep one of the two: the one next to the network",
                self.name,
            )

    def refused(self, stop: Stop, attempts: Attempts, now: float) -> CallNotMade:
        """The error for an attempt that may not begin."""
        error = CallNotMade(f"{self.name} was not called{' again' if attempts.made else ''}: {stop.reason.value}")
        self._ended(stop, attempts, error, now)
        return error

    def _ended(self, stop: Stop, attempts: Attempts, error: Exception, now: float) -> None:
        retry_at = moment(stop.retry_at, now, time.time())
        report = CallReport(attempts=attempts.made, reason=stop.reason, retry_at=retry_at)
        attach_to_error(report, error, self._host)
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
        if (state := self._host.moved(now)) is not None:
            tell(self._listener, BreakerMoved(self.name, state))
