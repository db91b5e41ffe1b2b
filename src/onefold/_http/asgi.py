"""ASGI: the adapter around `GuardedRequest`. Reads the body, runs the flows, and holds the answer back until it is
committed.

The first response message is forwarded only after COMMIT: not when the application returns, because frameworks run
background tasks and dependency exits after the body. A client that disconnects does not stop the work; a cancelled
task rolls back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from onefold._http.background import AnswerReplaced, is_only_replaced, run_held_back
from onefold._http.guarded_request import GuardedRequest
from onefold._http.install_checks import READY, Readiness
from onefold._http.reaper import REAPED_ELSEWHERE, Lifespan, Reaping
from onefold._http.request import READS, Request, Response
from onefold._http.request_guard import RequestGuard
from onefold._http.route_policy import Policy, Route
from onefold._http.scope_keys import CONDITION as CONDITION
from onefold._http.scope_keys import SESSIONS
from onefold._http.scope_keys import TRANSACTION as TRANSACTION  # where an application without a framework looks
from onefold._idempotency.retention import REAP_LIMIT, reap
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._kernel.timeouts import within
from onefold.errors import BodyTooLarge, BodyTooSlow, CallerError

if TYPE_CHECKING:
    from onefold._http.status_pages import Pages

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Finds the idempotent route of a request, if it is one.
Resolve: TypeAlias = Callable[[Request], Route | None]

_BODY_EXTENSIONS = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})


class ClientGone(Exception):
    """The client disconnected before its body was complete: nothing was claimed, and no answer is sent."""


class IdempotencyMiddleware:
    """An ASGI application whose idempotent routes happen once."""

    def __init__(
        self,
        app: Application,
        *,
        guard: RequestGuard,
        database: AsyncDatabase[Any],
        resolve: Resolve,
        pages: Pages | None = None,
        ready: Readiness = READY,
        layer_name: str = "",
        reaping: Reaping = REAPED_ELSEWHERE,
    ) -> None:
        self._app = app
        self._guard = guard
        self._database = database
        self._resolve = resolve
        self._pages = pages
        self._ready = ready
        self.layer_name = layer_name
        self._reaping = reaping
        #: Gets what a lifespan leaves for requests, also for those that come from no server.
        self.lives_with: Callable[[dict[str, Any]], None] | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        guard = self._guard
        scope[SESSIONS] = guard.sessions
        if scope["type"] != "http":
            return await (self._live if scope["type"] == "lifespan" else self._app)(scope, receive, send)
        if not self._ready.passed:
            self._ready.check()
        if not self._reaping.seen:
            self._reaping.report_missing(self.layer_name)
        request = Request(
            scope["method"], scope["path"], scope.get("query_string", b""), tuple(scope["headers"]), scope
        )
        if self._pages is not None and request.method == "GET" and (page := self._pages.find(request)) is not None:
            return await send_whole(await run_async(page(), TaskExecutor(self._database)), send)
        route = self._resolve(request)
        if route is None:
            if guard.conditional.used and request.method in READS:
                from onefold._http.conditional_reads import serve_asgi

                return await serve_asgi(self._app, scope, receive, send, request, guard.log_and_refuse, guard.framework)
            return await self._app(scope, receive, send)
        executor: TaskExecutor[Any] = TaskExecutor(self._database)
        guarded = guard.screen(request, route, executor)
        if isinstance(guarded, Response):
            return await send_whole(guarded, send)
        try:
            body = await self._whole_body(receive, guarded.policy)
        except CallerError as error:
            return await send_whole(guard.refusal(error, request), send)
        except ClientGone:
            return None
        admission = guarded.admit(body) if guard.tracer is None else guarded.admit_traced(body, guard.tracer)
        refusal = await run_async(admission, executor)
        if refusal is not None:
            return await send_whole(refusal, send)
        return await self._run(guarded, scope, _HeldExchange(guarded, body, receive, send), send)

    async def _run(
        self,
        guarded: GuardedRequest[TaskExecutor[Any]],
        scope: MutableMapping[str, Any],
        exchange: _HeldExchange,
        send: Send,
    ) -> None:
        # Bodies that the server would read from disk by itself cannot be held back, nor stored.
        extensions = scope.get("extensions")
        if extensions and not _BODY_EXTENSIONS.isdisjoint(extensions):
            scope["extensions"] = {name: extensions[name] for name in extensions if name not in _BODY_EXTENSIONS}
        with guarded:
            try:
                await self._app(scope, exchange.receive, exchange.send)
            except Exception as error:
                instead = await run_async(guarded.fail(error), guarded.executor)
                if instead is not None:
                    if guarded.trace is not None:
                        guarded.trace.end(instead.status)
                    exchange.settle()
                    await send_whole(instead, send)
                elif not is_only_replaced(error):
                    raise
            cut_short = guarded.stream_error
        if not guarded.over:
            await run_async(guarded.abort("no answer"), guarded.executor)
            if guarded.trace is not None:
                guarded.trace.end()
            if cut_short is not None:  # middleware kept it to itself, and has only the beginning of an answer
                raise cut_short
        if guarded.followed_by and guarded.sent:
            await run_held_back(guarded.followed_by)

    async def _live(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        async def reap_now() -> None:
            flow = reap(self._guard.reaped(), limit=REAP_LIMIT, batches_max=REAP_LIMIT, listener=self._guard.listener)
            await run_async(flow, TaskExecutor(self._database))

        if self.lives_with is not None:
            self.lives_with(scope.setdefault("state", {}))
        lifespan = Lifespan(receive, send, check_ready=self._ready.check, reaping=self._reaping, reap=reap_now)
        try:
            await self._app(scope, lifespan.receive, lifespan.send)
        finally:
            await lifespan.end()

    async def _whole_body(self, receive: Receive, policy: Policy) -> bytes:
        until = time.monotonic() + policy.body_timeout_s
        before, size = bytearray(), 0  # what came in messages of its own; most bodies come in one
        try:
            message = await within(policy.body_timeout_s, receive())
            while True:
                if message["type"] != "http.request":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > policy.body_bytes_max:
                    raise BodyTooLarge(
                        f"The request body has more than {policy.body_bytes_max} bytes, the limit of this route."
                    )
                if not message.get("more_body", False):
                    return bytes(before + part) if before else bytes(part)
                before += part
                message = await within(max(0.0, until - time.monotonic()), receive())
        except TimeoutError as error:
            raise BodyTooSlow(
                f"The request body was not complete after {policy.body_timeout_s} s. Nothing was done."
            ) from error


class _HeldExchange:
    """What the application receives and sends, once its request was let in.

    It receives the body we have read and, where the client can come back for its answer, a disconnect only after that
    is settled. What it sends is held back until it is whole and committed, or too large to be kept.
    """

    def __init__(self, guarded: GuardedRequest[TaskExecutor[Any]], body: bytes, receive: Receive, send: Send) -> None:
        self._guarded = guarded
        self._body: bytes | None = body
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self._waited_for: asyncio.Event | None = None
        self.settled = False
        self._parts: list[bytes] = []
        self._bytes = 0

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self.settled and self._guarded.keyed:
            # A framework that is notified of a disconnect cancels the handler; the work must finish and be stored.
            self._waited_for = self._waited_for or asyncio.Event()
            await self._waited_for.wait()
        return await self._receive()

    def settle(self) -> None:
        self.settled = True
        if self._waited_for is not None:
            self._waited_for.set()

    async def send(self, message: Message) -> None:
        guarded, start, kind = self._guarded, self._start, message["type"]
        if guarded.stream_error is not None and self._is_cut_short(message):
            return
        if self.settled:
            if start is None:  # another answer was sent in its place
                raise AnswerReplaced
            await self._send(message)
        elif kind == "http.response.start":
            self._start = message
            self._parts = []  # none of an answer that was begun and given up
            self._bytes = 0
        elif kind == "http.response.body" and start is not None:
            part = message.get("body", b"")
            more = message.get("more_body", False)
            self._parts.append(part)
            self._bytes += len(part)
            too_large = self._bytes > guarded.policy.response_bytes_max
            if not more or too_large:
                await self._finish(start, whole=not too_large, more=more)
        else:
            await self._send(message)

    def _is_cut_short(self, message: Message) -> bool:
        """Whether this ends half an answer as if it were whole. What failed rises next, or was caught on its way."""
        ends = message["type"] == "http.response.body" and not message.get("more_body", False)
        return ends and self._start is not None and self._start["status"] < 500

    async def _finish(self, start: Message, *, whole: bool, more: bool) -> None:
        headers = tuple([(name.lower(), value) for name, value in start.get("headers", ())])
        guarded, status, body = self._guarded, start["status"], b"".join(self._parts)
        if guarded.condition is not None:
            added = guarded.condition.headers_for(status, headers)
            start, headers = {**start, "headers": [*start.get("headers", ()), *added]}, headers + added
        instead = await run_async(guarded.finish(Response(status, headers, body), whole=whole), guarded.executor)
        self.settle()
        if guarded.trace is not None:
            guarded.trace.end(status if instead is None else instead.status)
        if guarded.quota_slot is not None:  # what follows the answer is not in flight any more
            guarded.leave_quota()
        if instead is not None:
            guarded.sent = 0
            self._start = None
            await send_whole(instead, self._send)
            raise AnswerReplaced
        guarded.sent = status
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(response: Response, send: Send) -> None:
    """Answer with a response of our own."""
    await send({"type": "http.response.start", "status": response.status, "headers": list(response.headers)})
    await send({"type": "http.response.body", "body": response.body})
