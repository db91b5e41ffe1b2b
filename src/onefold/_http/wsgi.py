"""WSGI: the adapter around `GuardedRequest` for threads. Holds the answer back until it is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from io import BytesIO
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from onefold._http.guarded_request import GuardedRequest
from onefold._http.install_checks import READY, Readiness
from onefold._http.reaper import REAPED_ELSEWHERE, Reaping
from onefold._http.request import READS, Headers, Request, Response
from onefold._http.request_guard import RequestGuard
from onefold._http.route_policy import Policy, Route
from onefold._http.scope_keys import CONDITION as CONDITION
from onefold._http.scope_keys import SESSIONS
from onefold._http.scope_keys import TRANSACTION as TRANSACTION  # where an application without a framework looks
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.ports import Database
from onefold._kernel.runners import run
from onefold.errors import BodyIncomplete, BodyTooLarge, BodyTooSlow, CallerError, ProgrammerError

if TYPE_CHECKING:
    from onefold._http.status_pages import Pages

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
Environ: TypeAlias = dict[str, Any]
Application: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]
Resolve: TypeAlias = Callable[[Request], Route | None]


class IdempotencyMiddleware:
    """A WSGI application whose idempotent routes happen once."""

    def __init__(
        self,
        app: Application,
        *,
        guard: RequestGuard,
        database: Database[Any],
        resolve: Resolve,
        pages: Pages | None = None,
        ready: Readiness = READY,
        layer_name: str = "",
        reaping: Reaping = REAPED_ELSEWHERE,
    ) -> None:
        self._app = app
        self._guard = guard
        self._database = database
        self._resolve = resolve
        self._pages = pages
        self._ready = ready
        self.layer_name = layer_name
        self._reaping = reaping

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if not self._ready.passed:
            self._ready.check()
        if not self._reaping.seen:
            self._reaping.report_missing(self.layer_name)
        environ[SESSIONS] = self._guard.sessions
        request = request_of(environ)
        if self._pages is not None and request.method == "GET" and (page := self._pages.find(request)) is not None:
            return send_whole(run(page(), ThreadExecutor(self._database)), start_response)
        route = self._resolve(request)
        if route is None:
            if self._guard.conditional.used and request.method in READS:
                from onefold._http.conditional_reads import serve_wsgi

                guard = self._guard
                return serve_wsgi(self._app, environ, start_response, request, guard.log_and_refuse, guard.framework)
            return self._app(environ, start_response)
        executor: ThreadExecutor[Any] = ThreadExecutor(self._database)
        guarded = self._guard.screen(request, route, executor)
        if isinstance(guarded, Response):
            return send_whole(guarded, start_response)
        try:
            body = _whole_body(environ, guarded.policy)
        except CallerError as error:
            return send_whole(self._guard.refusal(error, request), start_response)
        tracer = self._guard.tracer
        admission = guarded.admit(body) if tracer is None else guarded.admit_traced(body, tracer)
        refusal = run(admission, executor)
        if refusal is not None:
            return send_whole(refusal, start_response)
        environ["wsgi.input"] = BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        return self._run(guarded, environ, start_response)

    def _run(
        self, guarded: GuardedRequest[ThreadExecutor[Any]], environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        held = _HeldResponse(guarded.policy.response_bytes_max)
        with guarded:
            try:
                rest = held.collect(self._app(environ, held.start_response))
                if guarded.condition is not None:
                    held.add(guarded.condition.headers_for(held.code, held.response().headers))
                instead = run(guarded.finish(held.response(), whole=rest is None), guarded.executor)
            except Exception as error:
                try:
                    held.close()
                finally:  # whatever its closing does, the transaction ends here
                    instead = run(guarded.fail(error), guarded.executor)
                if guarded.trace is not None and instead is not None:
                    guarded.trace.end(instead.status)
                if instead is None:
                    raise
                return send_whole(instead, start_response)
            if guarded.trace is not None:
                guarded.trace.end(held.code if instead is None else instead.status)
        guarded.sent = held.code if instead is None else 0
        if instead is not None:
            held.close()
            return send_whole(instead, start_response)
        start_response(held.status, held.headers)
        return held.forward(rest)


class _HeldResponse:
    """What the application sends: held back until it is whole and committed, or too large to be kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._body = bytearray()
        self._iterable: Iterable[bytes] = ()
        self.status = ""
        self.headers: list[tuple[str, str]] = []

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        self.status, self.headers = status, headers
        self._body.clear()  # of an answer that was begun and given up
        return self._body.extend

    def collect(self, iterable: Iterable[bytes]) -> Iterator[bytes] | None:
        """Take the body in. What is returned is the rest of one that is too large; None means: this is all."""
        self._iterable = iterable
        chunks = iter(iterable)
        for chunk in chunks:
            self._body += chunk
            if len(self._body) > self._bytes_max:
                return chunks
        return None if len(self._body) <= self._bytes_max else chunks

    def add(self, headers: Headers) -> None:
        self.headers = [*self.headers, *((name.decode().title(), value.decode("latin-1")) for name, value in headers)]

    @property
    def code(self) -> int:
        return int(self.status.split(" ", 1)[0])

    def response(self) -> Response:
        if not self.status:
            raise ProgrammerError("the WSGI application returned without calling start_response")
        headers: Headers = tuple(
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers
        )
        return Response(self.code, headers, bytes(self._body))

    def forward(self, rest: Iterator[bytes] | None) -> Iterable[bytes]:
        return ClosingBody(chain((bytes(self._body),), rest or ()), self.close)

    def close(self) -> None:
        close = getattr(self._iterable, "close", None)
        if close is not None:
            close()


