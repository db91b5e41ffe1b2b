"""ASGI: the adapter of the shedder for asyncio. Websockets and lifespan pass untouched.

While a request waits, its client is listened to: one that disconnects is dropped at once, because work whose answer
is not read is what keeps an overload alive. What of the body arrives meanwhile is kept for the application.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, MutableMapping
from typing import Any

from onefold._http.asgi import Application, Message, Receive, Send, send_whole
from onefold._http.guarded_request import GuardedRequest
from onefold._http.problems import problem
from onefold._http.request import Request
from onefold._http.scope_keys import GUARDED
from onefold._http.shedding.admission_controller import EVENT_STREAM, AdmissionController, AdmissionSlot
from onefold._http.shedding.admission_queue import Ticket, Verdict
from onefold._http.shedding.settings import Shedding
from onefold._kernel import deadlines
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.runners import run_async
from onefold.errors import CallerError

_EVENT_STREAM = EVENT_STREAM.encode()
_BODIES = frozenset({"http.response.body", "http.response.pathsend", "http.response.zerocopysend"})

#: So much of a body is read while its request waits; then its client is not listened to any more.
_AHEAD_BYTES_MAX = 64 * 1024


class SheddingMiddleware:
    """An ASGI application that does not take in more than it can do. It serves one event loop at a time."""

    def __init__(self, app: Application, controller: AdmissionController, settings: Shedding) -> None:
        self._app = app
        self._controller = controller
        header = settings.deadline_header
        self._header = None if header is None else header.lower().encode("latin-1")
        self._exempts = bool(settings.exempt)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (self._exempts and self._controller.exempts(_request(scope).path_below_root)):
            return await self._app(scope, receive, send)
        controller = self._controller
        now = controller.clock()
        deadline = deadlines.current()
        if self._header is not None:
            for name, value in scope["headers"]:
                if name == self._header:
                    granted_s = deadlines.parse_s(value)
                    deadline = deadline if granted_s is None else deadlines.shorten(now + granted_s)
                    break
        try:
            priority = 0 if controller.priority is None else controller.rank(_request(scope))
        except CallerError as error:  # a header that the priority is read from is there twice
            return await send_whole(problem(error), send)
        ticket = controller.queue.arrive(now, priority=priority, deadline=deadline)
        if ticket is None:
            return await self._run(_WatchedResponse(controller.new_slot(now, deadline), send, deadline), scope, receive)
        line = _QueuedRequest(controller, ticket, receive, scope.get(GUARDED))
        verdict = await line.verdict()
        controller.report_wait(ticket)
        if verdict == "gone":
            return None
        if verdict != "enter":
            return await send_whole(controller.refusal(verdict, priority), send)
        answer = _WatchedResponse(controller.new_slot(controller.clock(), deadline), send, deadline)
        if line.aside is not None:
            try:
                instead = await run_async(line.aside.step_back(), line.aside.executor)
            except BaseException as error:
                answer.slot.fail(error)
                raise
            if instead is not None:
                answer.slot.give_up()
                return await send_whole(instead, send)
        return await self._run(answer, scope, line)

    async def _run(self, answer: _WatchedResponse, scope: MutableMapping[str, Any], receive: Receive) -> None:
        token = None if answer.granted is None else deadlines.begin(answer.granted)
        try:
            await self._app(scope, receive, answer)
        except BaseException as error:
            answer.slot.fail(error)
            raise
        finally:
            if token is not None:
                deadlines.end(token)
        answer.slot.leave()


class _WatchedResponse:
    """What the application sends, when its slot is free, and when its caller's deadline has no meaning any more."""

    __slots__ = ("_send", "granted", "slot")

    def __init__(self, slot: AdmissionSlot, send: Send, deadline: float | None) -> None:
        self.slot = slot
        self._send = send
        self.granted = None if deadline is None else deadlines.Granted(deadline)

    async def __call__(self, message: Message) -> None:
        await self._send(message)
        slot = self.slot
        if self.granted is not None and message["type"] in _BODIES and not message.get("more_body", False):
            self.granted.lift()  # background tasks come next
        if not slot.held:
            return
        if message["type"] == "http.response.start":
            slot.status = message["status"]
            if _is_event_stream(message.get("headers", ())):
                slot.leave()
        elif message["type"] in _BODIES and (message.get("body") or not message.get("more_body", False)):
            slot.leave()


class _QueuedRequest:
    """A request in the queue; afterwards it is what the application receives."""

    __slots__ = ("_ahead", "_controller", "_gone", "_guarded", "_receive", "_ticket", "aside")

    def __init__(
        self,
        controller: AdmissionController,
        ticket: Ticket,
        receive: Receive,
        guarded: GuardedRequest[TaskExecutor[Any]] | None,
    ) -> None:
        self._controller = controller
        self._ticket = ticket
        self._receive = receive
        self._guarded = guarded
        #: Its claim, which does not wait with it: its connection is needed by those that run.
        self.aside: GuardedRequest[TaskExecutor[Any]] | None = None
        self._ahead: deque[Message] = deque()
        self._gone = False

    async def __call__(self) -> Message:
        return self._ahead.popleft() if self._ahead else await self._receive()

    async def verdict(self) -> Verdict:
        """Wait for it, or for the client to go away. Cancelled: the ticket is given up, and its slot with it."""
        controller, ticket = self._controller, self._ticket
        if ticket.instead_of is not None:
            ticket.instead_of.wake()
        try:
            if ticket.verdict is None and self._guarded is not None:
                stepped = await run_async(self._guarded.step_aside(), self._guarded.executor)
                self.aside = self._guarded if stepped else None
            if ticket.verdict is None:
                await self._wait()
        except BaseException:
            controller.wake(controller.queue.give_up(ticket, controller.clock()))
            raise
        if self._gone:
            controller.wake(controller.queue.give_up(ticket, controller.clock()))
        assert ticket.verdict is not None
        return ticket.verdict

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        self._ticket.wake = wake
        timer = loop.call_later(self._ticket.until - self._controller.clock(), wake)
        listening = loop.create_task(self._listen())
        listening.add_done_callback(lambda _: wake() if self._gone else None)
        try:
            await woken
        finally:
            timer.cancel()
            listening.cancel()
            # Two must not receive at once: the application's turn comes when this one is over.
            await asyncio.wait((listening,))
        if not self._gone:
            # No verdict yet means: woken by the timer, which may ring a little early by our clock.
            self._controller.queue.time_out(self._ticket, max(self._ticket.until, self._controller.clock()))

    async def _listen(self) -> None:
        ahead, more = 0, True
        while ahead <= _AHEAD_BYTES_MAX:
            try:
                message = await self._receive()
            except Exception:  # the connection is broken: the client is gone
                self._gone = True
                return
            self._ahead.append(message)
            if message["type"] != "http.request":
                self._gone = True
                return
            if not more:
                return  # a server that repeats itself: there is nothing to receive
            ahead += len(message.get("body", b""))
            more = message.get("more_body", False)


def _request(scope: MutableMapping[str, Any]) -> Request:
    return Request(scope["method"], scope["path"], scope.get("query_string", b""), tuple(scope["headers"]), scope)


def _is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if len(name) == 12 and name.lower() == b"content-type":
            return value.startswith(_EVENT_STREAM)
    return False
