"""WSGI: the adapter of the shedder for threads. A request that waits holds its thread: the docs say what that
limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Event
from typing import Any, TypeVar

from onefold._http.guarded_request import GuardedRequest
from onefold._http.problems import problem
from onefold._http.request import Response
from onefold._http.scope_keys import GUARDED
from onefold._http.shedding.admission_controller import EVENT_STREAM, AdmissionController, AdmissionSlot
from onefold._http.shedding.admission_queue import Ticket, Verdict
from onefold._http.shedding.settings import Shedding
from onefold._http.wsgi import Application, Environ, ExcInfo, StartResponse, request_of, send_whole
from onefold._kernel import deadlines
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.errors import CallerError

T = TypeVar("T")


class SheddingMiddleware:
    """A WSGI application that does not take in more than it can do."""

    def __init__(self, app: Application, controller: AdmissionController, settings: Shedding) -> None:
        self._app = app
        self._controller = controller
        header = settings.deadline_header
        self._header = None if header is None else "HTTP_" + header.upper().replace("-", "_")
        self._exempts = bool(settings.exempt)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        controller = self._controller
        if self._exempts and controller.exempts(request_of(environ).path):
            return self._app(environ, start_response)
        now = controller.clock()
        granted_s = None if self._header is None else deadlines.parse_s(environ.get(self._header))
        deadline = deadlines.current() if granted_s is None else deadlines.shorten(now + granted_s)
        try:
            priority = 0 if controller.priority is None else controller.rank(request_of(environ))
        except CallerError as error:  # what the priority is read from cannot be used
            return send_whole(problem(error), start_response)
        ticket = controller.queue.arrive(now, priority=priority, deadline=deadline)
        if ticket is not None:
            verdict, aside = self._verdict(ticket, environ.get(GUARDED))
            controller.report_wait(ticket)
            if verdict != "enter":
                return send_whole(controller.refusal(verdict, priority), start_response)
            slot = controller.new_slot(controller.clock(), deadline)
            if aside is not None and (instead := _step_back(slot, aside)) is not None:
                return send_whole(instead, start_response)
        else:
            slot = controller.new_slot(now, deadline)
        return self._run(slot, deadline, environ, start_response)

    def _verdict(
        self, ticket: Ticket, guarded: GuardedRequest[ThreadExecutor[Any]] | None
    ) -> tuple[Verdict, GuardedRequest[ThreadExecutor[Any]] | None]:
        """Wait for it. Interrupted: the ticket is given up, and its slot, if it has one. The claim of a request does
        not wait with it: what is returned beside the verdict has to be claimed again."""
        aside = None
        controller = self._controller
        if ticket.instead_of is not None:
            ticket.instead_of.wake()
        woken = Event()
        ticket.wake = woken.set
        try:
            if ticket.verdict is None and guarded is not None and run(guarded.step_aside(), guarded.executor):
                aside = guarded
            # Read after `wake` is set: a verdict that came before that is in the ticket.
            while ticket.verdict is None:
                woken.wait(max(0.0, ticket.until - controller.clock()))
                controller.queue.time_out(ticket, controller.clock())
        except BaseException:
            controller.wake(controller.queue.give_up(ticket, controller.clock()))
            raise
        return ticket.verdict, aside

    def _run(
        self, slot: AdmissionSlot, deadline: float | None, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        def start(
            status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
        ) -> Callable[[bytes], object]:
            slot.status = int(status[:3])
            if any(name.lower() == "content-type" and value.startswith(EVENT_STREAM) for name, value in headers):
                slot.leave()
            return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

        answer = _WatchedResponse(slot, deadline)
        chunks = answer.step(lambda: self._app(environ, start))
        if isinstance(chunks, list | tuple):  # servers read its length
            answer.lift()
            slot.leave()
            return chunks
        answer.begin(chunks)
        return answer


def _step_back(slot: AdmissionSlot, guarded: GuardedRequest[ThreadExecutor[Any]]) -> Response | None:
    """The request runs (None), or its slot is free again: it was done meanwhile."""
    try:
        instead = run(guarded.step_back(), guarded.executor)
    except BaseException as error:
        slot.fail(error)
        raise
    if instead is not None:
        slot.give_up()
    return instead


class _WatchedResponse:
    """What the application sends, and when its slot is free. The handler may be a generator, and run only now."""

    def __init__(self, slot: AdmissionSlot, deadline: float | None) -> None:
        self._slot = slot
        self._granted = None if deadline is None else deadlines.Granted(deadline)
        self._whole: Iterable[bytes] = ()
        self._chunks: Iterator[bytes] = iter(())

    def begin(self, chunks: Iterable[bytes]) -> None:
        self._whole = chunks
        self._chunks = self.step(lambda: iter(chunks))

    def __iter__(self) -> _WatchedResponse:
        return self

    def __next__(self) -> bytes:
        try:
            chunk = self.step(self._chunks.__next__)
        except StopIteration:
            self.lift()
            self._slot.leave()
            raise
        if chunk:
            self._slot.leave()
        return chunk

    def close(self) -> None:
        self.lift()
        try:
            close = getattr(self._whole, "close", None)
            if close is not None:
                self.step(close)
        finally:
            self._slot.leave()

    def step(self, work: Callable[[], T]) -> T:
        """A part of the application's work, with its deadline in place."""
        token = None if self._granted is None else deadlines.begin(self._granted)
        try:
            return work()
        except StopIteration:
            raise
        except BaseException as error:
            self._slot.fail(error)
            raise
        finally:
            if token is not None:
                deadlines.end(token)

    def lift(self) -> None:
        """The response is whole: no client waits for what comes after it."""
        if self._granted is not None:
            self._granted.lift()