class ClosingBody:
    """An iterable that closes the application's own when the server closes it."""

    def __init__(self, chunks: Iterator[bytes], close: Callable[[], None]) -> None:
        self._chunks = chunks
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks


def request_of(environ: Environ) -> Request:
    """The head of a request, as ASGI's would be."""
    headers = [
        (name[5:].replace("_", "-").lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    headers += [
        (name.replace("_", "-").lower().encode(), environ[name].encode("latin-1"))
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        if environ.get(name)
    ]
    # WSGI hands the decoded path over in latin-1; ASGI decodes it as UTF-8. A key means the same through both.
    path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
    return Request(
        method=environ["REQUEST_METHOD"],
        path=path,
        query=environ.get("QUERY_STRING", "").encode("latin-1"),
        headers=tuple(headers),
        source=environ,
    )


def _whole_body(environ: Environ, policy: Policy) -> bytes:
    stated = environ.get("CONTENT_LENGTH") or ""
    if stated and not stated.isdecimal():
        raise BodyIncomplete(f"Content-Length {stated[:40]!r} is not a number.")
    if not stated and not environ.get("wsgi.input_terminated"):
        if environ.get("HTTP_TRANSFER_ENCODING"):
            raise BodyIncomplete("This server does not hand over bodies without a Content-Length. Nothing was done.")
        return b""
    length = min(int(stated), policy.body_bytes_max + 1) if stated else policy.body_bytes_max + 1
    try:
        body: bytes = environ["wsgi.input"].read(length)
    except OSError as error:  # the server's socket timed out, or the client is gone
        raise BodyTooSlow("The request body did not arrive in time. Nothing was done.") from error
    if len(body) > policy.body_bytes_max:
        raise BodyTooLarge(f"The request body has more than {policy.body_bytes_max} bytes, the limit of this route.")
    if stated and len(body) < int(stated):
        raise BodyIncomplete(f"The request body ended after {len(body)} of {stated} bytes. Nothing was done.")
    return body


def send_whole(response: Response, start_response: StartResponse) -> Iterable[bytes]:
    """Answer with a response of our own."""
    try:
        reason = HTTPStatus(response.status).phrase
    except ValueError:
        reason = "Status"
    headers = [(name.decode("latin-1").title(), value.decode("latin-1")) for name, value in response.headers]
    start_response(f"{response.status} {reason}", headers)
    return (response.body,)
