"""aiohttp: a middleware that retries. `ClientSession(middlewares=[onefold.Retrying().middleware])`."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from onefold._client.call_report import attach_to_error, report_of
from onefold._client.http_call_factory import HttpCallFactory
from onefold._client.http_call_runner import make_call_async
from onefold._client.outgoing_request import (
    STREAM_ADVICE,
    bytes_to_read,
    is_certificate_error,
    not_made_class,
    unsized_bytes_to_read,
)
from onefold._kernel.timeouts import within
from onefold._policy.outcome import Unanswered
from onefold._policy.retry import IDEMPOTENT_METHODS
from onefold.errors import CallNotMade, ProgrammerError

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientResponse

    Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]

#: The error that was given up last in this task, and the call of the session it is of: on some errors a session sends
#: an idempotent request once more, through all of its middlewares, which would be four attempts after four attempts.
_given_up: ContextVar[tuple[object, Exception] | None] = ContextVar("onefold.given_up", default=None)

#: Whether this task is in the middle of an attempt of some session's.
_inside: ContextVar[bool] = ContextVar("onefold.inside", default=False)


class RetryingMiddleware:
    """A middleware for `aiohttp.ClientSession`. Put it last: what comes after it is done again with every attempt."""

    def __init__(self, calls: HttpCallFactory) -> None:
        self._calls = calls

    async def __call__(self, request: ClientRequest, handler: Handler) -> ClientResponse:
        import aiohttp

        if _inside.get():
            raise ProgrammerError("the session has two middlewares that retry, and attempts would multiply: keep one")
        timer = getattr(request, "_timer", None)  # the session makes one for each call, and all its requests have it
        last = _given_up.get()
        if last is not None:
            _given_up.set(None)
            if timer is not None and last[0] is timer:
                raise last[1]
        outgoing = AiohttpRequest(request, handler)
        try:
            call = self._calls.begin(outgoing, time.monotonic())
            response: ClientResponse = await make_call_async(call, self._calls.store)
            return response
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            if timer is None:
                raise _parent_error(error) from error  # of their parent's class, which the session does not send again
            if request.method in IDEMPOTENT_METHODS:
                _given_up.set((timer, error))
            raise
        finally:
            outgoing.restore()


class AiohttpRequest:
    """One request, as the retry loop sees it. aiohttp has no place for options: intents come from the context."""

    __slots__ = ("_before", "_handler", "_read", "_request", "_unsized", "host", "method", "options", "streams")

    def __init__(self, request: ClientRequest, handler: Handler) -> None:
        self._request = request
        self._handler = handler
        self._read: bytes | None = None
        #: The headers that were changed, as they came.
        self._before: dict[str, str | None] = {}
        self.method = request.method
        self.host = request.url.host_port_subcomponent or ""
        self.options: Mapping[str, Any] = {}
        self.streams = False
        #: An answer of unknown length is arriving.
        self._unsized = False

    def address(self) -> str:
        return str(self._request.url)

    def header(self, name: str) -> str | None:
        return self._request.headers.get(name)

    def set_header(self, name: str, value: str) -> None:
        self._before.setdefault(name, self._request.headers.get(name))
        self._request.headers[name] = value

    def restore(self) -> None:
        """Leave the request as it came: another middleware may send it again, with another body."""
        for name, value in self._before.items():
            if value is None:
                self._request.headers.pop(name, None)
            else:
                self._request.headers[name] = value

    def can_be_resent(self) -> bool:
        return all(map(_can_be_resent, _parts(self._request.body)))

    async def body(self) -> bytes:
        body = self._request.body
        return body if isinstance(body, bytes) else await body.as_bytes()

    def patience_s(self, left_s: float) -> float:
        return left_s  # the limits of a session are not visible to its middlewares

    async def send(self, seconds: float) -> ClientResponse:
        self._unsized = False
        try:
            return await within(seconds, self._attempt())
        except TimeoutError as error:
            if self._unsized:
                error.add_note(STREAM_ADVICE)
            raise

    def status(self, response: ClientResponse) -> int:
        return response.status

    def answer_header(self, response: ClientResponse, name: str) -> str | None:
        return response.headers.get(name)

    def content(self, response: ClientResponse) -> bytes | None:
        return self._read  # unpacked by the vendor

    async def discard(self, response: ClientResponse) -> None:
        response.close()

    def classify_error(self, error: Exception) -> Unanswered | None:
        import aiohttp

        if is_certificate_error(error):
            return None
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return Unanswered(maybe_sent=False)
        broken = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError, TimeoutError)
        if not isinstance(error, broken):
            return None
        return Unanswered(maybe_sent=True, timed_out=isinstance(error, TimeoutError))

    def not_made_error(self, message: str) -> CallNotMade:
        import aiohttp

        error: CallNotMade = not_made_class(aiohttp.ClientConnectionError)(message)
        return error

    def _bytes_to_read(self, response: ClientResponse) -> int:
        if (length := response.headers.get("Content-Length")) is not None:
            return bytes_to_read(length)
        if self.streams and response.status < 400:
            return 0
        self._unsized = True
        content_type, accepted = response.headers.get("Content-Type"), self._request.headers.get("Accept")
        return unsized_bytes_to_read(response.status, content_type, accepted)

    async def _attempt(self) -> ClientResponse:
        self._read = None
        await self._request.close()  # what still writes the body of the attempt before must not share it with this one
        token = _inside.set(True)
        try:
            response = await self._handler(self._request)
        finally:
            _inside.reset(token)
        if limit := self._bytes_to_read(response):
            try:
                self._read = await _read_whole(response, limit)
            except BaseException:
                response.close()
                raise
        return response


def _parts(body: Any) -> Iterator[Any]:
    """What a body is made of. A form may be a part of another one."""
    from aiohttp import MultipartWriter

    if not isinstance(body, MultipartWriter):
        yield body
        return
    for part, *_ in body:
        yield from _parts(part)


def _can_be_resent(part: Any) -> bool:
    """Bytes can be, and files that can be rewound. Payloads of other kinds read a stream, and report that they are
    consumed only once they are."""
    from aiohttp import payload

    if isinstance(part, payload.IOBasePayload):
        return part._value.seekable() and not getattr(part, "consumed", False)
    return isinstance(part, bytes | payload.BytesPayload)


def _parent_error(error: Exception) -> Exception:
    from aiohttp import ClientConnectionError

    again = ClientConnectionError(f"{type(error).__name__}: {error}")
    if (report := report_of(error)) is not None:
        attach_to_error(report, again, time.monotonic())
    return again


async def _read_whole(response: ClientResponse, limit: int) -> bytes | None:
    """Read a response to its end, and put back what was read: a caller who streams it finds it unread. None where it
    has more than `limit` bytes: the rest of it is left to arrive."""
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.streams import StreamReader

    if response.content.at_eof():
        return b""
    body = b""
    while not response.content.at_eof():
        body += await response.content.readany()
        if len(body) > limit:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                response.content.unread_data(body)
            return None
    loop = asyncio.get_running_loop()
    again = StreamReader(BaseProtocol(loop), limit=max(1, len(body)), loop=loop)
    again.feed_data(body)
    again.feed_eof()
    response.content = again
    return body
