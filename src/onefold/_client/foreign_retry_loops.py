"""For code that keeps tenacity or stamina: their loop, our budget, breaker, waits and Retry-After.

Neither is imported here; both take plain functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar, cast

from onefold._client.function_calls import FunctionCalls
from onefold._client.manual_attempts import ManualAttempts

P = ParamSpec("P")
T = TypeVar("T")

_CALL = "onefold_call"
_WAIT_S = "onefold_wait_s"
_DECISION = "onefold_decision"


def tenacity_settings(calls: FunctionCalls) -> dict[str, Any]:
    """Arguments for `tenacity.retry(**...)`: whether there is another attempt, how long to wait for it, and that an
    attempt is not even begun while the breaker is open. What is known of a call is kept on its `retry_state`."""

    def before(state: Any) -> None:
        call: ManualAttempts = getattr(state, _CALL, None) or ManualAttempts(calls)
        setattr(state, _CALL, call)
        call.begin()

    def again(state: Any) -> bool:
        call: ManualAttempts = getattr(state, _CALL)
        error = state.outcome.exception()
        if error is not None and not isinstance(error, Exception):
            call.close()
            return False
        wait_s = call.end(error)
        setattr(state, _WAIT_S, wait_s)
        return wait_s is not None

    def wait(state: Any) -> float:
        return cast(float, getattr(state, _WAIT_S))

    return {"before": before, "retry": again, "wait": wait, "reraise": True}


class StaminaHook:
    """For `stamina.retry(on=hook)`: stamina's own attempts and waits, unless the server's answer has a Retry-After.

    stamina has no hook for successes, and successes earn the retries. So the function itself, below stamina's
    decorator, is decorated with `hook.watch`; without that, the budget's least is all there is.
    """

    def __init__(self, calls: FunctionCalls) -> None:
        self._calls = calls

    def __call__(self, error: Exception) -> bool | float:
        decision: bool | float | None = getattr(error, _DECISION, None)
        if decision is None:
            call = ManualAttempts(self._calls)
            decision = call.admit() and self._decide(call, error)
        return decision

    def watch(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, whose successes count, and which is not called while the breaker is open."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def async_wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self._count():
                    return await function(*args, **kwargs)

            return cast("Callable[P, T]", async_wrapper)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._count():
                return function(*args, **kwargs)

        return wrapper

    @contextmanager
    def _count(self) -> Iterator[None]:
        call = ManualAttempts(self._calls)
        call.begin()
        try:
            yield
        except Exception as error:
            with suppress(AttributeError):  # an error that takes no attributes is judged when stamina calls the hook
                setattr(error, _DECISION, self._decide(call, error))
            raise
        except BaseException:
            call.close()
            raise
        call.end(None)

    def _decide(self, call: ManualAttempts, error: Exception) -> bool | float:
        wait_s = call.end(error)
        call.forgo_retry()
        if wait_s is None:
            return False
        outcome = self._calls.outcome(error)
        return True if outcome is None or outcome.retry_after_s is None else wait_s
