"""Any callable, retried: the decorator, and what the retry loop needs of a call of a function.

The first attempt is written for threads and for asyncio, before the loop: a call that succeeds at once must cost less
than a flow's first effect. All other attempts are made by the loop.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar, cast

from onefold._client.call_executors import AsyncCallExecutor, CallExecutor
from onefold._client.call_report import was_retried_below
from onefold._client.call_trace import FunctionTrace
from onefold._client.error_outcomes import (
    On,
    ResultIf,
    close_answer,
    outcome_of_result,
    outcome_on,
    shows_health,
)
from onefold._client.hedging import hedge
from onefold._client.host_log import log_layers
from onefold._client.retry_conditions import check_condition
from onefold._client.retry_loop import SUCCESS, Raised, RetryLoop, unwrap
from onefold._kernel.deadlines import shorten
from onefold._kernel.executors import name_of
from onefold._kernel.runners import run, run_async
from onefold._kernel.telemetry import Listener
from onefold._kernel.timeouts import finish_within, within
from onefold._kernel.tracing import tracer_of
from onefold._policy.attempts import Attempts, HostHealth
from onefold._policy.outcome import Outcome, Unanswered
from onefold._policy.ranges import require
from onefold.errors import CallNotMade, ConfigurationError, ProgrammerError

P = ParamSpec("P")
T = TypeVar("T")


class FunctionCalls:
    """Calls to one host, under one name; which errors are worth another attempt is decided by `on`, which results by
    `retry_if`. `hedge_s`: see `hedging`."""

    __slots__ = ("_hedge_s", "host", "listener", "name", "outcome", "plain", "retry_if")

    def __init__(
        self,
        host: HostHealth,
        on: On,
        listener: Listener | None,
        retry_if: ResultIf | None = None,
        hedge_s: float | None = None,
    ) -> None:
        self.host = host
        self.name = host.name
        self.outcome = outcome_on(on)
        self.listener = listener
        self.retry_if: ResultIf | None = check_condition(retry_if)
        if hedge_s is not None:
            require("hedge_s", hedge_s)
        self._hedge_s = hedge_s
        #: A success has to be counted and nothing else, while the host is not in trouble.
        self.plain = retry_if is None and listener is None

    def wrap(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, retried."""
        tracer = tracer_of(self.listener)
        if tracer is None:
            return self._wrap(function)
        trace = FunctionTrace(tracer, self.name)
        return trace.trace_calls(self._wrap(trace.trace_attempts(function)))

    def _wrap(self, function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, T]", self._wrap_async(function))
        if self._hedge_s is not None:
            raise ConfigurationError(
                f"hedge_s={self._hedge_s!r} for calls of {self.name}: {name_of(function)} is not a coroutine function, "
                "and a call on a thread cannot be broken off when another is answered first; write it with `async def`"
            )
        host, deadline_s = self.host, self.host.policy.deadline_s
        plain = self.plain

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            ended: Any = None
            now = monotonic()
            attempts = Attempts(host, shorten(now + deadline_s))
            if (stop := attempts.begin(now)) is None:
                try:
                    ended = function(*args, **kwargs)
                except Exception as error:
                    ended = Raised(error)
                except BaseException:
                    attempts.release_without_verdict()
                    raise
                else:
                    if plain and not host.troubled and ended.__class__ is not CoroutineType:
                        attempts.succeed(monotonic())
                        at_once: T = ended
                        return at_once
            call = FunctionCall(self, attempts, now, functools.partial(_make_attempt, function, args, kwargs))
            flow = call.finish(ended) if stop is None else call.refuse(stop)
            del ended  # as in `unwrap`
            return cast(T, unwrap(run(flow, CallExecutor(None, call.deadline_at))))

        return wrapper

    def _wrap_async(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        host, deadline_s, hedge_s = self.host, self.host.policy.deadline_s, self._hedge_s
        plain = self.plain

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            ended: Any = None
            now = monotonic()
            attempts = Attempts(host, shorten(now + deadline_s))
            if (stop := attempts.begin(now)) is None:
                try:
                    attempt = function(*args, **kwargs) if hedge_s is None else self._hedge(function, args, kwargs)
                    try:
                        waits_for = attempt.send(None)
                    except StopIteration as done:
                        ended = done.value  # at once: no timer was needed
                    else:
                        ended = await finish_within(attempts.deadline_at - now, attempt, waits_for)
                except Exception as error:
                    ended = Raised(error)
                except BaseException:
                    attempts.release_without_verdict()
                    raise
                else:
                    if plain and not host.troubled:
                        attempts.succeed(monotonic())
                        at_once: T = ended
                        return at_once
            again = functools.partial(self._make_async_attempt, function, args, kwargs)
            call = FunctionCall(self, attempts, now, again, awaited=True)
            flow = call.finish(ended) if stop is None else call.refuse(stop)
            del ended  # as in `unwrap`
            return cast(T, unwrap(await run_async(flow, AsyncCallExecutor(None, call.deadline_at))))

        return wrapper

    def _make_async_attempt(self, function: Any, args: Any, kwargs: Any, left_s: float) -> Awaitable[Any]:
        attempt = function(*args, **kwargs) if self._hedge_s is None else self._hedge(function, args, kwargs)
        return within(left_s, attempt)

    def _hedge(self, function: Any, args: Any, kwargs: Any) -> Coroutine[Any, Any, Any]:
        assert self._hedge_s is not None
        attempt = functools.partial(function, *args, **kwargs)
        return hedge(attempt, self._hedge_s, self.host, self._is_good, close_answer)

    def _is_good(self, result: object) -> bool:
        return self.retry_if is None or outcome_of_result(self.retry_if, result) is None


class FunctionCall(RetryLoop):
    """One call of a function. `attempt` makes an attempt, which takes no longer than so many seconds if it is
    `awaited`; a function on a thread cannot be broken off."""

    __slots__ = ("_attempt_by", "_awaited", "_calls")

    def __init__(
        self,
        calls: FunctionCalls,
        attempts: Attempts,
        began: float,
        attempt: Callable[[float], Any],
        *,
        awaited: bool = False,
    ) -> None:
        super().__init__(calls.host, attempts, calls.listener, began)
        self._calls = calls
        self._attempt_by = attempt
        self._awaited = awaited

    def _sender(self, now: float) -> Callable[[], Any]:
        return functools.partial(self._attempt_by, self._attempts.deadline_at - now)

    def _outcome(self, ended: Any, now: float) -> Outcome | None:
        calls = self._calls
        if isinstance(ended, Raised):
            error = ended.error
            if was_retried_below(error, self._began):
                log_layers(self._host)
                return None
            outcome = calls.outcome(error)
            if outcome is None and isinstance(error, TimeoutError) and now >= self._attempts.deadline_at:
                # The attempt was cancelled by its deadline, whatever `on` decides.
                return Unanswered(maybe_sent=True, timed_out=True)
            if outcome is None and shows_health(error):
                self._attempts.succeed(now)
            return outcome
        if ended.__class__ is CoroutineType and not self._awaited:
            ended.close()
            raise ProgrammerError(
                f"a call of {calls.name} returned a coroutine, whose errors would come too late to be retried: "
                "decorate a function that is written with `async def`"
            )
        return SUCCESS if calls.retry_if is None else outcome_of_result(calls.retry_if, ended) or SUCCESS

    def _not_made_error(self, again: str, why: str) -> CallNotMade:
        return CallNotMade(f"{self._calls.name} was not called{again}: {why}")


def _make_attempt(function: Any, args: Any, kwargs: Any, left_s: float) -> Any:
    """On a thread. A StopIteration, thrown into the flow, would become a RuntimeError: so errors are returned."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return Raised(error)
