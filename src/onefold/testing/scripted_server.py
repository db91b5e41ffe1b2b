"""An HTTP server that does what its script says: answers, resets, stalls, breaks off. For testing clients.

    with ScriptedServer([Reset(), Answer(503, headers={"Retry-After": "1"}), Answer(201, b"{}")]) as server:
        client.post(f"{server.url}/payments", ...)
    assert [request.headers["idempotency-key"] for request in server.requests] == ...

It listens on loopback, on a port of its own, and speaks just enough HTTP/1.1. Every request takes the next step of the
script; when the script is over, the last step is repeated.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO, Final, Self, TypeAlias

from onefold.errors import ConfigurationError

__all__ = ["Act", "Chunks", "Half", "ReceivedRequest", "Reply", "Reset", "ScriptedServer", "Stall", "Trickle"]

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER, on, for 0 seconds


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer (`status`, `headers`, `body`), after `after_s`."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0

    def wire(self, *, sized: bool = True) -> bytes:
        """The answer, byte for byte; `sized`: with its Content-Length."""
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "Status"
        headers = {**({"Content-Length": str(len(self.body))} if sized else {}), **self.headers}
        lines = [f"HTTP/1.1 {self.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self.body


@dataclass(frozen=True, slots=True)
class Chunks:
    """A whole answer (`status`, `headers`) in chunks, the `pieces`, which does not say how long it is. `gate`: the last
    chunk leaves when it is set."""

    pieces: tuple[bytes, ...]
    gate: threading.Event | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200

    def head(self) -> bytes:
        """What comes before the first chunk."""
        return Reply(self.status, b"", {"Transfer-Encoding": "chunked", **self.headers}).wire(sized=False)

    def wire(self) -> bytes:
        """The answer, byte for byte."""
        return self.head() + b"".join(map(_chunk, self.pieces)) + _chunk(b"")


@dataclass(frozen=True, slots=True)
class Half:
    """The first `length` bytes of an answer (by default all but the last), then a close."""

    answer: Reply | Chunks
    length: int = -1


@dataclass(frozen=True, slots=True)
class Trickle:
    """A whole answer that comes a byte at a time, with a pause of `every_s` before each. `at_once`: so many bytes come
    without."""

    answer: Reply | Chunks
    every_s: float = 0.05
    at_once: int = 0


@dataclass(frozen=True, slots=True)
class Reset:
    """The request is read, and the connection is reset: the client cannot know what became of it. `body_bytes`: only
    so much of its body is read."""

    body_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """The request is read, and nothing follows until the client hangs up."""


Act: TypeAlias = Reply | Half | Chunks | Trickle | Reset | Stall


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it came: `method`, `target` (path and query), `headers`, `body`. The names of headers are in lower
    case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedServer:
    """Serves in threads of its own, between `with` and its end: each request gets the next step of the `script`."""

    def __init__(self, script: Iterable[Act]) -> None:
        self._script = list(script)
        if not self._script:
            raise ConfigurationError("the script is empty: give the server at least one step, like Reply(200)")
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        """How many were ever made."""
        self._taken = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._listener is not None, "the server is not started: use it as a block"
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT"""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._spawn(self._accept, self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._listener is not None
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _hang_up(connection)
        for thread in self._threads:
            thread.join()

    def _spawn(self, work: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            with self._lock:
                if self._stopping.is_set():
                    connection.close()
                    return
                self._open.add(connection)
                self.connections += 1
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                while (head := _head(stream)) is not None:
                    act = self._take()
                    body = _body(stream, head[2], act.body_bytes if isinstance(act, Reset) else None)
                    with self._lock:
                        self.requests.append(ReceivedRequest(*head, body))
                    if not self._act(connection, act):
                        return
        except (OSError, EOFError):  # the client is gone, or the server stops
            pass
        finally:
            with self._lock:
                self._open.discard(connection)

    def _take(self) -> Act:
        with self._lock:
            self._taken += 1
            return self._script[min(self._taken, len(self._script)) - 1]

    def _act(self, connection: socket.socket, act: Act) -> bool:
        """Do it; True: the connection lives on."""
        match act:
            case Reply():
                if act.after_s:
                    self._stopping.wait(act.after_s)
                connection.sendall(act.wire())
                return True
            case Half(answer, length):
                connection.sendall(answer.wire()[:length])
            case Chunks():
                self._send_chunks(connection, act)
                return True
            case Trickle():
                self._send_slowly(connection, act)
                return True
            case Reset():
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            case Stall():
                while connection.recv(65_536):
                    pass
        return False

    def _send_chunks(self, connection: socket.socket, act: Chunks) -> None:
        connection.sendall(act.head())
        for left, piece in reversed(list(enumerate(reversed(act.pieces)))):
            while not left and act.gate is not None and not act.gate.wait(0.02):
                if self._stopping.is_set():
                    return
            connection.sendall(_chunk(piece))
        connection.sendall(_chunk(b""))

    def _send_slowly(self, connection: socket.socket, act: Trickle) -> None:
        whole = act.answer.wire()
        connection.sendall(whole[: act.at_once])
        for position in range(act.at_once, len(whole)):
            if self._stopping.wait(act.every_s):
                return
            connection.sendall(whole[position : position + 1])


def _chunk(piece: bytes) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


def _head(stream: BinaryIO) -> tuple[str, str, Mapping[str, str]] | None:
    first = stream.readline().decode("latin-1").split()
    if len(first) != 3:
        return None
    headers: dict[str, str] = {}
    while line := stream.readline().decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return first[0], first[1], headers


def _body(stream: BinaryIO, headers: Mapping[str, str], bytes_max: int | None) -> bytes:
    """The body, or its first bytes. One that breaks off is not a request: EOFError."""
    if bytes_max is not None:
        return stream.read(bytes_max)
    if headers.get("transfer-encoding") != "chunked":
        return _exactly(stream, int(headers.get("content-length", "0")))
    body = b""
    while size := int(stream.readline() or b"0", 16):
        body += _exactly(stream, size)
        stream.readline()
    stream.readline()
    return body


def _exactly(stream: BinaryIO, count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError(f"{len(found)} bytes of {count}")
    return found


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
