"""For those who keep tenacity or stamina: their loop, our budget, breaker, waits and Retry-After.

Neither is imported here; both take plain functions.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar, cast

from onefold._client.calls import Calls
from onefold._policy.attempts import Attempts

P = ParamSpec("P")
T = TypeVar("T")

_CALL = "onefold_call"
_WAIT_S = "onefold_wait_s"
_BEGAN = "onefold_began"
_SAID = "onefold_said"


def tenacity_settings(calls: Calls) -> dict[str, Any]:
    """Arguments for `tenacity.retry(**...)`: whether there is another attempt, how long to wait for it, and that an
    attempt is not even begun while the breaker is open. What is known of a call is kept on its `retry_state`."""

    def before(state: Any) -> None:
        now = time.monotonic()
        attempts = getattr(state, _CALL, None) or calls.attempts(now)
        setattr(state, _CALL, attempts)
        setattr(state, _BEGAN, now)
        if (stop := attempts.begin(now)) is not None:
            raise calls.refused(stop, attempts, now)

    def again(state: Any) -> bool:
        attempts, began = getattr(state, _CALL), getattr(state, _BEGAN)
        if not state.outcome.failed:
            calls.succeeded(attempts, began)
            return False
        error = state.outcome.exception()
        if not isinstance(error, Exception):
            attempts.excuse()
            return False
        wait_s = calls.failed(attempts, error, began)
        setattr(state, _WAIT_S, wait_s)
        return wait_s is not None

    def wait(state: Any) -> float:
        return cast(float, getattr(state, _WAIT_S))

    return {"before": before, "retry": again, "wait": wait, "reraise": True}


class StaminaHook:
    """For `stamina.retry(on=hook)`: stamina's own attempts and waits, unless the server asked for a wait of its own.

    stamina tells nobody of successes, and successes earn the retries. So the function itself, below stamina's
    decorator, is decorated with `hook.watch`; without that, the budget's least is all there is.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __call__(self, error: Exception) -> bool | float:
        said: bool | float | None = getattr(error, _SAID, None)
        if said is None:
            now = time.monotonic()
            attempts = self._calls.attempts(now)
            said = attempts.begin(now) is None and self._said(attempts, error, now)
        return said

    def watch(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, whose successes count, and which is not called while the breaker is open."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self._watched():
                    return await function(*args, **kwargs)

            return cast("Callable[P, T]", awaited)

        @functools.wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._watched():
                return function(*args, **kwargs)

        return watched

    @contextmanager
    def _watched(self) -> Iterator[None]:
        now = time.monotonic()
        attempts = self._calls.attempts(now)
        if (stop := attempts.begin(now)) is not None:
            raise self._calls.refused(stop, attempts, now)
        try:
            yield
        except Exception as error:
            with suppress(AttributeError):  # an error that takes no attributes is judged by whoever is asked about it
                setattr(error, _SAID, self._said(attempts, error, now))
            raise
        except BaseException:
            attempts.excuse()
            raise
        self._calls.succeeded(attempts, now)

    def _said(self, attempts: Attempts, error: Exception, began: float) -> bool | float:
        wait_s = self._calls.failed(attempts, error, began)
        if wait_s is None:
            return False
        outcome = self._calls.outcome(error)
        return True if outcome is None or outcome.retry_after_s is None else wait_s
