"""How many calls of a host may be in flight, with every client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from onefold import Retrying, RetryPolicy
from onefold.clients import LimiterConfig, Reason, report_of
from onefold.errors import CallNotMade, ConfigurationError
from onefold.testing.scripted_server import Chunks, Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind
from tests.support.patience import PATIENCE_S


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def calling(kind: Kind, retrying: Retrying, url: str) -> asyncio.Task[Any]:
    """A call that is made beside this one: on a thread of its own where the client blocks."""

    async def call() -> Any:
        async with kind.opened(retrying) as caller:
            return await caller.send("GET", url)

    if kind.on_tasks:
        return asyncio.create_task(call())
    return asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(call())))


async def test_one_call_more_than_may_be_is_refused_at_once_and_has_room_later(kind: Kind) -> None:
    gate = threading.Event()
    retrying = Retrying(RetryPolicy(in_flight=2))
    with ScriptedServer([Chunks((b"a", b"b"), gate), Chunks((b"a", b"b"), gate), Reply(200)]) as server:
        running = [calling(kind, retrying, server.url) for _ in range(2)]
        await asyncio.to_thread(wait_for, lambda: len(server.requests) == 2)
        async with kind.opened(retrying) as caller:
            with pytest.raises(CallNotMade, match="in flight") as refused:
                await caller.send("GET", server.url)
            with pytest.raises(kind.no_connection):
                await caller.send("GET", server.url)
            gate.set()
            assert [(await call).status for call in running] == [200, 200]
            assert (await caller.send("GET", server.url)).status == 200
    assert len(server.requests) == 3
    report = report_of(refused.value)
    assert report is not None
    assert (report.attempts, report.reason) == (0, Reason.IN_FLIGHT)


async def test_whatever_an_attempt_ends_with_it_leaves_its_place(kind: Kind, closed_port: int) -> None:
    policy = RetryPolicy(in_flight=1, budget=None, breaker=None)
    with ScriptedServer([Reset(), Reply(503), Reply(404), Reply(200)]) as server:
        async with kind.opened(Retrying(policy)) as caller:
            for expected in (404, 200):
                assert (await caller.send("GET", server.url)).status == expected
            for _ in range(3):
                with pytest.raises(kind.no_connection) as raised:
                    await caller.send("GET", f"http://127.0.0.1:{closed_port}")
                assert not isinstance(raised.value, CallNotMade)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_limit_that_lets_nothing_through_is_refused(wrong: int) -> None:
    with pytest.raises(ConfigurationError, match=f"in_flight={wrong}"):
        RetryPolicy(in_flight=wrong)


def test_a_limit_may_follow_how_long_calls_take() -> None:
    assert RetryPolicy(in_flight=LimiterConfig(initial=5, most=50)).in_flight_config() == LimiterConfig(
        initial=5, most=50
    )
