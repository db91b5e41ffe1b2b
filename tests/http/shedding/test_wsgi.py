"""The shedder around WSGI applications, with real threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flask
import pytest

from onefold import Request
from onefold._http.shedding.admission_controller import AdmissionController
from onefold._http.shedding.wsgi import SheddingMiddleware
from onefold._http.wsgi import Environ, StartResponse
from onefold._kernel import deadlines
from onefold._policy.limiter import LimiterConfig
from onefold.shedding import Shedding, shed_wsgi
from onefold.telemetry import Event, Shed
from tests.http.shedding.stages import Clock, Noted, ThreadWorks, ask_thread, asking_threads, turned_away, until
from tests.support.patience import PATIENCE_S

ONE = Shedding(limit=1)


def level_of(request: Request) -> int:
    return int(request.header("x-level") or 0)


def watched(app: Any, settings: Shedding = ONE, **how: Any) -> tuple[SheddingMiddleware, AdmissionController]:
    controller = AdmissionController(settings, **how)
    return SheddingMiddleware(app, controller, settings), controller


@pytest.mark.parametrize("late", [False, True])
def test_no_more_threads_run_than_the_limit_allows_and_all_are_served(late: bool) -> None:
    works = ThreadWorks(late=late)
    app, controller = watched(works, Shedding(limit=3, wait_most_s=60))
    crowd = asking_threads(app, *(f"/{number}" for number in range(30)))
    for _ in range(30):
        path = works.arrival()
        assert works.running <= 3
        works.let_go(path)
    assert {future.result(PATIENCE_S).status for future in crowd} == {200}
    assert works.peak == 3
    until(lambda: controller.queue.running == 0)


def test_threads_that_race_freely_leave_nothing_behind() -> None:
    works = ThreadWorks()
    works.let_go(*(f"/{number % 7}" for number in range(7)))
    app, controller = watched(works, Shedding(limit=2, queue_most=4, priority=level_of))
    crowd = [
        future
        for number in range(120)
        for future in asking_threads(app, f"/{number % 7}", headers={"x-level": str(number % 3)})
    ]
    statuses = [future.result(PATIENCE_S).status for future in crowd]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) == len(works.ran)
    assert works.peak <= 2
    assert (controller.queue.running, controller.queue.waiting) == (0, 0)


def test_the_queue_is_bounded_the_most_important_enter_first_and_the_displaced_are_told() -> None:
    works, told = ThreadWorks(), list[Event]()
    app, controller = watched(works, Shedding(limit=1, queue_most=2, priority=level_of), listener=told.append)
    [running] = asking_threads(app, "/running")
    works.arrival()
    [low] = asking_threads(app, "/low", headers={"x-level": "-1"})
    until(lambda: controller.queue.waiting == 1)
    [normal] = asking_threads(app, "/normal")
    until(lambda: controller.queue.waiting == 2)
    [high] = asking_threads(app, "/high", headers={"x-level": "1"})
    displaced = low.result(PATIENCE_S)
    assert (displaced.status, displaced.problem) == (503, "overloaded")
    assert 1 <= displaced.retry_after_s <= 5
    refused = ask_thread(app, "/refused", {"x-level": "-1"})
    assert (refused.status, refused.problem) == (503, "overloaded")
    works.let_go("/running", "/high", "/normal")
    assert [future.result(PATIENCE_S).status for future in (running, high, normal)] == [200] * 3
    assert works.ran == ["/running", "/high", "/normal"]
    assert turned_away(told) == [Shed("displaced", -1), Shed("queue full", -1)]


def test_exempt_paths_pass_however_full_it_is() -> None:
    works = ThreadWorks()
    app, _ = watched(works, Shedding(limit=1, queue_most=0, exempt=["/health"]))
    [running] = asking_threads(app, "/running")
    works.arrival()
    works.let_go("/health", "/running")
    assert ask_thread(app, "/health").status == 200
    assert running.result(PATIENCE_S).status == 200


# Places are given back, exactly once


class Broken(Exception):
    pass


def breaks(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    raise Broken


def breaks_in_its_body(environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
    start_response("200 OK", [])
    yield b""
    raise Broken


class BreaksWhenClosed:
    def __init__(self, environ: Environ, start_response: StartResponse) -> None:
        start_response("200 OK", [])

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"done"])

    def close(self) -> None:
        raise Broken


@pytest.mark.parametrize("broken", [breaks, breaks_in_its_body, BreaksWhenClosed])
def test_a_handler_that_raises_gives_its_place_back_once(broken: Callable[..., Iterable[bytes]]) -> None:
    app, controller = watched(broken, Shedding(limit=2))
    for _ in range(5):
        with pytest.raises(Broken):
            ask_thread(app, "/")
        assert controller.queue.running == 0


def test_an_answer_that_is_closed_unread_gives_its_place_back() -> None:
    app, controller = watched(ThreadWorks(late=True))
    answer: Any = app({"REQUEST_METHOD": "GET", "PATH_INFO": "/"}, lambda *given: lambda data: None)
    assert controller.queue.running == 1
    answer.close()
    assert controller.queue.running == 0


def test_a_thread_that_is_interrupted_in_the_queue_leaves_it() -> None:
    works, interrupts = ThreadWorks(), [KeyboardInterrupt]

    def clock() -> float:
        if controller.queue.waiting and interrupts:
            raise interrupts.pop()
        return time.monotonic()

    app, controller = watched(works, ONE, clock=clock)
    [running] = asking_threads(app, "/running")
    works.arrival()
    with pytest.raises(KeyboardInterrupt):
        ask_thread(app, "/interrupted")
    assert (controller.queue.running, controller.queue.waiting) == (1, 0)
    works.let_go("/running")
    assert running.result(PATIENCE_S).status == 200


def test_a_stream_keeps_its_place_until_its_first_byte_and_an_event_stream_until_its_head() -> None:
    def stream(environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", environ["PATH_INFO"][1:])])
        yield b""
        yield b"first"
        yield b"second"

    clock, law = Clock(), Noted()
    terms = LimiterConfig(initial=1, least=1, most=1, gather_s=0.001, calls_least=1)
    app, controller = watched(stream, Shedding(limit=terms, law=lambda: law), clock=clock)
    for kind, held in (("text/csv", [True, False, False]), ("text/event-stream", [False, False, False])):
        found = []
        chunks = app({"REQUEST_METHOD": "GET", "PATH_INFO": f"/{kind}"}, lambda *given: lambda data: None)
        for _ in chunks:
            found.append(controller.queue.running == 1)
            clock.now += 10
        assert found == held
        chunks.close()  # type: ignore[attr-defined]
    assert law.samples[0].slowest_s == 10.0


def test_an_answer_whose_length_servers_read_stays_a_list() -> None:
    works = ThreadWorks()
    works.let_go("/x")
    assert works({"PATH_INFO": "/x"}, lambda *given: lambda data: None) == [b"done"]
    app = shed_wsgi(works, ONE)
    assert app({"REQUEST_METHOD": "GET", "PATH_INFO": "/x"}, lambda *given: lambda data: None) == [b"done"]


# Deadlines


def test_work_that_is_too_late_is_not_done() -> None:
    works, told = ThreadWorks(), list[Event]()
    app, _ = watched(works, ONE, listener=told.append)
    expired = ask_thread(app, "/x", {"request-timeout-ms": "0"})
    assert (expired.status, expired.problem) == (504, "deadline-passed")
    [running] = asking_threads(app, "/running")
    works.arrival()
    assert ask_thread(app, "/x", {"request-timeout-ms": "30"}).status == 504
    works.let_go("/running")
    assert running.result(PATIENCE_S).status == 200
    assert works.ran == ["/running"]
    assert turned_away(told) == [Shed("deadline", 0)] * 2


def test_nobody_waits_for_ever_behind_handlers_that_hang() -> None:
    works, told = ThreadWorks(), list[Event]()
    app, _ = watched(works, Shedding(limit=1, wait_most_s=0.03), listener=told.append)
    [running] = asking_threads(app, "/running")
    works.arrival()
    assert ask_thread(app, "/late").problem == "overloaded"
    assert turned_away(told) == [Shed("waited too long", 0)]
    works.let_go("/running")
    running.result(PATIENCE_S)


@pytest.mark.parametrize("late", [False, True])
def test_the_handler_finds_the_deadline_also_when_it_is_a_generator(late: bool) -> None:
    works = ThreadWorks(late=late)
    works.let_go("/x")
    app = shed_wsgi(works, ONE)
    for value in ("2000", "soon"):
        assert ask_thread(app, "/x", {"request-timeout-ms": value}).status == 200
    [at, ignored] = works.deadlines
    assert at is not None
    assert time.monotonic() < at <= time.monotonic() + 2
    assert ignored is None
    assert deadlines.current() is None


def test_a_flask_view_finds_the_deadline() -> None:
    app = flask.Flask(__name__)
    found: list[float | None] = []

    @app.get("/x")
    def view() -> str:
        found.append(deadlines.left_s())
        return "x"

    setattr(app, "wsgi_app", shed_wsgi(app.wsgi_app, ONE))  # noqa: B010
    assert app.test_client().get("/x", headers={"Request-Timeout-Ms": "60000"}).text == "x"
    assert found[0] is not None
    assert 0 < found[0] <= 60
