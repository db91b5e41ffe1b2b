"""Requests that the completer makes again, in this process and without their client.

What is called is the application as it was installed, with all of its middleware, so that a handler finds what it finds
in every request; but for credentials, which are never stored. In their place the request has a mark in its scope or
environ, which no client can write: the layer takes the principal from it, and claims the work that the mark names, and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from onefold._http.installed_app import InstalledApp
from onefold._http.request import COMPLETING, Completing, Request
from onefold._http.request_identity import operations_of
from onefold._http.stored_request import StoredRequest, read_request
from onefold._http.wsgi import request_of
from onefold._kernel.serial_thread import call_in_thread
from onefold._steps.completer import ATTEMPT_S, Abandoned, CompletionAttempt
from onefold._steps.sealing import Sealing, request_context
from onefold.errors import ConfigurationError, OnefoldError

#: What a request that was cancelled has to come to its end.
_CANCEL_S: Final = 5.0

_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}


class RequestRepeater:
    """Makes requests again that were left."""

    def __init__(self, installed: list[InstalledApp], sealing: Sealing, *, attempt_s: float = ATTEMPT_S) -> None:
        """`attempt_s`: a request that takes longer is given up, so that it does not hold up the others."""
        self._installed = installed
        self._sealing = sealing
        self._attempt_s = attempt_s

    async def attempt_on_loop(self, work: Abandoned) -> CompletionAttempt:
        """On the event loop that this runs on."""
        found = self._find(work)
        if isinstance(found, CompletionAttempt):
            return found
        installed, source, body = found
        if installed.protocol == "wsgi":
            return await call_in_thread(partial(_call_wsgi, installed.app, source, self._attempt_s))
        return await _call_asgi(installed.app, source, body, self._attempt_s)

    def attempt(self, work: Abandoned) -> CompletionAttempt:
        """On this thread."""
        found = self._find(work)
        if isinstance(found, CompletionAttempt):
            return found
        installed, source, body = found
        if installed.protocol == "wsgi":
            return _call_wsgi(installed.app, source, self._attempt_s)
        return asyncio.run(_call_asgi(installed.app, source, body, self._attempt_s))

    def _find(self, work: Abandoned) -> tuple[InstalledApp, dict[str, Any], bytes] | CompletionAttempt:
        """Which application it is for, and its request. A CompletionAttempt: it cannot be made."""
        try:
            stored = read_request(self._sealing.unseal(work.request, request_context(work.digest), what="it"))
        except (OnefoldError, ValueError) as error:
            return CompletionAttempt(None, f"its request cannot be read: {type(error).__name__}: {error}")
        mark = Completing(work.digest, stored.principal, stored.mount)
        target = f"{stored.method} {stored.path}"
        by_rank: dict[int, list[tuple[InstalledApp, dict[str, Any], bytes]]] = {}
        for installed in self._installed:
            source = _SOURCES[installed.protocol](stored, installed.state)
            source[COMPLETING] = mark
            route = installed.resolve(_request(installed.protocol, stored, source))
            if route is not None and route.policy.steps:
                names = operations_of(stored.method, route.name, route.policy.operation)
                rank = names.index(work.operation) if work.operation in names else len(names)
                by_rank.setdefault(rank, []).append((installed, source, stored.body))
        if not by_rank:
            return CompletionAttempt(None, f"no application of this process has a route with steps for {target}")
        best = by_rank[min(by_rank)]
        if len(best) > 1:
            return CompletionAttempt(
                None,
                f"{len(best)} applications of this process have a route with steps for {target}, and where each is "
                "mounted is not known here: give the routes an operation= of their own",
            )
        return best[0]


def check_installed(installed: list[InstalledApp], name: str) -> None:
    """Raises ConfigurationError."""
    if not installed:
        raise ConfigurationError(
            f"{name} is installed in no application of this process, and requests are completed by calling it: call "
            "once.install(app) first (`onefold complete` takes the module that does so)"
        )


def _request(protocol: str, stored: StoredRequest, source: dict[str, Any]) -> Request:
    if protocol == "wsgi":
        return request_of(source)
    return Request(stored.method, stored.path, stored.query, stored.headers, source)


def _scope(stored: StoredRequest, state: Mapping[str, Any]) -> dict[str, Any]:
    headers = [each for each in stored.headers if each[0] != b"content-length"]
    headers.append((b"content-length", str(len(stored.body)).encode()))
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": dict(_ASGI),
        "http_version": "1.1",
        "method": stored.method,
        "scheme": stored.scheme,
        "path": stored.path,
        "raw_path": quote(stored.path, safe="/:@!$&'()*+,;=~", errors="surrogatepass").encode(),
        "query_string": stored.query,
        "root_path": stored.root,
        "headers": headers,
        "client": None,
        "server": None,
        "state": dict(state),
    }
    if stored.outer_root is not None:
        scope["app_root_path"] = stored.outer_root
    return scope


def _environ(stored: StoredRequest, state: Mapping[str, Any]) -> dict[str, Any]:
    headers = {name: value.decode("latin-1") for name, value in stored.headers}
    host, _, port = headers.get(b"host", "localhost").partition(":")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": stored.method,
        "SCRIPT_NAME": stored.root,
        # WSGI hands decoded paths over in latin-1.
        "PATH_INFO": stored.path.encode("utf-8", "surrogatepass").decode("latin-1"),
        "QUERY_STRING": stored.query.decode("latin-1"),
        "SERVER_NAME": host,
        "SERVER_PORT": port or ("443" if stored.scheme == "https" else "80"),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": headers.pop(b"content-type", ""),
        "CONTENT_LENGTH": str(len(stored.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": stored.scheme,
        "wsgi.input": io.BytesIO(stored.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in headers.items():
        environ[f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}"] = value
    return environ


_SOURCES: Final[Mapping[str, Callable[[StoredRequest, Mapping[str, Any]], dict[str, Any]]]] = {
    "asgi": _scope,
    "wsgi": _environ,
}


async def _call_asgi(app: Any, scope: dict[str, Any], body: bytes, attempt_s: float) -> CompletionAttempt:
    status: int | None = None
    received, answered = False, asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        nonlocal received
        if not received:
            received = True
            return {"type": "http.request", "body": body, "more_body": False}
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            answered.set()

    async def call() -> None:
        await app(scope, receive, send)

    # In a context of its own: neither the deadline nor the calls of what runs the completer are the request's.
    task = asyncio.get_running_loop().create_task(call(), context=contextvars.Context())
    try:
        await asyncio.wait({task}, timeout=attempt_s)
    finally:
        task.cancel()
    await asyncio.wait({task}, timeout=_CANCEL_S)
    if not task.done() or task.cancelled():
        return CompletionAttempt(status, _no_answer(attempt_s))
    error = task.exception()
    return CompletionAttempt(status) if error is None else CompletionAttempt(status, _describe(error))


def _call_wsgi(app: Any, environ: dict[str, Any], attempt_s: float) -> CompletionAttempt:
    statuses: list[str] = []
    errors: list[BaseException] = []

    def start_response(status: str, headers: object, exc_info: object = None) -> Callable[[bytes], object]:
        statuses.append(status)
        return lambda part: None

    def call() -> None:
        try:
            chunks: Iterable[bytes] = app(environ, start_response)
            try:
                for _ in chunks:
                    pass
            finally:
                close = getattr(chunks, "close", None)
                if close is not None:
                    close()
        except BaseException as error:
            errors.append(error)

    # A thread cannot be ended, but it need not be waited for. Its work has its lease for as long as it goes on.
    thread = threading.Thread(target=contextvars.Context().run, args=(call,), name="onefold-completed", daemon=True)
    thread.start()
    thread.join(attempt_s)
    if thread.is_alive():
        return CompletionAttempt(_code(statuses), _no_answer(attempt_s))
    return CompletionAttempt(_code(statuses), _describe(errors[0]) if errors else None)


def _no_answer(attempt_s: float) -> str:
    return f"no answer within {attempt_s:g} s"


def _code(statuses: list[str]) -> int | None:
    return int(statuses[-1].split(" ", 1)[0]) if statuses else None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
