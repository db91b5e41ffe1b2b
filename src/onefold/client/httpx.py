"""httpx, and httpx2, which differs from it in its name: transports that retry.

The two are not imported here: a transport brings its own, and whichever it comes from is spoken to.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from onefold._kernel.effects import Flow
from onefold._kernel.prompt import within
from onefold._kernel.runners import run, run_async
from onefold.client.exchange import Exchange
from onefold.client.waiting import AsyncCallLane, CallLane
from onefold.client.wire import is_problem, is_short, not_made_as, problem_type
from onefold.errors import CallNotMade, ConfigurationError
from onefold.policy.outcome import Unanswered

if TYPE_CHECKING:
    import httpx


#: httpx and httpx2 have types of the same names and shapes that are not each other's.
Request: TypeAlias = Any
Response: TypeAlias = Any

#: The parts of a time limit. httpx waits for each of them by itself.
_PHASES = ("connect", "read", "write", "pool")
_NO_LIMITS: Mapping[str, None] = dict.fromkeys(_PHASES)

#: As nearly everybody writes it.
_LENGTH = frozenset({b"content-length", b"Content-Length"})


class RetryingTransport:
    """A transport for `httpx.Client`."""

    def __init__(self, inner: httpx.BaseTransport, vendor: ModuleType, exchange: Exchange, *, owns: bool) -> None:
        _refuse_retries(inner)
        self._inner = inner
        self._vendor = vendor
        self._exchange = exchange
        self._owns = owns

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        wire = _ThreadWire(request, self._inner, self._vendor)
        course = self._exchange.begin(wire, time.monotonic())
        left_s = course.begin_first()
        if left_s is None:
            return self._run(course.run())
        try:
            ended: Any = wire.send(left_s)
        except Exception as error:
            ended = error
        except BaseException:
            course.excuse()
            raise
        else:
            if course.succeeded(ended, time.monotonic()):
                response: httpx.Response = ended
                return response
        return self._run(course.finish(ended))

    def _run(self, rest: Flow[httpx.Response]) -> httpx.Response:
        return run(rest, CallLane(self._exchange.store.threads))

    def close(self) -> None:
        self._inner.close()
        if self._owns:
            self._exchange.store.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)
        if self._owns:
            self._exchange.store.close()


class AsyncRetryingTransport:
    """The same, for `httpx.AsyncClient`."""

    def __init__(self, inner: httpx.AsyncBaseTransport, vendor: ModuleType, exchange: Exchange, *, owns: bool) -> None:
        _refuse_retries(inner)
        self._inner = inner
        self._vendor = vendor
        self._exchange = exchange
        self._owns = owns

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        wire = _TaskWire(request, self._inner, self._vendor)
        course = self._exchange.begin(wire, time.monotonic())
        left_s = course.begin_first()
        if left_s is None:
            return await self._run(course.run())
        try:
            ended: Any = await wire.send(left_s)
        except Exception as error:
            ended = error
        except BaseException:
            course.excuse()
            raise
        else:
            if course.succeeded(ended, time.monotonic()):
                response: httpx.Response = ended
                return response
        return await self._run(course.finish(ended))

    async def _run(self, rest: Flow[httpx.Response]) -> httpx.Response:
        return await run_async(rest, AsyncCallLane(self._exchange.store.tasks))

    async def aclose(self) -> None:
        await self._inner.aclose()
        if self._owns:
            await self._exchange.store.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)
        if self._owns:
            await self._exchange.store.aclose()


class _Wire:
    """One request, as the exchange sees it."""

    __slots__ = ("_inner", "_request", "_vendor", "host", "method", "options")

    def __init__(self, request: Request, inner: Any, vendor: Any) -> None:
        self._request = request
        self._inner = inner
        self._vendor = vendor
        self.method: str = request.method
        self.host: str = request.url.netloc.decode("ascii")
        self.options: dict[str, Any] = request.extensions

    def address(self) -> str:
        return str(self._request.url)

    def header(self, name: str) -> str | None:
        return _found(self._request.headers, name.lower().encode("ascii"))

    def set_header(self, name: str, value: str) -> None:
        self._request.headers[name] = value

    def replayable(self) -> bool:
        stream = self._request.stream
        if isinstance(stream, self._vendor.ByteStream):
            return True
        fields = getattr(stream, "fields", None)  # a multipart body: its files are read again from where they began
        return fields is not None and all(_rereadable(getattr(field, "file", b"")) for field in fields)

    def status(self, response: Response) -> int:
        status: int = response.status_code
        return status

    def answer_header(self, response: Response, name: str) -> str | None:
        return _found(response.headers, name.lower().encode("ascii"))

    def problem(self, response: Response) -> str | None:
        stream = response.stream
        if not is_problem(response.headers.get("content-type")) or not isinstance(stream, self._vendor.ByteStream):
            return None
        try:  # what lies there is as it came: the vendor unpacks what was compressed
            body = self._vendor.Response(200, headers=response.headers, content=b"".join(stream)).content
        except self._vendor.DecodingError:
            return None
        return problem_type(body)

    def unanswered(self, error: Exception) -> Unanswered | None:
        vendor = self._vendor
        if isinstance(error, vendor.ConnectError | vendor.ConnectTimeout):
            return Unanswered(maybe_sent=False)
        # A pool without a free connection, a scheme nobody speaks, a request that is no HTTP: not the host's doing.
        if isinstance(error, vendor.PoolTimeout | vendor.UnsupportedProtocol | vendor.LocalProtocolError):
            return None
        return Unanswered(maybe_sent=True) if isinstance(error, vendor.TransportError) else None

    def not_made(self, message: str) -> CallNotMade:
        error: CallNotMade = not_made_as(self._vendor.ConnectError)(message, request=self._request)
        return error

    def patience_s(self, left_s: float) -> float:
        limit: float | None = (self.options.get("timeout") or {}).get("read")
        return left_s if limit is None or limit > left_s else limit

    def _bound(self, seconds: float) -> None:
        """No part of the attempt may take longer than what is left for all of it."""
        limits: Mapping[str, float | None] = self.options.get("timeout") or _NO_LIMITS
        for limit in limits.values():
            if limit is None or limit > seconds:
                break
        else:
            return
        self.options["timeout"] = {
            phase: seconds if (limit := limits.get(phase)) is None else min(limit, seconds) for phase in _PHASES
        }


class _ThreadWire(_Wire):
    __slots__ = ()

    def body(self) -> bytes:
        return b"".join(self._request.stream)

    def send(self, seconds: float) -> Response:
        until = time.monotonic() + seconds
        self._bound(seconds)
        response: Response = self._inner.handle_request(self._request)
        if _reads_whole(response):
            self._whole(response, until)
        return response

    def discard(self, response: Response) -> None:
        response.stream.close()

    def _whole(self, response: Response, until: float) -> None:
        stream = response.stream
        chunks: list[bytes] = []
        try:
            for chunk in stream:
                if chunks and time.monotonic() > until:  # every read was in time, all of them together were not
                    raise self._vendor.ReadTimeout("the answer is not whole in time", request=self._request)
                chunks.append(chunk)
        finally:
            stream.close()
        response.stream = self._vendor.ByteStream(b"".join(chunks))


class _TaskWire(_Wire):
    __slots__ = ()

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self._request.stream])

    async def send(self, seconds: float) -> Response:
        self._bound(seconds)
        try:
            return await within(seconds, self._attempt())
        except TimeoutError as error:
            raise self._vendor.ReadTimeout(f"no answer within {seconds:g} s", request=self._request) from error

    async def discard(self, response: Response) -> None:
        await response.stream.aclose()

    async def _attempt(self) -> Response:
        response: Response = await self._inner.handle_async_request(self._request)
        if _reads_whole(response):
            await self._whole(response)
        return response

    async def _whole(self, response: Response) -> None:
        stream = response.stream
        try:
            raw = b"".join([chunk async for chunk in stream])
        finally:
            await stream.aclose()
        response.stream = self._vendor.ByteStream(raw)


def vendor_of(inner: object) -> ModuleType | None:
    """httpx or httpx2, whichever a transport is made for; None if it is no transport of theirs."""
    for name in ("httpx", "httpx2"):
        vendor = sys.modules.get(name)
        if vendor is not None and isinstance(inner, vendor.BaseTransport | vendor.AsyncBaseTransport):
            return vendor
    return None


def _found(headers: Any, name: bytes) -> str | None:
    """The header of this name, which is in lower case. Not `headers.get`: it finds out first how all of them are
    encoded, and takes longer than all that is decided about a call."""
    for found, value in headers.raw:
        if found.lower() == name:
            text: str = value.decode("latin-1")
            return text
    return None


def _reads_whole(response: Response) -> bool:
    for name, value in response.headers.raw:
        if name in _LENGTH:
            return is_short(value)
    length = _found(response.headers, b"content-length")
    return is_problem(_found(response.headers, b"content-type")) if length is None else is_short(length)


def _refuse_retries(inner: object) -> None:
    """httpx's own `retries` connect again without asking the budget, the breaker or the deadline."""
    if retries := getattr(getattr(inner, "_pool", None), "_retries", 0):
        raise ConfigurationError(
            f"the transport connects again by itself (retries={retries}), and attempts would multiply: give it none"
        )


def _rereadable(file: object) -> bool:
    if isinstance(file, bytes | str):
        return True
    seekable = getattr(file, "seekable", None)
    return bool(seekable is not None and seekable())
