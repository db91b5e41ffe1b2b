"""The overview: what waits now, what was counted, and its live updates."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow, with_broker
from onefold._console import live
from onefold._console.consumers_now import CONSUMERS_MAX
from onefold._console.live import LiveStreams, write_fragment
from onefold._console.pages.overview_page import look_at_outbox
from onefold._console.plots import HEIGHT, SERIES_MAX, WIDTH, level, stack
from onefold._inbox.pausing import pause
from onefold._inbox.registry import note_ended, register
from onefold._kernel.messages import Message
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._kernel.telemetry.client_events import RetryPlanned
from onefold._kernel.telemetry.consumer_events import DeadLettered, Duplicate, Failed
from onefold._kernel.telemetry.relay_events import OutboxMeasured
from onefold._kernel.telemetry.request_events import Claimed, Released
from onefold._observe.activity.history import TimeWindow, last_day, last_hour, last_week
from onefold.console import Console, Role, console
from tests.console.browsing import ACT, VIEW, Visitor, text_of
from tests.support.patience import PATIENCE_S

WINDOW = TimeWindow(60, 1_780_000_020 // 60 * 60, 4, 1_780_000_020 // 60 * 60 + 200)


@pytest.fixture
async def once(sqlite_path: Path) -> AsyncIterator[AsyncOnefold]:
    found = AsyncOnefold(sqlite_path, source="shop", activity=True)
    yield found
    await found.close()


async def count(once: AsyncOnefold, *events: Any) -> None:
    assert once.listener is not None
    for event in events:
        once.listener(event)
    await once._write_activity()


# --- plots ----------------------------------------------------------------------------------------------------


def test_bars_stand_on_each_other_and_the_highest_column_fills_the_plot() -> None:
    plot = stack("Requests", "request", {"run": [1, 0, 3, 0], "replay": [1, 0, 1, 0]}, WINDOW)
    assert plot.legend == (("run", "4"), ("replay", "2"))
    assert (plot.total, plot.top) == ("6 requests", "top: 4 in a minute")
    [first, third] = plot.columns
    assert [bar.height for bar in first.bars] == [HEIGHT / 4, HEIGHT / 4]
    assert [bar.y for bar in third.bars] == [HEIGHT / 4, 0]
    assert third.bars[0].x > first.bars[0].x + first.bars[0].width
    assert third.says.endswith(": run 3, replay 1")
    assert all(0 <= bar.x <= bar.x + bar.width <= WIDTH for column in plot.columns for bar in column.bars)


def test_what_has_more_series_than_colours_is_summed_up() -> None:
    plot = stack("Retries", "attempt", {f"host {number}": [number, 0, 0, 0] for number in range(1, 20)}, WINDOW)
    assert len(plot.legend) == SERIES_MAX
    assert plot.legend[-1] == ("others", str(sum(range(1, 20 - SERIES_MAX + 1))))
    assert plot.total == f"{sum(range(1, 20))} attempts", "nothing is left out"


def test_a_level_says_its_greatest_value_and_nothing_is_no_plot() -> None:
    plot = level("Age", "s", [0, 90, 30, 0], WINDOW)
    assert (plot.legend, plot.total, plot.top) == ((("greatest", "90 s"),), "", "top: 90 s")
    assert level("Age", "s", [0, 0, 0, 0], WINDOW).columns == ()
    assert "nothing" in stack("Requests", "request", {}, WINDOW).summary


@pytest.mark.parametrize("make", [last_day, last_week])
def test_a_day_and_a_week_say_the_date_and_end_now(make: Callable[[int], TimeWindow]) -> None:
    window = make(1_780_000_000)
    plot = level("Age", "s", [1] * window.spans, window)
    assert re.fullmatch(r"\w{3} \d\d \w{3} \d\d:00", plot.begins)
    assert plot.ends == "Thu 28 May 20:26", "no hour that is to come"


def test_an_hour_says_the_time_and_ends_now() -> None:
    plot = level("Age", "s", [1] * 60, last_hour(1_780_000_000))
    assert (plot.begins, plot.ends) == ("19:27", "20:26")


# --- the page -------------------------------------------------------------------------------------------------


async def test_the_overview_is_where_the_console_begins(viewer: Visitor) -> None:
    answer = await viewer.get("/")
    assert answer.headers["location"] == "/overview"
    assert (await viewer.get("/overview")).status_code == 200


async def test_without_a_history_the_page_says_how_to_have_one(viewer: Visitor) -> None:
    page = text_of(await viewer.get("/overview"))
    assert "There is no history" in page
    assert "activity=True" in page


async def test_what_was_absorbed_is_told_by_hop_and_by_where(viewer: Visitor, once: AsyncOnefold) -> None:
    await count(
        once,
        *[Claimed("POST /orders", "replay")] * 3,
        *[Claimed("POST /orders", "run")] * 3,
        Claimed("POST /orders", "in_flight"),
        *[Released("POST /orders", "status 503")] * 2,
        Claimed("POST /orders", "run"),
        Released("POST /orders", "waits for its turn"),
        Duplicate("mailer", "orders"),
        RetryPlanned("bank", "POST", 1, 0.1, throttled=True),
        Failed("mailer", "orders", "boom", 1),
        DeadLettered("mailer", "orders", "boom"),
        OutboxMeasured(pending={}, oldest_s=75.5, delayed=0, retrying=0, dead=0, relays=1),
    )
    for window in ("hour", "day", "week", "nonsense"):
        page = text_of(await viewer.get(f"/overview?window={window}"))
        assert "Requests by outcome 7 requests top: 7 in" in page
        assert "run 1 replay 3 in_flight 1 released 2" in page
        assert "Dead letters 1 dead letter top" in page
        assert "consumer 1 http 3" in page
        assert "POST /orders 3" in page
        assert "consumer mailer, topic orders 1" in page
        assert "calls, throttled 1 messages 1" in page
        assert "greatest 76 s" in page
        assert re.search(r"The last are of \d{4}-\d\d-\d\d \d\d:\d\d UTC", page)


async def test_what_waits_is_told(viewer: Visitor, once: AsyncOnefold) -> None:
    async with once.transaction() as tx:
        for number in range(3):
            _ = tx.publish("orders", {"n": number}, key="7")
    page = text_of(await viewer.get("/overview"))
    assert "Waiting events 3" in page
    assert "nothing is published" in page


async def test_an_event_that_is_tried_again_is_one_click_away(viewer: Visitor, once: AsyncOnefold) -> None:
    async with once.transaction() as tx:
        _ = tx.publish("orders", {"n": 1}, key="7")
    stop = asyncio.Event()
    relaying = asyncio.create_task(once.relay(stop))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (await run_flow(once, look_at_outbox)).stopped:
                pass
    finally:
        stop.set()
        await relaying
    page = await viewer.get("/overview")
    assert 'href="/outbox/stuck?show=retrying"' in page.text
    assert "1 tried again, 0 dead refused, tried again" in text_of(page)


async def test_a_consumer_for_which_messages_wait_and_none_runs_is_told(viewer: Visitor, once: AsyncOnefold) -> None:
    await run_flow(once, lambda dialect: register(dialect, "mailer", "p-1", ["orders"]))
    await run_flow(once, lambda dialect: register(dialect, "far", "p-3", ["payments"]))
    await with_broker(once, _leave_one_waiting)
    assert "mailer orders 1 1 running" in text_of(await viewer.get("/overview"))
    await run_flow(once, lambda dialect: note_ended(dialect, "mailer", "p-1"))
    page = text_of(await viewer.get("/overview"))
    assert re.search(r"Consumers .* mailer orders 1 0 messages wait, none runs last seen \S+ s ago", page)
    assert "far payments in its broker 1 running" in page
    await run_flow(once, lambda dialect: pause(dialect, "far", "ada"))
    assert "far payments in its broker 1 paused by ada" in text_of(await viewer.get("/overview"))


async def _leave_one_waiting(_: AsyncDatabase[Any], broker: Broker) -> None:
    subscription = await broker.subscribe("mailer", ["orders"])
    await broker.publish([Message(id="m1", source="shop", topic="orders", data=b"1")])
    await subscription.close()


async def test_only_so_many_consumers_are_shown(viewer: Visitor, once: AsyncOnefold) -> None:
    for number in range(CONSUMERS_MAX + 2):
        await run_flow(once, partial(register, consumer=f"c{number}", process="p", topics=["orders"]))
    page = text_of(await viewer.get("/overview"))
    assert page.count("orders in its broker 1 running") == CONSUMERS_MAX
    assert "And 2 more" in page


async def test_a_label_that_was_written_by_a_stranger_is_escaped(viewer: Visitor, once: AsyncOnefold) -> None:
    """A topic of a foreign producer may be anything."""
    await count(once, Duplicate("mailer", "<script>alert(1)</script>"))
    page = (await viewer.get("/overview")).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


# --- live -----------------------------------------------------------------------------------------------------


class Stream:
    """A browser's event source, without a browser."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.read: asyncio.Queue[str] = asyncio.Queue()
        self.leave = asyncio.Event()
        self._begun = False

    async def receive(self) -> dict[str, Any]:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            await self.read.put(message["body"].decode())

    async def until(self, text: str) -> str:
        seen = ""
        async with asyncio.timeout(PATIENCE_S):
            while text not in seen:
                seen += await self.read.get()
        return seen


