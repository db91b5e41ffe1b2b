"""The deadline a client sends along: work that is too late is dropped, and the handler knows how much time is left."""

from __future__ import annotations

import time

import httpx
import pytest
from fastapi import FastAPI

from onefold import Shedding, shed_asgi
from onefold._kernel import deadlines
from onefold._kernel.events import Event, Shed
from tests.http.shedding.stages import Works, ask, asking

ONE = Shedding(limit=1)


@pytest.mark.parametrize("value", ["0", "00", " 0 "])
async def test_a_request_whose_client_does_not_wait_any_more_is_not_run(value: str) -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, ONE, listener=told.append)
    refused = await ask(app, "/x", {"request-timeout-ms": value})
    assert (refused.status, refused.problem) == (504, "deadline-passed")
    assert (works.ran, told) == ([], [Shed("deadline", 0)])


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
    assert told == [Shed("deadline", 0)]


async def test_nobody_waits_for_ever_behind_handlers_that_hang() -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, Shedding(limit=1, wait_most_s=0.03), listener=told.append)
    [running] = asking(app, "/running")
    await works.arrival()
    assert (await ask(app, "/late")).problem == "overloaded"
    assert told == [Shed("waited too long", 0)]
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
