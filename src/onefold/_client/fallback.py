"""What to answer when all attempts are in vain: the last known price, an empty list."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from onefold._kernel.arguments import named_arguments
from onefold.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")


@named_arguments("onefold.clients.fallback")
def fallback(
    instead: Callable[[Exception], T], *, on: type[Exception] | tuple[type[Exception], ...]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function, sync or async: where it raises one of `on`, the answer is what `instead` makes of the error.
    Put it above `Retrying.calls(...)`: then it is called after the last attempt, and while the breaker is open (add
    `CallNotMade` to `on`). What `instead` raises is raised."""
    if not callable(instead):
        raise ConfigurationError(f"fallback({instead!r}) must be a function from the error to the answer")
    kinds: tuple[Any, ...] = on if isinstance(on, tuple) else (on,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise ConfigurationError(f"on={on!r} does not say which errors: give an exception class, or a tuple of them")

    def around(function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def async_wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
                try:
                    return await function(*args, **kwargs)
                except kinds as error:
                    answer: Any = instead(error)
                    return await answer if inspect.isawaitable(answer) else answer

            return cast("Callable[P, T]", async_wrapper)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except kinds as error:
                return instead(error)

        return wrapper

    return around
