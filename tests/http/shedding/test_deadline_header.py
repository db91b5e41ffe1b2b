"""The deadline a client sends along: work that is too late is dropped, and the handler knows how much time is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import flask
import httpx
import pytest
from fastapi import BackgroundTasks, FastAPI
from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse

from onefold import AsyncOnefold, single_principal
from onefold._kernel import deadlines
from onefold.shedding import Shedding, shed_asgi, shed_wsgi
from onefold.telemetry import Event, Shed
from tests.http.shedding.stages import Works, ask, asking, turned_away
from tests.support.patience import PATIENCE_S

ONE = Shedding(limit=1)


@pytest.mark.parametrize("value", ["0", "00", " 0 "])
async def test_a_request_whose_client_does_not_wait_any_more_is_not_run(value: str) -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, ONE, listener=told.append)
    refused = await ask(app, "/x", {"request-timeout-ms": value})
    assert (refused.status, refused.problem) == (504, "deadline-passed")
    assert (works.ran, turned_away(told)) == ([], [Shed("deadline", 0)])


@pytest.mark.parametrize("value", ["soon", "-5", "", "1.5", "9" * 400, "\xb2"])
async def test_a_malformed_deadline_is_ignored(value: str) -> None:
    works = Works()
    works.let_go("/x")
    assert (await ask(shed_asgi(works, ONE), "/x", {"request-timeout-ms": value})).status == 200
    assert works.deadlines == [None]


async def test_a_deadline_that_passes_in_the_queue_is_told_then_and_the_handler_never_runs() -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, ONE, listener=told.append)
    [running] = asking(app, "/running")
    await works.arrival()
    refused = await ask(app, "/late", {"request-timeout-ms": "30"})
    assert (refused.status, refused.problem) == (504, "deadline-passed")
    works.let_go("/running")
    await running
    assert works.ran == ["/running"]
    assert turned_away(told) == [Shed("deadline", 0)]


async def test_nobody_waits_for_ever_behind_handlers_that_hang() -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, Shedding(limit=1, wait_most_s=0.03), listener=told.append)
    [running] = asking(app, "/running")
    await works.arrival()
    assert (await ask(app, "/late")).problem == "overloaded"
    assert turned_away(told) == [Shed("waited too long", 0)]
    works.let_go("/running")
    await running


async def test_the_handler_finds_the_deadline_and_nobody_else_does() -> None:
    works = Works()
    works.let_go("/x")
    before = time.monotonic()
    assert (await ask(shed_asgi(works, ONE), "/x", {"request-timeout-ms": "2000"})).status == 200
    [at] = works.deadlines
    assert at is not None
    assert before + 2 <= at <= time.monotonic() + 2
    assert deadlines.current() is None


async def test_a_header_can_only_shorten_the_deadline_that_is_there() -> None:
    works = Works()
    works.let_go("/x")
    app = shed_asgi(works, ONE)
    with deadlines.deadline(5) as at:
        for headers in ({"request-timeout-ms": "60000"}, {}, {"request-timeout-ms": "1000"}):
            await ask(app, "/x", headers)
    assert works.deadlines[:2] == [at, at]
    assert works.deadlines[2] is not None
    assert works.deadlines[2] < at


async def test_the_header_has_the_name_the_application_chooses() -> None:
    works = Works()
    works.let_go("/x")
    given = {"request-timeout-ms": "0", "x-envoy-expected-rq-timeout-ms": "0"}
    other = shed_asgi(works, Shedding(deadline_header="X-Envoy-Expected-Rq-Timeout-Ms"))
    assert (await ask(other, "/x", given)).status == 504
    assert (await ask(other, "/x", {"request-timeout-ms": "0"})).status == 200
    assert (await ask(shed_asgi(works, Shedding(deadline_header=None)), "/x", given)).status == 200


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_endpoints_find_the_deadline_also_on_starlettes_threads(colour: str) -> None:
    app = FastAPI()
    found: list[float | None] = []

    @app.get("/sync")
    def on_a_thread() -> None:
        found.append(deadlines.left_s())

    @app.get("/async")
    async def on_the_loop() -> None:
        found.append(deadlines.left_s())

    shed = shed_asgi(app, ONE)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(shed), base_url="http://x") as http:
        for headers in ({"Request-Timeout-Ms": "60000"}, {}):
            assert (await http.get(f"/{colour}", headers=headers)).status_code == 200
    assert found[0] is not None
    assert 0 < found[0] <= 60
    assert found[1] is None


async def test_the_deadline_ends_with_the_response_also_for_what_was_begun_before() -> None:
    app = FastAPI()
    found: list[float | None] = []
    answered, begun = asyncio.Event(), list[asyncio.Task[None]]()

    def on_a_thread() -> None:
        found.append(deadlines.left_s())

    async def on_the_loop() -> None:
        found.append(deadlines.left_s())
        answered.set()

    async def begun_before() -> None:
        await answered.wait()
        found.append(deadlines.left_s())

    @app.get("/")
    async def endpoint(later: BackgroundTasks) -> None:
        found.append(deadlines.left_s())
        later.add_task(on_a_thread)
        later.add_task(on_the_loop)
        begun.append(asyncio.create_task(begun_before()))

    async with httpx.AsyncClient(transport=httpx.ASGITransport(shed_asgi(app, ONE)), base_url="http://x") as http:
        assert (await http.get("/", headers={"Request-Timeout-Ms": "60000"})).status_code == 200
    await asyncio.wait_for(begun[0], PATIENCE_S)
    assert found[0] is not None
    assert found[1:] == [None] * 3


async def test_background_work_of_an_idempotent_route_has_no_deadline(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, principal=single_principal, shedding=ONE)
    app = FastAPI()
    once.install(app)
    found: list[float | None] = []

    @app.post("/orders")
    @once.idempotent(writes=False)
    async def order(later: BackgroundTasks) -> None:
        found.append(deadlines.left_s())
        later.add_task(lambda: found.append(deadlines.left_s()))

    await once.migrate()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        headers = {"Request-Timeout-Ms": "60000", "Idempotency-Key": '"1"'}
        assert (await http.post("/orders", headers=headers)).status_code == 200
    assert found[0] is not None
    assert found[1:] == [None]
    await once.close()


async def test_a_stream_has_its_deadline_until_its_last_part() -> None:
    found: list[float | None] = []

    async def parts() -> AsyncIterator[bytes]:
        for part in (b"a", b"b"):
            found.append(deadlines.left_s())
            yield part

    app = FastAPI()

    @app.get("/")
    async def endpoint() -> StreamingResponse:
        return StreamingResponse(parts(), background=BackgroundTask(lambda: found.append(deadlines.left_s())))

    async with httpx.AsyncClient(transport=httpx.ASGITransport(shed_asgi(app, ONE)), base_url="http://x") as http:
        assert (await http.get("/", headers={"Request-Timeout-Ms": "60000"})).text == "ab"
    assert [left_s is None for left_s in found] == [False, False, True]


@pytest.mark.parametrize("streamed", [False, True])
def test_what_a_wsgi_application_does_on_closing_has_no_deadline(streamed: bool) -> None:
    app = flask.Flask(__name__)
    found: list[float | None] = []

    @app.post("/")
    def endpoint() -> flask.Response:
        found.append(deadlines.left_s())
        response = flask.Response(iter([b"a"]) if streamed else b"a")
        response.call_on_close(lambda: found.append(deadlines.left_s()))
        return response

    shed: Any = shed_wsgi(app.wsgi_app, ONE)
    app.wsgi_app = shed  # type: ignore[method-assign]
    assert app.test_client().post("/", headers={"Request-Timeout-Ms": "60000"}, buffered=True).text == "a"
    assert found[0] is not None
    assert found[1:] == [None]
