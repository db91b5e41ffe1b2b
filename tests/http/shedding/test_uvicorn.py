"""A real server, more clients than it takes: the limit holds, the surplus is refused, and it recovers by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

from onefold.shedding import Shedding, shed_asgi
from onefold.telemetry import Event, Shed
from tests.http.shedding.stages import Works, reached, settled, turned_away
from tests.support.patience import PATIENCE_S

LIMIT, QUEUE, CROWD = 4, 6, 60


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """On a port of its own, in this loop; a client that may have as many connections as it likes."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    try:
        await reached(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, limits=limits) as http:
            yield http
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, PATIENCE_S)


async def test_of_a_crowd_those_are_served_that_fit_and_the_others_are_told_to_come_back() -> None:
    works, told = Works(), list[Event]()
    app = shed_asgi(works, Shedding(limit=LIMIT, queue_most=QUEUE, wait_most_s=60), listener=told.append)
    async with serving(app) as http:
        crowd = [asyncio.create_task(http.post(f"/{number}", content=b"order")) for number in range(CROWD)]
        await reached(
            lambda: len(turned_away(told)) == CROWD - LIMIT - QUEUE
        )  # nobody is let go before the surplus has its answer
        await settled()
        assert works.running == LIMIT
        works.let_go(*(f"/{number}" for number in range(CROWD)))
        answers = await asyncio.gather(*crowd)
        assert Counter(answer.status_code for answer in answers) == {200: LIMIT + QUEUE, 503: CROWD - LIMIT - QUEUE}
        assert {int(a.headers["retry-after"]) for a in answers if a.status_code == 503} <= {1, 2, 3, 4, 5}
        assert turned_away(told) == [Shed("queue full", 0)] * (CROWD - LIMIT - QUEUE)
        assert works.peak == LIMIT
        assert works.bodies == [b"order"] * (LIMIT + QUEUE)
        works.let_go("/later")
        assert (await http.get("/later")).status_code == 200


async def test_a_client_that_hangs_up_in_the_queue_is_never_worked_for() -> None:
    works = Works()
    app: Any = shed_asgi(works, Shedding(limit=1, wait_most_s=60))
    queue = app._controller.queue
    async with serving(app) as http:
        running = asyncio.create_task(http.get("/running"))
        assert await works.arrival() == "/running"
        leaving = asyncio.create_task(http.get("/leaving"))
        await reached(lambda: queue.waiting == 1)
        leaving.cancel()
        await reached(lambda: queue.waiting == 0)
        works.let_go("/running", "/leaving")
        assert (await running).status_code == 200
    assert works.ran == ["/running"]
