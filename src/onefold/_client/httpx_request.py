"""One request of httpx or httpx2, on threads and on asyncio, as the retry loop sees it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache, partial
from inspect import iscoroutinefunction
from typing import Any, TypeAlias

from onefold._client import socket_limits
from onefold._client.hedging import hedge
from onefold._client.outgoing_request import (
    STREAM_ADVICE,
    bytes_to_read,
    is_certificate_error,
    not_made_class,
    unpack,
    unsized_bytes_to_read,
)
from onefold._kernel.timeouts import within
from onefold._policy.attempts import HostHealth
from onefold._policy.outcome import PATIENCE_STATUSES, Unanswered
from onefold.errors import CallNotMade

#: httpx and httpx2 have types of the same names and shapes that are not each other's.
Request: TypeAlias = Any
Response: TypeAlias = Any

#: The parts of a time limit. httpx waits for each of them by itself.
_PHASES = ("connect", "read", "write", "pool")
_NO_LIMITS: Mapping[str, None] = dict.fromkeys(_PHASES)

#: The usual spellings.
_LENGTH = frozenset({b"content-length", b"Content-Length"})


class _SharedRequest:
    """One request, as the retry loop sees it. It is the caller's, who may send it again: an attempt that needs more
    than it has, a key or shorter limits, sends a copy."""

    __slots__ = ("_added", "_inner", "_request", "_unsized", "_vendor", "host", "method", "options", "streams")

    def __init__(self, request: Request, inner: Any, vendor: Any) -> None:
        self._request = request
        #: Headers by their name in lower case.
        self._added: dict[bytes, bytes] = {}
        self._inner = inner
        self._vendor = vendor
        self.method: str = request.method
        self.host: str = request.url.netloc.decode("ascii")
        self.options: dict[str, Any] = request.extensions
        self.streams = False
        #: An answer of unknown length is arriving.
        self._unsized = False

    def address(self) -> str:
        return str(self._request.url)

    def header(self, name: str) -> str | None:
        return _find_header(self._request.headers, name.lower().encode("ascii"))

    def set_header(self, name: str, value: str) -> None:
        self._added[name.lower().encode("ascii")] = value.encode("ascii")

    def can_be_resent(self) -> bool:
        stream = self._request.stream
        if isinstance(stream, self._vendor.ByteStream):
            return True
        fields = getattr(stream, "fields", None)  # a multipart body, which rewinds its files itself
        return fields is not None and all(
            isinstance(file := getattr(field, "file", b""), bytes | str) or _can_be_rewound(file) for field in fields
        )

    def status(self, response: Response) -> int:
        status: int = response.status_code
        return status

    def answer_header(self, response: Response, name: str) -> str | None:
        return _find_header(response.headers, name.lower().encode("ascii"))

    def content(self, response: Response) -> bytes | None:
        stream = response.stream
        if not isinstance(stream, self._vendor.ByteStream):
            return None
        return unpack(b"".join(stream), response.headers.get("content-encoding"))

    def classify_error(self, error: Exception) -> Unanswered | None:
        vendor = self._vendor
        if is_certificate_error(error):
            return None
        if isinstance(error, vendor.ConnectError | vendor.ConnectTimeout):
            return Unanswered(maybe_sent=False)
        # A pool without a free connection, an unsupported scheme, a request that is not HTTP: not the host's doing.
        if isinstance(error, vendor.PoolTimeout | vendor.UnsupportedProtocol | vendor.LocalProtocolError):
            return None
        if not isinstance(error, vendor.TransportError):
            return None
        return Unanswered(maybe_sent=True, timed_out=isinstance(error, vendor.TimeoutException))

    def not_made_error(self, message: str) -> CallNotMade:
        error: CallNotMade = not_made_class(self._vendor.ConnectError)(message, request=self._request)
        return error

    def patience_s(self, left_s: float) -> float:
        limit: float | None = (self.options.get("timeout") or {}).get("read")
        return left_s if limit is None or limit > left_s else limit

    def _bytes_to_read(self, response: Response) -> int:
        """How much of an answer is read within its attempt, at the most; 0 where nothing of it is."""
        for name, value in response.headers.raw:
            if name in _LENGTH:
                return bytes_to_read(value)
        if (length := _find_header(response.headers, b"content-length")) is not None:
            return bytes_to_read(length)
        status: int = response.status_code
        if self.streams and status < 400:
            return 0
        self._unsized = True
        return unsized_bytes_to_read(status, _find_header(response.headers, b"content-type"), self.header("Accept"))

    def _prepare(self, seconds: float) -> Request:
        """The request of an attempt, no part of which may take longer than what is left for all of it."""
        given, added = self._request, self._added
        limits = self._bound_timeouts(seconds)
        if limits is None and not added:
            return given
        headers = given.headers.raw
        if added:
            headers = [(name, value) for name, value in headers if name.lower() not in added] + list(added.items())
        extensions = given.extensions if limits is None else {**given.extensions, "timeout": limits}
        return self._vendor.Request(
            given.method, given.url, headers=headers, stream=given.stream, extensions=extensions
        )

    def _bound_timeouts(self, seconds: float) -> dict[str, float] | None:
        """The time limits of the attempt; None: the request's own are short enough."""
        limits: Mapping[str, float | None] = self.options.get("timeout") or _NO_LIMITS
        for limit in limits.values():
            if limit is None or limit > seconds:
                break
        else:
            return None
        return {phase: seconds if (limit := limits.get(phase)) is None else min(limit, seconds) for phase in _PHASES}


