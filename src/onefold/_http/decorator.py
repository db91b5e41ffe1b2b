"""Marking a function as an idempotent route's handler, and noting when it was reached.

Invariant: a marked handler runs inside a request that the layer let in, or not at all. Its wrapper notes in the guarded
request that the handler itself was entered: an answer given before that (validation, authentication in a dependency)
says nothing about the request and is not stored. It also notes what the handler raised: an exception handler may answer
as it likes, and the rows of half a handler do not stay. What is raised around the handler counts the same; the
frameworks report it (`note_exception`). When it has returned, its sessions write what they hold: the framework may
close them before the request is settled (Flask's teardown, the exit of a dependency). What the handler leaves to be
done in the background waits until its answer goes out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from onefold._http.background import PARAMETER, add_background, hold_back
from onefold._http.guarded_request import GuardedRequest, current_request
from onefold._http.handler_needs import refuse_bare_sessions
from onefold._http.problems import problem
from onefold._http.request import Response
from onefold._http.route_policy import Authorize, Policy
from onefold._http.steps_parameter import find_steps, without
from onefold._kernel.executors import is_async
from onefold._kernel.handler_errors import late_isolation
from onefold.errors import ConfigurationError, OnefoldError, ProgrammerError

if TYPE_CHECKING:
    from onefold._steps.steps import Steps

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__onefold_mark__"


class Serving(Protocol):
    """A layer, and what it is called."""

    @property
    def name(self) -> str: ...

    @property
    def authorize(self) -> Authorize | None:
        """Of its routes that set no other."""
        ...


class IdempotentHandler:
    """What a marked handler carries, and every wrapper around it that keeps its attributes (functools.wraps)."""

    __slots__ = ("__weakref__", "function", "layer", "policy")

    def __init__(self, policy: Policy, function: Callable[..., Any], layer: Serving) -> None:
        self.policy = policy
        self.function = function
        self.layer = layer
        """The layer that marked it; only that one may serve it."""

    @property
    def name(self) -> str:
        return name_of(self.function)


def mark(function: F, policy: Policy, layer: Serving) -> F:
    """The same function, known to resolvers as an idempotent handler."""
    found = IdempotentHandler(policy, function, layer)
    steps = find_steps(function) if policy.steps else None
    # Frameworks read the parameters' types here, and some look up names (`from __future__ import annotations`) among
    # the globals of the wrapper, where they are not. A name that is unknown yet is left to the framework.
    signature, background = None, PARAMETER
    with suppress(Exception):
        plain = without(inspect.signature(function, eval_str=True), steps)
        signature, background = add_background(refuse_bare_sessions(plain, found.name))
    if signature is None and steps is not None:
        signature = without(inspect.signature(function), steps)
    if is_async(function):

        @functools.wraps(function)
        async def call_handler(*args: Any, **kwargs: Any) -> Any:
            guarded = _enter(found)
            injected = kwargs.pop(PARAMETER, None) if background is PARAMETER else kwargs.get(background)
            if steps is not None:
                kwargs[steps] = _steps_of(guarded, found, asynchronous=True)
            try:
                result = await function(*args, **kwargs)
                if guarded is not None:
                    for joined in guarded.tx.joined:
                        if inspect.isawaitable(written := joined.write()):
                            await written
                    if guarded.condition is not None:
                        guarded.condition.note_result(result)
            except BaseException as error:
                _note(guarded, error)
                raise
            return result if guarded is None else hold_back(guarded, result, injected)

    else:

        @functools.wraps(function)
        def call_handler(*args: Any, **kwargs: Any) -> Any:
            guarded = _enter(found)
            injected = kwargs.pop(PARAMETER, None) if background is PARAMETER else kwargs.get(background)
            if steps is not None:
                kwargs[steps] = _steps_of(guarded, found, asynchronous=False)
            try:
                result = function(*args, **kwargs)
                if guarded is not None:
                    for joined in guarded.tx.joined:
                        joined.write()
                    if guarded.condition is not None:
                        guarded.condition.note_result(result)
            except BaseException as error:
                _note(guarded, error)
                raise
            return result if guarded is None else hold_back(guarded, result, injected)

    if policy.conditional is not None:
        call_handler = _read_or_run(found, call_handler)
    setattr(call_handler, _MARK, found)
    if signature is not None:
        vars(call_handler)["__signature__"] = signature
    return cast("F", call_handler)


def idempotent_handler_of(function: object) -> IdempotentHandler | None:
    """The mark a handler carries."""
    while isinstance(function, functools.partial):
        function = function.func
    found = getattr(function, _MARK, None)
    return found if isinstance(found, IdempotentHandler) else None


def served_by(endpoint: object, kind: object, method: str) -> object:
    """What a framework calls for this method: the endpoint, or the method of a class of views, which is marked as a
    whole or method by method. A HEAD is served as a GET."""
    if kind is None or idempotent_handler_of(endpoint) is not None:
        return endpoint
    return getattr(kind, method.lower(), None) or getattr(kind, "get", None)


def policy_of(function: object) -> Policy | None:
    """The policy a handler was marked with."""
    found = idempotent_handler_of(function)
    return None if found is None else found.policy


def name_of(function: object) -> str:
    """A function as its author knows it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", repr(function))
    return f"{module}.{name}" if module else str(name)


