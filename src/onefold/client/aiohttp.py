"""aiohttp: a middleware that retries. `ClientSession(middlewares=[onefold.Retrying().middleware])`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from onefold._kernel.prompt import within
from onefold._kernel.runners import run_async
from onefold.client.context import current_intent
from onefold.client.exchange import Exchange
from onefold.client.report import attach_to_error, report_of
from onefold.client.waiting import AsyncCallLane
from onefold.client.wire import KEY_HEADER, is_problem, not_made_as, problem_type, reads_whole
from onefold.errors import CallNotMade, ProgrammerError
from onefold.policy.outcome import Unanswered

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientResponse

    Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

#: The intent that was just sent elsewhere, and its key. aiohttp makes a new request of a redirect, without the headers
#: that a middleware has set; it does so in the same task, so the next request finds this.
_moved: ContextVar[tuple[str, str] | None] = ContextVar("onefold.moved", default=None)

#: Whether this task is in the middle of an attempt of some session's.
_inside: ContextVar[bool] = ContextVar("onefold.inside", default=False)


class RetryingMiddleware:
    """A middleware for `aiohttp.ClientSession`. Put it last: what comes after it is done again with every attempt."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __call__(self, request: ClientRequest, handler: Handler) -> ClientResponse:
        import aiohttp

        if _inside.get():
            raise ProgrammerError("the session has two middlewares that retry, and attempts would multiply: keep one")
        wire = _Wire(request, handler)
        intent = current_intent()
        _follow(wire, intent)
        try:
            response = await run_async(self._exchange.run(wire), AsyncCallLane(self._exchange.store.tasks))
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            # On these the session sends an idempotent request once more, through all of its middlewares: after four
            # attempts, four more. Their parent class it hands on.
            raise _handed_on(error) from error
        if intent is not None and response.status in _REDIRECTS:
            _moved.set((intent, wire.header(KEY_HEADER) or ""))
        return response


class _Wire:
    """One request, as the exchange sees it. aiohttp has no place for options: intents come from the context."""

    __slots__ = ("_handler", "_read", "_request", "host", "method", "options")

    def __init__(self, request: ClientRequest, handler: Handler) -> None:
        self._request = request
        self._handler = handler
        self._read: bytes | None = None
        self.method = request.method
        self.host = f"{request.url.host}:{request.url.port}"
        self.options: Mapping[str, Any] = {}

    def address(self) -> str:
        return str(self._request.url)

    def header(self, name: str) -> str | None:
        return self._request.headers.get(name)

    def set_header(self, name: str, value: str) -> None:
        self._request.headers[name] = value

    def replayable(self) -> bool:
        from aiohttp import MultipartWriter, payload

        body: Any = self._request.body
        # A generator's payload would say that it is not consumed until it is, and a file only after it was sent.
        parts = [part for part, *_ in body] if isinstance(body, MultipartWriter) else [body]
        return all(
            not isinstance(part, payload.AsyncIterablePayload)
            and not (isinstance(part, payload.IOBasePayload) and not part._value.seekable())
            and not getattr(part, "consumed", False)
            for part in parts
        )

    async def body(self) -> bytes:
        body = self._request.body
        return body if isinstance(body, bytes) else await body.as_bytes()

    def patience_s(self, left_s: float) -> float:
        return left_s  # the limits of a session are not told to its middlewares

    async def send(self, seconds: float) -> ClientResponse:
        return await within(seconds, self._attempt())

    def status(self, response: ClientResponse) -> int:
        return response.status

    def answer_header(self, response: ClientResponse, name: str) -> str | None:
        return response.headers.get(name)

    def problem(self, response: ClientResponse) -> str | None:
        if not is_problem(response.headers.get("Content-Type")) or self._read is None:
            return None
        return problem_type(self._read)

    async def discard(self, response: ClientResponse) -> None:
        response.close()

    def unanswered(self, error: Exception) -> Unanswered | None:
        import aiohttp

        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return Unanswered(maybe_sent=False)
        broken = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError, TimeoutError)
        return Unanswered(maybe_sent=True) if isinstance(error, broken) else None

    def not_made(self, message: str) -> CallNotMade:
        import aiohttp

        error: CallNotMade = not_made_as(aiohttp.ClientConnectionError)(message)
        return error

    async def _attempt(self) -> ClientResponse:
        self._read = None
        await self._request.close()  # what still writes the body of the attempt before must not share it with this one
        token = _inside.set(True)
        try:
            response = await self._handler(self._request)
        finally:
            _inside.reset(token)
        if reads_whole(response.headers.get("Content-Length"), response.headers.get("Content-Type")):
            try:
                self._read = await _whole(response)
            except BaseException:
                response.close()
                raise
        return response


def _follow(wire: _Wire, intent: str | None) -> None:
    """A redirected request keeps the key of its intent. The exchange looks up whether it is that intent's indeed."""
    moved = _moved.get()
    if moved is None:
        return
    _moved.set(None)
    if moved[0] == intent and wire.header(KEY_HEADER) is None:
        wire.set_header(KEY_HEADER, moved[1])


def _handed_on(error: Exception) -> Exception:
    from aiohttp import ClientConnectionError

    again = ClientConnectionError(f"{type(error).__name__}: {error}")
    if (report := report_of(error)) is not None:
        attach_to_error(report, again)
    return again


async def _whole(response: ClientResponse) -> bytes:
    """Read a response to its end, and put back what was read: who streams it finds it unread."""
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.streams import StreamReader

    if response.content.at_eof():
        return b""
    body = await response.content.read()
    loop = asyncio.get_running_loop()
    again = StreamReader(BaseProtocol(loop), limit=max(1, len(body)), loop=loop)
    again.feed_data(body)
    again.feed_eof()
    response.content = again
    return body
