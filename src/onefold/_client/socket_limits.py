"""On threads: no read and no write of an attempt lasts longer than what is left of the attempt.

Theory of operation. A client for threads bounds every read by itself, and a server that sends a byte now and then is in
time with each of them. So the sockets know when the attempt that their thread is in must be over, and a read gets
what is left until then, or the client's own limit where that is shorter. Outside of an attempt (the caller reads a long
answer while it arrives) only the client's own limits hold.

Where it is hooked in: for httpx the network backend of its pool, for requests the class of a pool's connections. Both
are interfaces that httpcore and urllib3 publish for this. A transport that shows neither keeps the limit of each read.
What is not bounded: looking up a name, and every further address of a host that has several, which has a limit of its
own."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import cache
from math import inf
from typing import Any, Final

_until: ContextVar[float] = ContextVar("onefold.attempt_until", default=inf)

#: This thread's attempt must be over at this moment of the monotonic clock; `end` takes what this gave.
begin: Callable[[float], Token[float]] = _until.set
end: Callable[[Token[float]], None] = _until.reset

#: A long body is written in pieces of this size, each with what is left then.
_PIECE_BYTES: Final = 65_536


def left_s(limit: float | None, late: Callable[[str], Exception] = TimeoutError) -> float | None:
    """The limit of the next read or write of this thread; None: there is none. Raises `late` where nothing is left."""
    until = _until.get()
    if until == inf:
        return limit
    left = until - time.monotonic()
    if left <= 0:
        raise late("the attempt is not over in time")
    return left if limit is None or limit > left else limit


# --- httpx, over httpcore ------------------------------------------------------------------------------------------


def limit_transport(transport: Any) -> None:
    """Let the connections that a transport of httpx or httpx2 opens from now on know the limits of attempts."""
    pool: Any = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    core: Any = sys.modules.get(type(pool).__module__.partition(".")[0])
    if core is None or not isinstance(backend, getattr(core, "NetworkBackend", ())):
        return
    if getattr(pool, "_http2", False):
        return  # calls share a connection, and the time-out of one would break it off for all
    kind = _backend_class(core)
    if not isinstance(backend, kind):
        pool._network_backend = kind(backend)


@cache
def _backend_class(core: Any) -> Any:
    """The classes for httpcore or httpcore2: each asks for its own."""
    stream = type("Stream", (_LimitedStream, core.NetworkStream), {"core": core})
    return type("Backend", (_LimitedBackend, core.NetworkBackend), {"core": core, "make_stream": stream})


class _LimitedStream:
    core: Any
    """httpcore or httpcore2."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.get_extra_info = stream.get_extra_info  # httpcore asks twice for each request

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return self._stream.read(max_bytes, left_s(timeout, self.core.ReadTimeout))

    def write(self, buffer: Any, timeout: float | None = None) -> None:
        if 0 < len(buffer) <= _PIECE_BYTES:
            self._stream.write(buffer, left_s(timeout, self.core.WriteTimeout))
            return
        for start in range(0, len(buffer), _PIECE_BYTES):
            self._stream.write(buffer[start : start + _PIECE_BYTES], left_s(timeout, self.core.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        limit_s = left_s(timeout, self.core.ConnectTimeout)
        return type(self)(self._stream.start_tls(ssl_context, server_hostname, limit_s))


class _LimitedBackend:
    core: Any
    """httpcore or httpcore2."""
    make_stream: Any

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **more: Any) -> Any:
        limit_s = left_s(timeout, self.core.ConnectTimeout)
        return self.make_stream(self._backend.connect_tcp(host, port, timeout=limit_s, **more))

    def connect_unix_socket(self, path: str, timeout: float | None = None, **more: Any) -> Any:
        limit_s = left_s(timeout, self.core.ConnectTimeout)
        return self.make_stream(self._backend.connect_unix_socket(path, timeout=limit_s, **more))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


# --- requests, over urllib3 ----------------------------------------------------------------------------------------


def limit_pool(pool: Any) -> None:
    """Limit the sockets of a connection pool of urllib3."""
    kind = getattr(pool, "ConnectionCls", None)
    if isinstance(kind, type) and hasattr(kind, "response_class") and not hasattr(kind, "knows_attempts"):
        pool.ConnectionCls = _connection_class(kind)
        # Where the pool blocks, it would wait for a connection without a limit. It has no public name for this.
        if (take := getattr(pool, "_get_conn", None)) is not None:
            pool._get_conn = lambda timeout=None: take(left_s(timeout))


@cache
def _connection_class(kind: Any) -> Any:
    response = type("Response", (_LimitedResponse, kind.response_class), {"kind": kind.response_class})
    return type("Connection", (_LimitedConnection, kind), {"kind": kind, "response_class": response})


class _LimitedConnection:
    kind: Any
    """The class that the pool has had."""
    knows_attempts = True
    timeout: Any
    sock: Any

    def connect(self) -> None:
        self.timeout = left_s(self.timeout)
        self.kind.connect(self)

    def send(self, data: Any) -> None:
        if self.sock is not None:
            self.sock.settimeout(left_s(self.timeout))
        self.kind.send(self, data)


class _LimitedResponse:
    kind: Any
    """The class that the connection has had."""
    fp: Any

    def __init__(self, sock: Any, *args: Any, **more: Any) -> None:
        self.kind.__init__(self, sock, *args, **more)
        if hasattr(sock, "gettimeout"):
            self.fp = io.BufferedReader(_Reads(self.fp.detach(), sock))


class _Reads(io.RawIOBase):
    """What arrives on a socket."""

    def __init__(self, raw: Any, sock: Any) -> None:
        self._raw = raw
        self._sock = sock

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        number: int = self._raw.fileno()
        return number

    def readinto(self, buffer: Any) -> int | None:
        own_s = self._sock.gettimeout()
        limit_s = left_s(own_s)
        if limit_s == own_s:
            count: int | None = self._raw.readinto(buffer)
            return count
        self._sock.settimeout(limit_s)
        try:
            found: int | None = self._raw.readinto(buffer)
            return found
        finally:
            with suppress(OSError):  # closed meanwhile
                self._sock.settimeout(own_s)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