def check_markable(function: object, asynchronous: bool) -> None:
    """Refuse what cannot be a handler."""
    name = name_of(function)
    if inspect.isclass(function) or not callable(function):
        raise ConfigurationError(
            f"@once.idempotent(...) marks functions, and {name} is none; of a class of views mark the methods that "
            "write (post, put, patch, delete)"
        )
    if idempotent_handler_of(function) is not None:
        raise ConfigurationError(f"{name} is marked with @once.idempotent(...) twice; once is enough")
    if asynchronous and not is_async(function):
        raise ConfigurationError(
            f"{name} is a def, and AsyncOnefold serves async functions only: on a thread nothing it does with its "
            "transaction would be awaited, and an answer would be stored for work that never happened. Write "
            "`async def`, or use Onefold, whose transactions a def can use"
        )


def _enter(found: IdempotentHandler) -> GuardedRequest[Any] | None:
    """The guarded request this call is about; None where another handler calls this one, in its own guarded request."""
    guarded = current_request.get()
    if guarded is None or guarded.over:
        raise ProgrammerError(
            f"{found.name} is marked as idempotent, but it was called outside of a request that onefold let in: it "
            "would run unprotected. Call once.install(...) on the application that has its route, and put "
            "@once.idempotent(...) directly below the route's own decorator. Other ASGI or WSGI code around a route "
            "hides it, and so does middleware that rewrites the path or the method. Code that is not a request (a "
            "script, a task, another handler) calls an unmarked function instead; a unit test calls this one's "
            f"{getattr(found.function, '__name__', 'handler')}.__wrapped__(...)"
        )
    if guarded.policy is not found.policy:
        return None
    if guarded.raised is not None:
        raise ProgrammerError(
            f"{found.name} raised {type(guarded.raised).__name__} and is called again in the same request "
            f"({guarded.operation}), whose transaction still has the rows of the first attempt. Retry inside the "
            "handler, each attempt in a savepoint, or let the client retry"
        )
    guarded.entered = True
    return guarded


def _noting_read(found: IdempotentHandler) -> Callable[[object], None] | None:
    """What notes the result of a conditional handler that is called in a read; None for a write."""
    from onefold._http.conditional_reads import current_read

    read, guarded = current_read.get(), current_request.get()
    if read is None or (guarded is not None and not guarded.over):
        return None
    endpoint = read.endpoint()
    if endpoint is not None and idempotent_handler_of(endpoint) is not found:
        return _ignore  # called by the handler that serves the read: the answer is that one's
    read.condition.rules = found.policy.conditional
    return read.condition.note_result


def _ignore(_: object) -> None: ...


def _read_or_run(found: IdempotentHandler, run: F) -> F:
    """A conditional handler serves reads of its route, too: they have no transaction and no key."""
    function = found.function

    if is_async(function):

        @functools.wraps(run)
        async def call_handler(*args: Any, **kwargs: Any) -> Any:
            if (note := _noting_read(found)) is None:
                return await run(*args, **kwargs)
            kwargs.pop(PARAMETER, None)
            result = await function(*args, **kwargs)
            note(result)
            return result

    else:

        @functools.wraps(run)
        def call_handler(*args: Any, **kwargs: Any) -> Any:
            if (note := _noting_read(found)) is None:
                return run(*args, **kwargs)
            kwargs.pop(PARAMETER, None)
            result = function(*args, **kwargs)
            note(result)
            return result

    return cast("F", call_handler)


def _steps_of(guarded: GuardedRequest[Any] | None, found: IdempotentHandler, *, asynchronous: bool) -> Steps:
    if guarded is None or guarded.steps is None:
        raise ProgrammerError(
            f"{found.name} works in steps, and was called by another handler, whose request has none of its own for "
            "it. Call an unmarked function instead, and hand it your steps"
        )
    return guarded.steps.of(asynchronous=asynchronous)


def note_exception(error: Exception) -> None:
    """Something that the application's own handlers or middleware may answer was raised around the handler: a response
    that is not what it must be, the exit of a dependency, a decorator. Nothing that raised is kept."""
    guarded = current_request.get()
    if guarded is not None and guarded.entered and not guarded.over and guarded.raised is None:
        guarded.raised = error


def refusal_of(error: OnefoldError) -> Response:
    """An error as the response of the request at hand."""
    guarded = current_request.get()
    return problem(error) if guarded is None else guarded.shared.refusal(error, guarded.request)


def _note(guarded: GuardedRequest[Any] | None, error: BaseException) -> None:
    if guarded is None:
        return
    misused = late_isolation(error)
    guarded.raised = misused or error
    if misused is not None:
        raise misused from error
