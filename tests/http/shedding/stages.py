"""Applications whose requests stand still until the test lets them go on, for both colours, and a clock by hand."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from onefold._http.asgi import Application, Message, Receive, Send
from onefold._http.wsgi import Application as WsgiApplication
from onefold._http.wsgi import Environ, StartResponse
from onefold._kernel import deadlines
from onefold._policy.limiter import Sample
from onefold.telemetry import Event, Shed
from tests.support.patience import PATIENCE_S


def turned_away(told: Iterable[Event]) -> list[Shed]:
    """Of what a listener was told, who was turned away."""
    return [event for event in told if isinstance(event, Shed)]


@dataclass(slots=True)
class Clock:
    """Moves when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Noted:
    """A law that keeps the limit and what it was shown."""

    samples: list[Sample] = field(default_factory=list)

    def next_limit(self, limit: float, sample: Sample) -> float:
        self.samples.append(sample)
        return limit


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client got; status 0 is: nothing."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        return str(json.loads(self.body)["type"]).removeprefix("urn:onefold:problem:")

    @property
    def retry_after_s(self) -> int:
        return int(self.headers["retry-after"])


# --- asyncio ---


class Works:
    """An ASGI application: a request for `/x` runs until `let_go("/x")`."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[str] = asyncio.Queue()
        self.running = self.peak = 0
        self.ran: list[str] = []
        self.deadlines: list[float | None] = []
        self.bodies: list[bytes] = []
        self._gates: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.ran.append(scope["path"])
        self.deadlines.append(deadlines.current())
        self.entered.put_nowait(scope["path"])
        try:
            await self._gate(scope["path"]).wait()
            self.bodies.append(await whole_body(receive))
        finally:
            self.running -= 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"done"})

    def let_go(self, *paths: str) -> None:
        for path in paths:
            self._gate(path).set()

    async def arrival(self) -> str:
        return await asyncio.wait_for(self.entered.get(), PATIENCE_S)

    def _gate(self, path: str) -> asyncio.Event:
        return self._gates.setdefault(path, asyncio.Event())


async def whole_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


class Caller:
    """The client's end of one request."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts or (b"",))
        self.gone = asyncio.Event()
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if self._parts:
            return {"type": "http.request", "body": self._parts.pop(0), "more_body": bool(self._parts)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def reply(self) -> Reply:
        if not self.sent:
            return Reply(0, {}, b"")
        start, *parts = self.sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], headers, b"".join(part.get("body", b"") for part in parts))


def scope_of(path: str, headers: dict[str, str] | None = None, *, root_path: str = "") -> dict[str, Any]:
    lines = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "root_path": root_path,
        "headers": lines,
    }


async def ask(
    app: Application, path: str, headers: dict[str, str] | None = None, caller: Caller | None = None
) -> Reply:
    caller = caller or Caller()
    await asyncio.wait_for(app(scope_of(path, headers), caller.receive, caller.send), PATIENCE_S)
    return caller.reply


def asking(app: Application, *paths: str, headers: dict[str, str] | None = None) -> list[asyncio.Task[Reply]]:
    return [asyncio.create_task(ask(app, path, headers)) for path in paths]


async def settled() -> None:
    """Let every task go as far as it can without the test."""
    for _ in range(20):
        await asyncio.sleep(0)


async def reached(condition: Callable[[], bool]) -> None:
    """Wait for the server, or another task, to get there."""
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the server never got there")


# --- threads ---


class ThreadWorks:
    """The same as a WSGI application, which is a generator where the test wants it to run late."""

    def __init__(self, *, late: bool = False) -> None:
        self.entered: Queue[str] = Queue()
        self.running = self.peak = 0
        self.ran: list[str] = []
        self.deadlines: list[float | None] = []
        self._late = late
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Event] = {}

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return self._generated(environ, start_response) if self._late else [self._work(environ, start_response)]

    def _generated(self, environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        yield self._work(environ, start_response)

    def _work(self, environ: Environ, start_response: StartResponse) -> bytes:
        path = environ["PATH_INFO"]
        with self._lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
            self.ran.append(path)
            self.deadlines.append(deadlines.current())
        self.entered.put(path)
        assert self._gate(path).wait(PATIENCE_S)
        with self._lock:
            self.running -= 1
        start_response("200 OK", [("Content-Type", "text/plain")])
        return b"done"

    def let_go(self, *paths: str) -> None:
        for path in paths:
            self._gate(path).set()

    def arrival(self) -> str:
        return self.entered.get(timeout=PATIENCE_S)

    def _gate(self, path: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(path, threading.Event())


def ask_thread(app: WsgiApplication, path: str, headers: dict[str, str] | None = None) -> Reply:
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, lines: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        started.append((status, lines))
        return lambda data: None

    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "QUERY_STRING": "", "SCRIPT_NAME": ""}
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in (headers or {}).items()}
    chunks = app(environ, start_response)
    try:
        body = b"".join(chunks)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    [(status, lines)] = started
    return Reply(int(status[:3]), {name.lower(): value for name, value in lines}, body)


def asking_threads(app: WsgiApplication, *paths: str, headers: dict[str, str] | None = None) -> list[Future[Reply]]:
    """Ask, each on a thread of its own."""

    def work(path: str, future: Future[Reply]) -> None:
        try:
            future.set_result(ask_thread(app, path, headers))
        except BaseException as error:
            future.set_exception(error)

    futures: list[Future[Reply]] = []
    for path in paths:
        futures.append(Future())
        threading.Thread(target=work, args=(path, futures[-1]), daemon=True).start()
    return futures


def until(reached: Callable[[], bool]) -> None:
    """Wait for other threads to get there."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        if reached():
            return
        pause.wait(0.002)
    raise AssertionError("other threads never got there")
