"""The spans of an outgoing call: one for the call, and one below it for each attempt.

The call is what the application waits for, with its intent and its key; an attempt is what leaves, and its context goes
with it in the headers, another for each attempt. The address is recorded up to its port: a path or a query may hold a
name or a token.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from onefold._client.retry_loop import Raised
from onefold._kernel.effects import Flow
from onefold._kernel.key_hash import hash_key
from onefold._kernel.tracing import Attribute, Span, Tracer

if TYPE_CHECKING:
    from onefold._client.http_call import HttpCall

F = TypeVar("F", bound=Callable[..., Any])

#: How many attempts the function call that is under way has made.
_made: Final[ContextVar[list[int] | None]] = ContextVar("onefold_attempts_made", default=None)


class CallTrace:
    """One call of an HTTP client."""

    __slots__ = ("_call", "_tracer")

    def __init__(self, tracer: Tracer, call: HttpCall) -> None:
        self._tracer = tracer
        self._call = call

    async def follow(self, flow: Flow[Any]) -> Any:
        """Make the call in its span."""
        call, request = self._call, self._call.request
        span = self._tracer.begin_span(f"onefold {request.method}", "internal", _address(request.method, request.host))
        try:
            with span.active():
                ended = await flow
            if isinstance(ended, Raised):
                span.fail(ended.error)
            else:
                _note_status(span, request.status(ended))
            return ended
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            span.set("onefold.attempts", call.attempts_made)
            self._name(span)
            span.end()

    def attempt(self, send: Callable[[], Any]) -> Any:
        """Send it once, in a span of its own."""
        request, made = self._call.request, self._call.attempts_made
        attributes = _address(request.method, request.host)
        if made > 1:
            attributes["http.request.resend_count"] = made - 1
        span = self._tracer.begin_span(request.method, "client", attributes)
        self._name(span)
        span.inject(request.set_header)
        return _follow(span, send, lambda answer: _note_status(span, request.status(answer)))

    def _name(self, span: Span) -> None:
        if self._call.key is not None:
            span.set("onefold.key.hash", hash_key(self._call.key))
        if self._call.intent is not None:
            span.set("onefold.intent", self._call.intent)


class FunctionTrace:
    """Calls of a function that is retried."""

    def __init__(self, tracer: Tracer, name: str) -> None:
        self._tracer = tracer
        self._name = name

    def trace_attempts(self, function: F) -> F:
        """The function, each call of which is an attempt."""

        def attempt(*args: Any, **kwargs: Any) -> Any:
            made = _made.get()
            if made is not None:
                made[0] += 1
            span = self._tracer.begin_span(f"attempt {self._name}")
            if made is not None:
                span.set("onefold.attempt", made[0])
            return _follow(span, functools.partial(function, *args, **kwargs))

        return _wrap(function, attempt)

    def trace_calls(self, function: F) -> F:
        """The function with its retries, each call of which is one."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return _follow(self._tracer.begin_span(f"onefold {self._name}"), _count(function, args, kwargs))

        return _wrap(function, call)


def _count(function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], Any]:
    """The call, with a count of its attempts: a call inside of another has its own."""
    if not inspect.iscoroutinefunction(function):

        def call() -> Any:
            token = _made.set([0])
            try:
                return function(*args, **kwargs)
            finally:
                _made.reset(token)

        return call

    async def call_async() -> Any:
        token = _made.set([0])
        try:
            return await function(*args, **kwargs)
        finally:
            _made.reset(token)

    return call_async


def _wrap(function: F, wrapper: Callable[..., Any]) -> F:
    """The wrapper in the function's place, and of its colour."""
    if not inspect.iscoroutinefunction(function):
        return cast("F", functools.wraps(function)(wrapper))

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await wrapper(*args, **kwargs)

    return cast("F", awaited)


def _follow(span: Span, work: Callable[[], Any], note: Callable[[Any], None] | None = None) -> Any:
    """Do this in the span, which ends with it; on asyncio to be awaited."""
    try:
        with span.active():
            answer = work()
    except BaseException as error:
        span.fail(error)
        span.end()
        raise
    if inspect.isawaitable(answer):
        return _await(span, answer, note)
    if note is not None:
        note(answer)
    span.end()
    return answer


async def _await(span: Span, answer: Awaitable[Any], note: Callable[[Any], None] | None) -> Any:
    try:
        with span.active():
            response = await answer
        if note is not None:
            note(response)
        return response
    except BaseException as error:
        span.fail(error)
        raise
    finally:
        span.end()


def _address(method: str, host: str) -> dict[str, Attribute]:
    name, _, port = host.rpartition(":") if host.rpartition(":")[2].isdecimal() else (host, "", "")
    attributes: dict[str, Attribute] = {"http.request.method": method, "server.address": name}
    if port:
        attributes["server.port"] = int(port)
    return attributes


def _note_status(span: Span, status: int) -> None:
    span.set("http.response.status_code", status)
    if status >= 400:
        span.fail(str(status))
