"""Marking a function as an idempotent route's handler, and knowing when it was reached.

The wrapper changes nothing about the call. It tells the passage that the handler itself was entered: an answer
given before that (validation, authentication in a dependency) says nothing about the request and is not stored. A
request that the layer let pass unclaimed does not get in.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from onefold.http.exchange import passing
from onefold.http.policy import Policy
from onefold.http.unclaimed import refuse_unclaimed

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__onefold_policy__"


def mark(function: F, policy: Policy) -> F:
    """The same function, known to resolvers as an idempotent handler."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def entered(*args: Any, **kwargs: Any) -> Any:
            _enter(policy, function)
            return await function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def entered(*args: Any, **kwargs: Any) -> Any:
            _enter(policy, function)
            return function(*args, **kwargs)

    setattr(entered, _MARK, policy)
    # Frameworks read the parameters' types here, and some look up names (`from __future__ import annotations`) among
    # the globals of the wrapper, where they are not. A name that is unknown yet is left to the framework.
    with suppress(Exception):
        entered.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return cast("F", entered)


def policy_of(function: object) -> Policy | None:
    """The policy a handler was marked with."""
    while isinstance(function, functools.partial):
        function = function.func
    policy = getattr(function, _MARK, None)
    return policy if isinstance(policy, Policy) else None


def _enter(policy: Policy, function: Callable[..., Any]) -> None:
    passage = passing.get()
    if passage is not None and passage.policy is policy:
        passage.entered = True
    else:
        refuse_unclaimed(getattr(function, "__qualname__", repr(function)))
