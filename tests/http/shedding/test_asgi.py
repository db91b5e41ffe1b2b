"""The shedder around ASGI applications: limits, priorities, clients that go away, streams."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from onefold import Request
from onefold._http.asgi import Receive, Send
from onefold._http.shedding.admission_controller import AdmissionController
from onefold._http.shedding.asgi import SheddingMiddleware
from onefold._policy.limiter import LimiterConfig, Sample
from onefold.errors import ProgrammerError
from onefold.shedding import Shedding, shed_asgi
from onefold.telemetry import Event, LimitMoved, Shed
from tests.http.shedding.stages import Caller, Clock, Noted, Works, ask, asking, scope_of, settled, turned_away
from tests.support.patience import PATIENCE_S

ONE = Shedding(limit=1)


def level_of(request: Request) -> int:
    return int(request.header("x-level") or 0)


def watched(app: Any, settings: Shedding = ONE, **how: Any) -> tuple[SheddingMiddleware, AdmissionController]:
    """The middleware, and what is behind its desk."""
    controller = AdmissionController(settings, **how)
    return SheddingMiddleware(app, controller, settings), controller


async def test_no_more_run_than_the_limit_allows_and_all_are_served() -> None:
    works = Works()
    app = shed_asgi(works, Shedding(limit=3, queue_most=100))
    crowd = asking(app, *(f"/{number}" for number in range(30)))
    for _ in range(30):
        path = await works.arrival()
        assert works.running <= 3
        works.let_go(path)
    assert {reply.status for reply in await asyncio.gather(*crowd)} == {200}
    assert works.peak == 3


async def test_the_peak_would_show_an_application_without_a_limit() -> None:
    works = Works()
    crowd = asking(works, *(f"/{number}" for number in range(30)))
    await settled()
    assert works.peak == 30
    works.let_go(*(f"/{number}" for number in range(30)))
    await asyncio.gather(*crowd)


async def test_who_finds_the_queue_full_is_told_when_to_come_back_and_nothing_is_done() -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, Shedding(limit=1, queue_most=1, retry_after_s=(2, 4)), listener=told.append)
    running, queued = asking(app, "/running", "/queued")
    await works.arrival()
    refused = await ask(app, "/refused")
    assert (refused.status, refused.problem) == (503, "overloaded")
    assert refused.retry_after_s in (2, 3, 4)
    assert b'"retryable": true' in refused.body
    works.let_go("/running", "/queued", "/refused")
    assert [(await task).status for task in (running, queued)] == [200, 200]
    assert works.ran == ["/running", "/queued"]
    assert turned_away(told) == [Shed("queue full", 0)]


async def test_a_header_that_is_there_twice_gives_no_priority() -> None:
    works = Works()
    app = shed_asgi(works, Shedding(limit=1, priority=level_of))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
        refused = await client.get("/twice", headers=[("x-level", "1"), ("x-level", "9")])
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:onefold:problem:header-repeated")
    assert works.ran == []


async def test_where_the_caller_is_the_cause_the_answer_is_429() -> None:
    works = Works()
    app = shed_asgi(works, Shedding(limit=1, queue_most=0, status=429))
    [running] = asking(app, "/running")
    await works.arrival()
    refused = await ask(app, "/refused")
    assert (refused.status, refused.problem) == (429, "too-many-requests")
    works.let_go("/running")
    await running


@pytest.mark.parametrize(
    ("drawn", "bounds", "seconds"),
    [
        (0.0, (1, 5), 1),
        (0.19, (1, 5), 1),
        (0.2, (1, 5), 2),
        (0.999999, (1, 5), 5),
        (1.0, (1, 5), 5),
        (0.5, (3, 3), 3),
    ],
)
async def test_retry_after_is_drawn_between_its_bounds(drawn: float, bounds: tuple[int, int], seconds: int) -> None:
    _, controller = watched(Works(), Shedding(retry_after_s=bounds), draw=lambda: drawn)
    refusal = controller.refusal("queue full", 0)
    assert dict(refusal.headers)[b"retry-after"] == str(seconds).encode()


async def test_the_most_important_enter_first() -> None:
    works = Works()
    app = shed_asgi(works, Shedding(limit=1, priority=level_of))
    tasks = asking(app, "/running")
    await works.arrival()
    for level in (0, 2, -1, 1):
        tasks += asking(app, f"/{level}", headers={"x-level": str(level)})
        await settled()
    works.let_go("/running", "/0", "/1", "/2", "/-1")
    await asyncio.gather(*tasks)
    assert works.ran == ["/running", "/2", "/1", "/0", "/-1"]


async def test_a_more_important_newcomer_displaces_the_least_important_who_is_told_at_once() -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, Shedding(limit=1, queue_most=1, priority=level_of), listener=told.append)
    [running] = asking(app, "/running")
    await works.arrival()
    [low] = asking(app, "/low", headers={"x-level": "-3"})
    await settled()
    [high] = asking(app, "/high", headers={"x-level": "3"})
    assert (await low).problem == "overloaded"
    assert turned_away(told) == [Shed("displaced", -3)]
    works.let_go("/running", "/high")
    assert [(await task).status for task in (running, high)] == [200, 200]


@pytest.mark.parametrize(("named", "rank"), [("low", -10), ("normal", 0), ("high", 10), (7, 7)])
async def test_levels_have_names(named: Any, rank: int) -> None:
    _, controller = watched(Works(), Shedding(priority=lambda request: named))
    assert controller.rank(Request("POST", "/")) == rank


@pytest.mark.parametrize("wrong", ["urgent", None, 1.5])
async def test_a_priority_that_is_none_is_a_programming_error_also_without_load(wrong: Any) -> None:
    app = shed_asgi(Works(), Shedding(priority=lambda request: wrong))
    with pytest.raises(ProgrammerError, match=r"POST /x.*'low', 'normal', 'high'"):
        await ask(app, "/x")


@pytest.mark.parametrize(
    ("path", "root_path", "passes"),
    [
        ("/health", "", True),
        ("/health/deep", "", False),
        ("/internal/x/y", "", True),
        ("/internal", "", False),
        ("/api/health", "/api", True),
        ("/other", "", False),
    ],
)
async def test_exempt_paths_pass_however_full_it_is(path: str, root_path: str, passes: bool) -> None:
    works = Works()
    app = shed_asgi(works, Shedding(limit=1, queue_most=0, exempt=["/health", "/internal/*"]))
    [running] = asking(app, "/running")
    await works.arrival()
    works.let_go(path, "/running")
    caller = Caller()
    await app(scope_of(path, root_path=root_path), caller.receive, caller.send)
    assert caller.reply.status == (200 if passes else 503)
    await running


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_websockets_and_lifespan_pass_untouched(kind: str) -> None:
    seen = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))
        await asyncio.Event().wait() if scope["type"] == "http" else None

    shed = shed_asgi(app, Shedding(limit=1, queue_most=0))
    caller = Caller()
    [running] = asking(shed, "/running")
    await settled()
    scope = {"type": kind}
    await shed(scope, caller.receive, caller.send)
    assert seen[-1] == (scope, caller.receive, caller.send)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# Places are given back, exactly once


class Broken(Exception):
    pass


async def breaks(scope: Any, receive: Receive, send: Send) -> None:
    raise Broken


async def breaks_after_its_answer(scope: Any, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})
    raise Broken


async def breaks_off(scope: Any, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    raise Broken


@pytest.mark.parametrize("broken", [breaks, breaks_after_its_answer, breaks_off])
async def test_a_handler_that_raises_gives_its_place_back_once(broken: Any) -> None:
    app, controller = watched(broken, Shedding(limit=2))
    for _ in range(5):
        with pytest.raises(Broken):
            await ask(app, "/")
        assert controller.queue.running == 0


async def test_an_application_that_answers_nothing_gives_its_place_back() -> None:
    async def silent(scope: Any, receive: Receive, send: Send) -> None: ...

    app, controller = watched(silent)
    assert (await ask(app, "/")).status == 0
    assert controller.queue.running == 0


async def test_a_client_that_cannot_be_sent_to_costs_no_place() -> None:
    works = Works()
    works.let_go("/x")
    app, controller = watched(works)

    async def send(message: Any) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await app(scope_of("/x"), Caller().receive, send)
    assert controller.queue.running == 0


async def test_a_cancelled_waiter_is_forgotten_and_a_cancelled_runner_makes_room() -> None:
    works = Works()
    app, controller = watched(works)
    running, cancelled, next_one = asking(app, "/running", "/cancelled", "/next")
    await works.arrival()
    await settled()
    assert controller.queue.waiting == 2
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert (controller.queue.running, controller.queue.waiting) == (1, 1)
    running.cancel()
    assert await works.arrival() == "/next"
    works.let_go("/next")
    assert (await next_one).status == 200
    assert controller.queue.running == 0
    assert works.ran == ["/running", "/next"]


async def test_who_is_cancelled_in_the_moment_of_entering_passes_its_place_on() -> None:
    works = Works()
    app, controller = watched(works)
    running, cancelled, next_one = asking(app, "/running", "/cancelled", "/next")
    await works.arrival()
    await settled()
    works.let_go("/running", "/next")
    while not running.done():
        await asyncio.sleep(0)
        if controller.queue.waiting == 1:  # told, and not yet gone on
            cancelled.cancel()
            break
    replies = await asyncio.gather(running, cancelled, next_one, return_exceptions=True)
    assert isinstance(replies[1], asyncio.CancelledError)
    assert works.ran == ["/running", "/next"]
    assert (controller.queue.running, controller.queue.waiting) == (0, 0)


async def test_a_client_that_goes_away_in_the_queue_is_forgotten_and_its_work_is_not_done() -> None:
    works = Works()
    app, controller = watched(works)
    [running] = asking(app, "/running")
    await works.arrival()
    caller = Caller()
    leaving = asyncio.create_task(ask(app, "/leaving", caller=caller))
    await settled()
    assert controller.queue.waiting == 1
    caller.gone.set()
    assert (await leaving).status == 0
    assert controller.queue.waiting == 0
    works.let_go("/running")
    await running
    assert works.ran == ["/running"]


async def test_the_body_that_came_during_the_wait_reaches_the_application() -> None:
    works = Works()
    app, _ = watched(works)
    [running] = asking(app, "/running")
    await works.arrival()
    large = b"x" * 70_000
    bodies = ((b"one", b"two", b"three"), (large, b"more", b"rest"), (b"",))
    waiting = [asyncio.create_task(ask(app, "/waiting", caller=Caller(*body))) for body in bodies]
    await settled()
    works.let_go("/running", "/waiting")
    assert [(await task).status for task in (running, *waiting)] == [200] * 4
    assert works.bodies == [b"", b"onetwothree", large + b"morerest", b""]


# Streams


async def test_a_stream_keeps_its_place_until_its_first_byte_only() -> None:
    steps = asyncio.Queue[bytes]()

    async def stream(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            part = await steps.get()
            await send({"type": "http.response.body", "body": part, "more_body": part != b"end"})
            if part == b"end":
                return

    clock, law = Clock(), Noted()
    terms = LimiterConfig(initial=1, least=1, most=1, gather_s=0.001, calls_least=1)
    app, controller = watched(stream, Shedding(limit=terms, law=lambda: law), clock=clock)
    [task] = asking(app, "/stream")
    steps.put_nowait(b"")
    await settled()
    assert controller.queue.running == 1, "an empty part is not a byte"
    clock.now += 2
    steps.put_nowait(b"first")
    await settled()
    assert controller.queue.running == 0
    clock.now += 3600
    steps.put_nowait(b"end")
    assert (await task).body == b"firstend"
    steps.put_nowait(b"end")
    await ask(app, "/next")
    assert [sample.slowest_s for sample in law.samples] == [2.0], "an hour of stream is nobody's latency"


async def test_an_event_stream_gives_its_place_back_with_its_head() -> None:
    app = FastAPI()
    silence = asyncio.Event()

    async def events() -> Any:
        await silence.wait()
        yield "data: x\n\n"

    app.get("/events")(lambda: StreamingResponse(events(), media_type="text/event-stream"))
    app.get("/plain")(lambda: "x")
    shed, controller = watched(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(shed), base_url="http://x") as http:
        listening = asyncio.create_task(http.get("/events"))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await http.get("/plain", headers={"request-timeout-ms": "5000"})
                if controller.queue.running == 0:
                    break
        assert answer.status_code == 200
        silence.set()
        assert (await listening).text == "data: x\n\n"


# What the machines are told


def machine(works: Any, clock: Clock) -> tuple[SheddingMiddleware, AdmissionController, list[Sample]]:
    law = Noted()
    terms = LimiterConfig(initial=1, least=1, most=1, gather_s=0.001, calls_least=1)
    app, controller = watched(works, Shedding(limit=terms, law=lambda: law), clock=clock)
    return app, controller, law.samples


async def test_latency_is_measured_without_the_wait() -> None:
    works, clock = Works(), Clock()
    app, controller, samples = machine(works, clock)
    first, second = asking(app, "/first", "/second")
    await works.arrival()
    await settled()
    clock.now += 3
    works.let_go("/first")
    assert await works.arrival() == "/second"
    clock.now += 0.5
    works.let_go("/second")
    await asyncio.gather(first, second)
    assert samples[0].mean_s == pytest.approx((3 + 0.5) / 2)
    assert list(controller.queue._shedder._latencies) == [3.0, 0.5]


@pytest.mark.parametrize(
    ("status", "told", "dropped"),
    [
        (200, True, False),
        (404, True, False),
        (429, True, False),
        (500, False, False),
        (503, True, True),
        (504, True, True),
    ],
)
async def test_answers_that_say_nothing_about_capacity_are_not_told(status: int, told: bool, dropped: bool) -> None:
    clock = Clock()

    async def answers(scope: Any, receive: Receive, send: Send) -> None:
        clock.now += 1
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app, _, samples = machine(answers, clock)
    await ask(app, "/")
    await ask(app, "/")
    assert [(sample.mean_s, sample.dropped) for sample in samples] == ([(1.0, dropped)] if told else [])


@pytest.mark.parametrize(("error", "told"), [(TimeoutError, True), (Broken, False)])
async def test_of_what_handlers_raise_only_a_time_out_is_told(error: type[Exception], told: bool) -> None:
    clock = Clock()

    async def raises(scope: Any, receive: Receive, send: Send) -> None:
        clock.now += 1
        raise error

    app, _, samples = machine(raises, clock)
    for _ in range(2):
        with pytest.raises(error):
            await ask(app, "/")
    assert [sample.dropped for sample in samples] == ([True] if told else [])


async def test_a_handler_that_is_later_than_its_deadline_is_told_as_dropped() -> None:
    works, clock = Works(), Clock(time.monotonic())
    works.let_go("/")
    app, _, samples = machine(works, clock)

    class Slow(Caller):
        async def send(self, message: Any) -> None:
            clock.now += 1

    for _ in range(2):
        caller = Slow()
        await app(scope_of("/", {"request-timeout-ms": "1500"}), caller.receive, caller.send)
    assert [sample.dropped for sample in samples] == [True]


@pytest.mark.parametrize("path", ["/health", "/healthz", "/health/db", "/readyz", "/livez", "/ping"])
async def test_health_checks_pass_however_full_it_is(path: str) -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, Shedding(limit=1, queue_most=0), listener=told.append)
    [running] = asking(app, "/running")
    await works.arrival()
    works.let_go(path)
    assert [(await ask(app, path)).status for _ in range(25)] == [200] * 25
    assert (await ask(app, "/orders")).status == 503
    assert (await ask(app, "/healthy")).status == 503
    works.let_go("/running")
    assert (await running).status == 200
    assert turned_away(told) == [Shed("queue full", 0)] * 2


async def test_what_is_exempt_takes_the_place_of_the_health_checks() -> None:
    works = Works()
    app = shed_asgi(works, Shedding(limit=1, queue_most=0, exempt=["/metrics"]))
    [running] = asking(app, "/running")
    await works.arrival()
    works.let_go("/metrics")
    assert [(await ask(app, path)).status for path in ("/metrics", "/health")] == [200, 503]
    works.let_go("/running")
    await running


async def test_a_limit_that_moves_is_told() -> None:
    class Up:
        def next_limit(self, limit: float, sample: Sample) -> float:
            return limit + 1

    works, told, clock = Works(), list[Event](), Clock()
    works.let_go("/")
    settings = Shedding(limit=LimiterConfig(initial=3, most=5, gather_s=0.001, calls_least=1), law=Up)
    app, _ = watched(works, settings, listener=told.append, clock=clock)
    for _ in range(9):
        clock.now += 1
        await ask(app, "/")
    assert [event for event in told if isinstance(event, LimitMoved)] == [LimitMoved(3), LimitMoved(4), LimitMoved(5)]
