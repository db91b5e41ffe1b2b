"""Conditional reads: the ETag of what a GET answers, and 304 where the reader has it already.

The layer does not look for the route of a read. It leaves a condition where the decorator of a handler finds it; where
that has named a tag, the answer gets it, or becomes a 304. Reads have no transaction: a tag says what was read. A
conditional handler that another one calls names no tag: it is not what the answer is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from itertools import chain
from typing import Any, NamedTuple

from onefold._http.authentication import Framework
from onefold._http.conditional import RequestCondition
from onefold._http.request import Headers, Request, Response
from onefold._http.scope_keys import CONDITION
from onefold.errors import OnefoldError


class Read(NamedTuple):
    """A read, and what serves it: None where that is not known."""

    condition: RequestCondition
    endpoint: Callable[[], object | None]


#: The read that this task or thread serves.
current_read: ContextVar[Read | None] = ContextVar("onefold_read", default=None)

#: About the bytes that are not sent.
_OF_THE_BODY = frozenset(
    {
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"content-language",
        b"content-range",
        b"transfer-encoding",
    }
)


Refuse = Callable[[OnefoldError, Request, str], Response]


def _answer(
    condition: RequestCondition, status: int, headers: Headers, request: Request, refuse: Refuse
) -> Response | None:
    """What goes out in place of a read's answer. None: that itself."""
    if not 200 <= status < 300:
        return None
    try:
        tag = condition.judge_read(headers)
    except OnefoldError as error:
        return refuse(error, request, condition.whose)
    if tag is None:
        return None
    kept = tuple(line for line in headers if line[0] not in _OF_THE_BODY and line[0] != b"etag")
    return Response(304, (*kept, (b"etag", str(tag).encode("latin-1"))))


async def serve_asgi(
    app: Any,
    scope: MutableMapping[str, Any],
    receive: Any,
    send: Any,
    request: Request,
    refuse: Refuse,
    framework: Framework,
) -> None:
    """A read of an ASGI application."""
    condition = scope[CONDITION] = RequestCondition(request, None, f"{request.method} {request.path}", None)
    replaced = False

    async def send_judged(message: MutableMapping[str, Any]) -> None:
        nonlocal replaced
        if message["type"] == "http.response.start":
            headers = tuple((name.lower(), value) for name, value in message.get("headers", ()))
            instead = _answer(condition, message["status"], headers, request, refuse)
            if instead is not None:
                replaced = True
                await send({"type": "http.response.start", "status": instead.status, "headers": list(instead.headers)})
                await send({"type": "http.response.body", "body": instead.body if request.method != "HEAD" else b""})
                return
            added = condition.headers_for(message["status"], headers)
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        if not replaced:
            await send(message)

    token = current_read.set(Read(condition, lambda: framework.endpoint_of(request)))
    try:
        await app(scope, receive, send_judged)
    finally:
        current_read.reset(token)


def serve_wsgi(
    app: Any,
    environ: dict[str, Any],
    start_response: Any,
    request: Request,
    refuse: Refuse,
    framework: Framework,
) -> Iterable[bytes]:
    """A read of a WSGI application."""
    from onefold._http.wsgi import ClosingBody, send_whole

    condition = environ[CONDITION] = RequestCondition(request, None, f"{request.method} {request.path}", None)
    instead: Response | None = None
    has_started = False

    def start_judged(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        nonlocal instead, has_started
        has_started = True
        code = int(status.split(" ", 1)[0])
        present = tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers)
        instead = _answer(condition, code, present, request, refuse)
        if instead is not None:
            return _discard
        added = [("ETag", value.decode("latin-1")) for _, value in condition.headers_for(code, present)]
        return start_response(status, [*headers, *added], *(() if exc_info is None else (exc_info,)))

    token = current_read.set(Read(condition, lambda: framework.endpoint_of(request)))
    try:
        body: Iterable[bytes] = app(environ, start_judged)
        close = getattr(body, "close", _close_nothing)
        if not has_started:  # middleware that is a generator: all of the application runs with its first chunk
            chunks = _begin(body, close)
            body = ClosingBody(chunks, close)
    finally:
        current_read.reset(token)
    if instead is None:
        return body
    close()
    sent = send_whole(instead, start_response)
    return sent if request.method != "HEAD" else ()


def _begin(body: Iterable[bytes], close: Callable[[], object]) -> Iterator[bytes]:
    """The same chunks, the first of which is there."""
    chunks = iter(body)
    try:
        first = next(chunks, None)
    except BaseException:
        close()
        raise
    return chain(() if first is None else (first,), chunks)


def _close_nothing() -> None:
    """Of a body that has nothing to close."""


def _discard(_: bytes) -> None:
    """The body of an answer that another stands for."""