class HttpxRequest(_SharedRequest):
    """On threads, where a body that is a file is rewound before each attempt."""

    __slots__ = ("_file",)

    def __init__(self, request: Request, inner: Any, vendor: Any) -> None:
        super().__init__(request, inner, vendor)
        #: A body that is a file, and where it begins.
        self._file: tuple[Any, int] | None = None

    def can_be_resent(self) -> bool:
        if super().can_be_resent():
            return True
        file: Any = getattr(self._request.stream, "_stream", None)
        if not _can_be_rewound(file):
            return False
        if self._file is None:  # asked again after an attempt, it has been read
            self._file = (file, file.tell())
        return True

    def body(self) -> bytes:
        self._rewind()
        whole = b"".join(self._request.stream)
        self._rewind()
        return whole

    def send(self, seconds: float) -> Response:
        self._unsized = False
        if self._file is not None:
            self._rewind()
        until = time.monotonic() + seconds
        token = socket_limits.begin(until)
        try:
            response: Response = self._inner.handle_request(self._prepare(seconds))
            if limit := self._bytes_to_read(response):
                self._read_whole(response, seconds, until, limit)
        except self._vendor.TimeoutException as error:
            if self._unsized:
                error.add_note(STREAM_ADVICE)
            raise
        finally:
            socket_limits.end(token)
        return response

    def discard(self, response: Response) -> None:
        response.stream.close()

    def _rewind(self) -> None:
        if self._file is not None:
            file, start = self._file
            file.seek(start)

    def _read_whole(self, response: Response, seconds: float, until: float, limit: int) -> None:
        stream = response.stream
        arriving = iter(stream)
        raw = b""
        try:
            for chunk in arriving:
                if raw and time.monotonic() > until:  # every read was in time, all of them together were not
                    raise self._vendor.ReadTimeout(f"no whole answer within {seconds:g} s", request=self._request)
                raw += chunk
                if len(raw) > limit:
                    response.stream = _resumed_stream_class(self._vendor)(raw, arriving, stream)
                    return
        except BaseException:
            stream.close()
            raise
        stream.close()
        response.stream = self._vendor.ByteStream(raw)


class AsyncHttpxRequest(_SharedRequest):
    """On asyncio."""

    __slots__ = ("_hedge",)

    def __init__(self, request: Request, inner: Any, vendor: Any) -> None:
        super().__init__(request, inner, vendor)
        self._hedge: tuple[float, HostHealth] | None = None

    def hedge(self, after_s: float, host: HostHealth) -> None:
        """Let attempts be followed by another beside them, where no answer comes for so long. Not where they would
        read one file or generator for their bodies."""
        if isinstance(self._request.stream, self._vendor.ByteStream):
            self._hedge = after_s, host

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self._request.stream])

    async def send(self, seconds: float) -> Response:
        self._unsized = False
        try:
            if self._hedge is not None:
                attempt = partial(self._attempt, seconds)
                return await within(seconds, hedge(attempt, *self._hedge, _is_good, self.discard))
            return await within(seconds, self._attempt(seconds))
        except TimeoutError as error:
            late = self._vendor.ReadTimeout(f"no whole answer within {seconds:g} s", request=self._request)
            if self._unsized:
                late.add_note(STREAM_ADVICE)
            raise late from error

    async def discard(self, response: Response) -> None:
        await response.stream.aclose()

    async def _attempt(self, seconds: float) -> Response:
        response: Response = await self._inner.handle_async_request(self._prepare(seconds))
        if limit := self._bytes_to_read(response):
            await self._read_whole(response, limit)
        return response

    async def _read_whole(self, response: Response, limit: int) -> None:
        stream = response.stream
        arriving = aiter(stream)
        raw = b""
        try:
            async for chunk in arriving:
                raw += chunk
                if len(raw) > limit:
                    response.stream = _resumed_stream_class(self._vendor)(raw, arriving, stream)
                    return
        except BaseException:
            await stream.aclose()
            raise
        await stream.aclose()
        response.stream = self._vendor.ByteStream(raw)


@cache
def _resumed_stream_class(vendor: Any) -> Any:
    """The class of a stream whose beginning was read already. Clients ask for a stream of their vendor's own class."""
    return type("ResumedStream", (_ResumedStream, vendor.SyncByteStream, vendor.AsyncByteStream), {})


class _ResumedStream:
    def __init__(self, start: bytes, rest: Any, stream: Any) -> None:
        self._start = start
        self._rest = rest
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        yield self._start
        yield from self._rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._start
        async for chunk in self._rest:
            yield chunk

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _find_header(headers: Any, name: bytes) -> str | None:
    """The header of this name, which is in lower case. Not `headers.get`: it finds out first how all of them are
    encoded, and takes longer than all that is decided about a call."""
    for found, value in headers.raw:
        if found.lower() == name:
            text: str = value.decode("latin-1")
            return text
    return None


def _can_be_rewound(file: Any) -> bool:
    """Not a file that is read with `await`, whatever it says of itself: nothing here would wait for it."""
    seekable = getattr(file, "seekable", None)
    return seekable is not None and not iscoroutinefunction(getattr(file, "read", None)) and bool(seekable())


def _is_good(response: Response) -> bool:
    """Not one that asks for another attempt."""
    status: int = response.status_code
    return status < 500 and status not in PATIENCE_STATUSES
