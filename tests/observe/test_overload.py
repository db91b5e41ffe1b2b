"""Metrics of shedding: each is moved by requests that wait, or are turned away."""

from __future__ import annotations

import asyncio

import httpx

from onefold._http.shedding.asgi import SheddingMiddleware
from onefold._kernel.telemetry import join
from onefold.shedding import Shedding, shed_asgi
from tests.http.shedding.stages import Works
from tests.observe.measured import Measured
from tests.worker.consuming import until


def waiting(app: object) -> int:
    assert isinstance(app, SheddingMiddleware)
    return app._controller.queue.waiting


async def test_shed_requests_limits_and_queue_times_are_measured(measured: Measured) -> None:
    works = Works()
    settings = Shedding(limit=1, queue_most=1, status=503)
    app = shed_asgi(works, settings, listener=join(measured.listeners))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        first = asyncio.create_task(client.get("/a"))
        assert await works.entered.get() == "/a"
        second = asyncio.create_task(client.get("/b"))
        await until(lambda: waiting(app) == 1)
        assert (await client.get("/c")).status_code == 503
        works.let_go("/a")
        works.let_go("/b")
        assert [(await each).status_code for each in (first, second)] == [200, 200]
    assert measured.values("onefold_shed_total") == {("0", "queue full"): 1}
    assert measured.values("onefold_queue_duration_seconds_count") == {("entered",): 1, ("left",): 1}
    assert measured.value("onefold_concurrency_limit") == 1
