"""What a handler leaves to be done after its answer: done when that goes out, and not when another takes its place.

The framework runs the tasks of a plain response right after sending it, so after COMMIT. Middleware in between may run
them earlier: it has the response, and has not sent it on yet (or, as Starlette's BaseHTTPMiddleware, is sending it in
another task). Waiting for the outcome there would wait for a middleware that itself waits; so a task that comes too
early is handed to the guarded request, and the adapter runs it when the answer has gone out.

The same middleware ends the body of a response that fails half-way before it lets the exception rise. So that half an
answer is not taken for a whole one, the response itself notifies the guarded request.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from typing import Annotated, Any, get_args, get_origin

from onefold._http.guarded_request import GuardedRequest, current_request

#: The parameter that gets the background tasks of a request from FastAPI; the handler itself never sees it.
PARAMETER = "onefold_background"

Task = Callable[[], Awaitable[object]]

#: What the class of a watched response has.
_WATCHED = "__onefold_watched__"


class AnswerReplaced(Exception):
    """Raised out of `send`, so that nothing more of a response is made: another answer went out in its place."""


class HeldTask:
    """The background task of a response, until it is known whether that response goes out."""

    __slots__ = ("_guarded", "_status", "_task")

    def __init__(self, guarded: GuardedRequest[Any], status: int | None, task: Task) -> None:
        self._guarded = guarded
        #: The response's own, where it is known.
        self._status = status
        self._task = task

    async def __call__(self) -> None:
        sent = self._guarded.sent
        if sent is None:
            self._guarded.followed_by = (*self._guarded.followed_by, (copy_context(), self))
        elif sent and (sent < 500 or (self._status or 0) >= 500):  # else middleware made an error of the answer
            await self._task()


def hold_back(guarded: GuardedRequest[Any], result: Any, injected: Any = None) -> Any:
    """A handler's result, whose background tasks (its own, and those FastAPI has injected) now wait for the outcome."""
    if injected is not None and injected.tasks:
        injected.tasks[:] = [_task(HeldTask(guarded, None, type(injected)(injected.tasks)))]
    responses = sys.modules.get("starlette.responses")
    if responses is None or not isinstance(result, responses.Response):
        return result
    if result.background is not None:
        result.background = _task(HeldTask(guarded, result.status_code, result.background))
    kind: Any = type(result)
    if kind.__call__ is not responses.Response.__call__ and not hasattr(kind, _WATCHED):
        result.__class__ = _watch_class(kind)
    return result


@functools.lru_cache(maxsize=256)
def _watch_class(kind: Any) -> Any:
    """The kind of a response that is sent in parts (a stream, a file, one with a way of its own), which notifies the
    guarded request if it fails before its end. A class below it, because frameworks and decorators look for the one
    they know."""

    async def call(self: Any, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        whole = False

        async def note_end(message: Any) -> None:
            nonlocal whole
            await send(message)
            whole = whole or (message["type"] == "http.response.body" and not message.get("more_body", False))

        try:
            await kind.__call__(self, scope, receive, note_end)
        except Exception as error:
            guarded = current_request.get()
            if guarded is not None and not whole and not is_only_replaced(error):
                guarded.stream_error = error
            raise

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__, _WATCHED: True})


async def run_held_back(followed_by: Sequence[tuple[Context, Task]]) -> None:
    """Run what came too early, each in the context it came in."""
    for context, task in followed_by:
        await asyncio.get_running_loop().create_task(_await_task(task), context=context)


def add_background(signature: inspect.Signature) -> tuple[inspect.Signature, str]:
    """The signature of a handler by which FastAPI hands over the background tasks of the request, and the name of the
    parameter: the handler's own, where it has one, because FastAPI fills only one."""
    fastapi, background = sys.modules.get("fastapi"), sys.modules.get("starlette.background")
    if fastapi is None or background is None:
        return signature, PARAMETER
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if _is_background(parameter.annotation, background.BackgroundTasks):
            return signature, parameter.name
    parameter = inspect.Parameter(PARAMETER, inspect.Parameter.KEYWORD_ONLY, annotation=fastapi.BackgroundTasks)
    last = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    parameters.insert(len(parameters) - last, parameter)
    return signature.replace(parameters=parameters), PARAMETER


def is_only_replaced(error: BaseException) -> bool:
    """Whether an exception is ours, alone or in a task group's group."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_only_replaced(part) for part in error.exceptions)
    return isinstance(error, AnswerReplaced)


def _task(held_back: HeldTask) -> Any:
    return sys.modules["starlette.background"].BackgroundTask(held_back)


def _is_background(annotation: object, kind: type) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return isinstance(annotation, type) and issubclass(annotation, kind)


async def _await_task(task: Task) -> None:
    await task()