@asynccontextmanager
async def streaming(visitor: Visitor, app: Console, query: str = "window=hour") -> AsyncIterator[Stream]:
    stream = Stream()
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.client.cookies.items())
    scope = {
        "type": "http", "method": "GET", "path": "/overview/live", "raw_path": b"/overview/live", "root_path": "",
        "query_string": query.encode(), "scheme": "http", "server": ("console.test", 80), "http_version": "1.1",
        "headers": [(b"host", b"console.test"), (b"accept", b"text/event-stream"), (b"cookie", cookies.encode())],
    }  # fmt: skip
    task = asyncio.create_task(app(scope, stream.receive, stream.send))
    try:
        yield stream
    finally:
        stream.leave.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def app(once: AsyncOnefold) -> Console:
    found = console(once, view_token=VIEW, act_token=ACT)
    found._parts.live._every_s = 0.02
    return found


async def test_the_page_names_its_stream_and_the_elements_that_it_replaces(viewer: Visitor) -> None:
    page = (await viewer.get("/overview?window=day")).text
    assert 'data-live="/overview/live?window=day"' in page
    assert 'id="now"' in page
    assert 'id="plots"' in page


async def test_what_changes_is_sent_and_nothing_else(viewer: Visitor, app: Console, once: AsyncOnefold) -> None:
    async with streaming(viewer, app) as stream:
        first = await stream.until("data: plots\n")
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "event: fragment\ndata: now\n" in first
        await stream.until(": nothing new")
        await count(once, *[Claimed("POST /orders", "replay")] * 7)
        changed = await stream.until("<b>7</b>")
        assert "data: now\n" not in changed
    assert app._parts.live.open == 0


