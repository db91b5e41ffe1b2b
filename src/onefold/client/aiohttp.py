"""aiohttp: a middleware that retries. `ClientSession(middlewares=[onefold.Retrying().middleware])`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from onefold._kernel.prompt import AlarmClock
from onefold._kernel.runners import run_async
from onefold.client.exchange import Exchange, not_made_as, problem_type, reads_whole
from onefold.client.waiting import AsyncCallLane
from onefold.errors import CallNotMade
from onefold.policy.outcome import Unanswered

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientResponse

    Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]


class RetryingMiddleware:
    """A middleware for `aiohttp.ClientSession`. Put it last: what comes after it is done again with every attempt."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._clock = AlarmClock()

    async def __call__(self, request: ClientRequest, handler: Handler) -> ClientResponse:
        wire = _Wire(request, handler, self._clock)
        return await run_async(self._exchange.run(wire), AsyncCallLane(self._exchange.store.tasks))


class _Wire:
    """One request, as the exchange sees it. aiohttp has no place for options: intents come from the context."""

    __slots__ = ("_clock", "_handler", "_request", "host", "method")

    def __init__(self, request: ClientRequest, handler: Handler, clock: AlarmClock) -> None:
        self._request = request
        self._handler = handler
        self._clock = clock
        self.method = request.method
        self.host = f"{request.url.host}:{request.url.port}"

    def address(self) -> str:
        return str(self._request.url)

    def option(self, _: str) -> None:
        return None

    def header(self, name: str) -> str | None:
        return self._request.headers.get(name)

    def set_header(self, name: str, value: str) -> None:
        self._request.headers[name] = value

    def replayable(self) -> bool:
        from aiohttp import payload

        body: Any = self._request.body
        # A generator's payload would say that it is not consumed until it is, and a file only after it was sent.
        if isinstance(body, payload.AsyncIterablePayload):
            return False
        if isinstance(body, payload.IOBasePayload):
            return bool(body._value.seekable())
        return not getattr(body, "consumed", False)

    async def body(self) -> bytes:
        body = self._request.body
        return body if isinstance(body, bytes) else await body.as_bytes()

    async def send(self, seconds: float) -> ClientResponse:
        return await self._clock.within(seconds, self._attempt())

    def status(self, response: ClientResponse) -> int:
        return response.status

    def answer_header(self, response: ClientResponse, name: str) -> str | None:
        return response.headers.get(name)

    async def problem(self, response: ClientResponse) -> str | None:
        return problem_type(response.headers.get("Content-Type"), await _whole(response))

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
        response = await self._handler(self._request)
        if reads_whole(response.headers.get("Content-Length")):
            try:
                await _whole(response)
            except BaseException:
                response.close()
                raise
        return response


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
