"""Requests and answers as they are on the wire, and two small servers: one for ASGI, one for WSGI applications.

They do what real servers do at the edges that matter here: join repeated WSGI header lines with a comma, raise when
a body stalls, let a client hang up, turn an exception into a bare 500. Both check what the application sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Literal, TypeAlias
from wsgiref.validate import validator

from onefold._http import asgi, wsgi
from tests.support.patience import PATIENCE_S

HeaderLines: TypeAlias = tuple[tuple[str, str | bytes], ...]
Arrival: TypeAlias = Literal["whole", "in pieces", "stalls", "breaks off"]

#: The client was gone before there was anything to answer.
NO_ANSWER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request. `arrival` says how its body comes in."""

    method: str = "POST"
    path: str = "/orders"
    mount: str = ""
    """Where the application is mounted inside of another; the path is below."""
    query: str = ""
    headers: HeaderLines = ()
    body: bytes = b""
    arrival: Arrival = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the client got. `error` is what the application raised, which a server turns into a bare 500."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    error: BaseException | None = None

    def header(self, name: str) -> str | None:
        found = [value for given, value in self.headers if given == name]
        assert len(found) < 2, f"{name} was sent {len(found)} times: {found}"
        return found[0] if found else None

    @property
    def replayed(self) -> bool:
        mark = self.header("idempotent-replayed")
        assert mark in (None, "true")
        return mark == "true"

    @property
    def problem(self) -> str:
        """The last part of a problem's type; empty when this is not a problem of ours."""
        if self.header("content-type") != "application/problem+json":
            return ""
        kind = self.json["type"]
        assert isinstance(kind, str)
        assert self.json["status"] == self.status
        return kind.removeprefix("urn:onefold:problem:")

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass(slots=True)
class Line:
    """The connection of one client: it can hang up, and tells when the first of the answer arrives."""

    answered: Callable[[], object] = lambda: None
    gone: threading.Event = field(default_factory=threading.Event)
    loop: asyncio.AbstractEventLoop | None = None
    heard: asyncio.Event | None = None

    def hang_up(self) -> None:
        self.gone.set()
        if self.loop is not None and self.heard is not None:
            self.loop.call_soon_threadsafe(self.heard.set)


BROKEN = Answer(status=500, headers=(("content-type", "text/plain"),), body=b"Internal Server Error")


async def serve_asgi(app: asgi.Application, question: Question, line: Line) -> Answer:
    """Answer one question with an ASGI application."""
    line.heard, line.loop = asyncio.Event(), asyncio.get_running_loop()
    pieces = _pieces(question)
    sent: list[asgi.Message] = []

    async def receive() -> asgi.Message:
        for piece, more in pieces:
            return {"type": "http.request", "body": piece, "more_body": more}
        if question.arrival == "stalls":
            await asyncio.Event().wait()
        if question.arrival == "whole" or question.arrival == "in pieces":
            assert line.heard is not None
            await line.heard.wait()
        return {"type": "http.disconnect"}

    async def send(message: asgi.Message) -> None:
        if line.gone.is_set():
            raise OSError("the client has hung up")
        if not sent:
            line.answered()
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": question.method,
        "scheme": "http",
        "path": question.mount + question.path,
        "raw_path": (question.mount + question.path).encode(),
        "query_string": question.query.encode(),
        "root_path": question.mount,
        **({"app_root_path": ""} if question.mount else {}),
        "headers": [(name.lower().encode(), _bytes(value)) for name, value in question.headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    error: BaseException | None = None
    try:
        await asyncio.wait_for(app(scope, receive, send), PATIENCE_S)
    except Exception as raised:
        error = raised
    return _assembled(sent, error)


def _assembled(sent: list[asgi.Message], error: BaseException | None) -> Answer:
    if not sent:
        return Answer(status=NO_ANSWER) if error is None else _broken(error)
    start, *parts = sent
    assert start["type"] == "http.response.start", f"the first message is {start}"
    assert all(part["type"] == "http.response.body" for part in parts)
    if error is None:
        assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    assert all(name == name.lower() for name, _ in start["headers"])
    headers = tuple((bytes(name).decode(), bytes(value).decode("latin-1")) for name, value in start["headers"])
    body = b"".join(part.get("body", b"") for part in parts)
    return Answer(status=start["status"], headers=headers, body=body, error=error)


def serve_wsgi(app: wsgi.Application, question: Question, line: Line) -> Answer:
    """Answer one question with a WSGI application, whose manners the standard library's validator checks."""
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        line.answered()
        started.append((status, headers))
        return lambda data: None

    checked: Any = validator(app)
    try:
        chunks = checked(_environ(question), start_response)
        try:
            # A WSGI server hears of a client's end when it writes: it then closes what it was given.
            body = b"" if line.gone.is_set() else b"".join(chunks)
        finally:
            chunks.close()
    except Exception as raised:
        return _broken(raised)
    if line.gone.is_set():
        return Answer(status=NO_ANSWER)
    (status, lines), *others = started
    assert not others, "start_response was called more than once"
    headers = tuple((name.lower(), value) for name, value in lines)
    return Answer(status=int(status.split(" ")[0]), headers=headers, body=body)


def _broken(error: BaseException) -> Answer:
    return Answer(status=500, headers=BROKEN.headers, body=BROKEN.body, error=error)


def _environ(question: Question) -> dict[str, Any]:
    joined: dict[str, str] = {}
    for name, value in question.headers:
        text = _bytes(value).decode("latin-1")
        joined[name.lower()] = f"{joined[name.lower()]},{text}" if name.lower() in joined else text
    environ: dict[str, Any] = {
        "REQUEST_METHOD": question.method,
        "SCRIPT_NAME": question.mount,
        "PATH_INFO": question.path.encode().decode("latin-1"),
        "QUERY_STRING": question.query,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(question.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": _Input(question),
        "wsgi.errors": _Errors(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    if "content-type" in joined:
        environ["CONTENT_TYPE"] = joined.pop("content-type")
    return environ | {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in joined.items()}


class _Input(BytesIO):
    """The body as a WSGI server hands it over: a stalled client is the socket's timeout."""

    def __init__(self, question: Question) -> None:
        super().__init__(b"".join(piece for piece, _ in _pieces(question)))
        self._stalls = question.arrival == "stalls"

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if self._stalls:
            raise TimeoutError("timed out")
        return found


class _Errors:
    def flush(self) -> None: ...
    def write(self, text: str) -> None: ...
    def writelines(self, lines: list[str]) -> None: ...


def _pieces(question: Question) -> Iterator[tuple[bytes, bool]]:
    """The body in the pieces it arrives in, each with whether more is to come."""
    body, half = question.body, len(question.body) // 2
    if question.arrival == "whole":
        yield body, False
    else:
        yield body[:half], True
        if question.arrival == "in pieces":
            yield body[half:], False


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


@contextlib.contextmanager
def looping() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="contract-loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
