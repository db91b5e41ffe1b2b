"""WSGI: the rim of the shedder for threads. A request that waits holds its thread: the docs say what that limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Event
from typing import TypeVar

from onefold._kernel import deadlines
from onefold.http.shedding.door import Ticket, Verdict
from onefold.http.shedding.reception import EVENT_STREAM, Place, Reception
from onefold.http.shedding.settings import Shedding
from onefold.http.wsgi import Application, Environ, ExcInfo, StartResponse, request_of, send_whole

T = TypeVar("T")


class SheddingMiddleware:
    """A WSGI application that does not take in more than it can do."""

    def __init__(self, app: Application, reception: Reception, settings: Shedding) -> None:
        self._app = app
        self._reception = reception
        header = settings.deadline_header
        self._header = None if header is None else "HTTP_" + header.upper().replace("-", "_")
        self._exempts = bool(settings.exempt)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        reception = self._reception
        if self._exempts and reception.exempts(request_of(environ).path):
            return self._app(environ, start_response)
        now = reception.clock()
        granted_s = None if self._header is None else deadlines.parse_s(environ.get(self._header))
        deadline = deadlines.current() if granted_s is None else deadlines.shortened(now + granted_s)
        priority = 0 if reception.priority is None else reception.rank(request_of(environ))
        ticket = reception.door.arrive(now, priority=priority, deadline=deadline)
        if ticket is not None:
            verdict = self._verdict(ticket)
            if verdict != "enter":
                return send_whole(reception.refusal(verdict, priority), start_response)
            now = reception.clock()
        return self._run(reception.place(now, deadline), deadline, environ, start_response)

    def _verdict(self, ticket: Ticket) -> Verdict:
        """Wait for it. Interrupted: the ticket is given up, and its place, if it has one."""
        reception = self._reception
        if ticket.instead_of is not None:
            ticket.instead_of.wake()
        told = Event()
        ticket.wake = told.set
        try:
            # Looked at after `wake` is set: who told before that has left the verdict here.
            while ticket.verdict is None:
                told.wait(max(0.0, ticket.until - reception.clock()))
                reception.door.time_out(ticket, reception.clock())
        except BaseException:
            reception.wake(reception.door.give_up(ticket, reception.clock()))
            raise
        return ticket.verdict

    def _run(
        self, place: Place, deadline: float | None, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        def started(
            status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
        ) -> Callable[[bytes], object]:
            place.status = int(status[:3])
            if any(name.lower() == "content-type" and value.startswith(EVENT_STREAM) for name, value in headers):
                place.leave()
            return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

        answer = _Answer(place, deadline)
        chunks = answer.step(lambda: self._app(environ, started))
        if isinstance(chunks, list | tuple):  # servers read its length
            place.leave()
            return chunks
        answer.begin(chunks)
        return answer


class _Answer:
    """What the application sends, and when its place is free. The handler may be a generator, and run only now."""

    def __init__(self, place: Place, deadline: float | None) -> None:
        self._place = place
        self._deadline = deadline
        self._whole: Iterable[bytes] = ()
        self._chunks: Iterator[bytes] = iter(())

    def begin(self, chunks: Iterable[bytes]) -> None:
        self._whole = chunks
        self._chunks = self.step(lambda: iter(chunks))

    def __iter__(self) -> _Answer:
        return self

    def __next__(self) -> bytes:
        try:
            chunk = self.step(self._chunks.__next__)
        except StopIteration:
            self._place.leave()
            raise
        if chunk:
            self._place.leave()
        return chunk

    def close(self) -> None:
        try:
            close = getattr(self._whole, "close", None)
            if close is not None:
                self.step(close)
        finally:
            self._place.leave()

    def step(self, work: Callable[[], T]) -> T:
        """A part of the application's work, with its deadline in place."""
        token = None if self._deadline is None else deadlines.begin(self._deadline)
        try:
            return work()
        except StopIteration:
            raise
        except BaseException as error:
            self._place.fail(error)
            raise
        finally:
            if token is not None:
                deadlines.end(token)