async def test_a_stream_ends_with_its_session(viewer: Visitor, app: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    async with streaming(viewer, app) as stream:
        await stream.until("data: plots\n")
        monkeypatch.setattr(app._parts, "now", lambda: time.time() + 9 * 3600)
        await stream.until("event: end\n")
    assert app._parts.live.open == 0


async def test_without_a_session_there_is_no_stream(visitor: Visitor, app: Console) -> None:
    async with streaming(visitor, app) as stream:
        await stream.until("session has ended")
        assert stream.status == 401


async def test_there_are_only_so_many_streams(viewer: Visitor, app: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    async with streaming(viewer, app) as first:
        await first.until("data: now\n")
        async with streaming(viewer, app) as second:
            await second.until("Reload this page")
            assert second.status == 503
    async with streaming(viewer, app) as third:
        await third.until("data: now\n")


async def test_streams_of_one_address_share_what_is_read() -> None:
    made = []

    async def make() -> dict[str, str]:
        made.append(1)
        await asyncio.sleep(0)
        return {"now": "x"}

    streams = LiveStreams(every_s=60)
    await asyncio.gather(*(streams._make_once("a", make) for _ in range(10)), streams._make_once("b", make))
    assert len(made) == 2


def test_a_fragment_of_several_lines_stays_one_event() -> None:
    assert write_fragment("now", "<p>\n1\r\n</p>") == "event: fragment\ndata: now\ndata: <p>\ndata: 1\ndata: </p>\n\n"


async def test_an_application_ends_while_a_page_is_updated_live(once: AsyncOnefold) -> None:
    host = FastAPI()
    host.mount("/console", console(once, authorize=lambda request: Role.VIEW))
    server = uvicorn.Server(uvicorn.Config(host, log_level="warning"))
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([listening]))
    async with asyncio.timeout(PATIENCE_S):
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=None) as browser,
            browser.stream("GET", "/console/overview/live") as response,
        ):
            lines = response.aiter_lines()
            assert [line async for line in lines if server.should_exit or _stop(server)]
        await serving


def _stop(server: uvicorn.Server) -> bool:
    """As SIGTERM does."""
    server.should_exit = True
    return True


async def test_streams_that_come_at_once_are_counted_at_once(
    viewer: Visitor, app: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 3)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(streaming(viewer, app)) for _ in range(20)]
        for each in opened:
            await each.read.get()
        assert sorted(each.status for each in opened) == [200] * 3 + [503] * 17
