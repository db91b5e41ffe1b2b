"""What keeps a client from making an outage worse: budget, breaker, deadline; and what is told about it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import httpx2
import pytest

import onefold
from onefold import Retrying, RetryPolicy
from onefold.clients import BreakerConfig, Reason, options, report_of
from onefold.errors import CallNotMade
from onefold.telemetry import AttemptEnded, BreakerMoved, CallEnded, Event, RetryPlanned
from onefold.testing.scripted_server import Act, Chunks, Reply, Reset, ScriptedServer, Stall, Trickle
from tests.client.http.clients import Kind, only

NO_BREAKER = RetryPolicy(breaker=None)


async def test_a_process_that_has_just_started_has_all_its_retries(kind: Kind) -> None:
    with ScriptedServer([Reply(503), Reply(503), Reply(503), Reply(200)]) as server:
        async with kind.opened(Retrying()) as caller:
            reply = await caller.send("GET", server.url)
    assert reply.status == 200
    assert len(server.requests) == 4


async def test_a_host_that_always_fails_sees_no_more_retries_than_its_budget(kind: Kind) -> None:
    with ScriptedServer([*[Reply(200)] * 20, Reply(500)]) as server:
        async with kind.opened(Retrying(NO_BREAKER, generate_keys=True)) as caller:
            for _ in range(20):
                await caller.send("GET", server.url)
            replies = [await caller.send("GET", server.url) for _ in range(30)]
    retries = len(server.requests) - 50
    assert 1 <= retries <= 6 + 0.1 * 20
    last = replies[-1].report
    assert last is not None
    assert (last.attempts, last.reason) == (1, Reason.BUDGET)


@pytest.mark.parametrize(
    ("act", "left"),
    [(Reply(503), 5.0), (Reset(), 4.0), (Stall(), 2.0), (Trickle(Chunks((b"late" * 150,)), at_once=60), 2.0)],
    ids=["503", "broken", "no answer in time", "no whole answer in time"],
)
async def test_a_retry_costs_more_where_the_request_may_still_wait_in_the_server(
    kind: Kind, act: Act, left: float
) -> None:
    retrying = Retrying(RetryPolicy(attempts_max=2), draw=lambda: 0.0)
    with ScriptedServer([act]) as server:
        async with kind.opened(retrying) as caller:
            with options(deadline_s=0.6, attempt_s=0.2), contextlib.suppress(Exception):
                await caller.send("GET", server.url)
        budget: Any = retrying._hosts.of(server.url.partition("//")[2], 0.0).budget
    assert len(server.requests) == 2
    assert budget._parts == left * 1_000_000


async def test_without_a_budget_the_same_host_sees_them_all(kind: Kind) -> None:
    """The control of the test above."""
    with ScriptedServer([Reply(500)]) as server:
        async with kind.opened(Retrying(RetryPolicy(budget=None, breaker=None), generate_keys=True)) as caller:
            for _ in range(5):
                await caller.send("GET", server.url)
    assert len(server.requests) == 20


async def test_an_open_breaker_refuses_with_an_error_of_the_vendor_and_for_its_host_only(kind: Kind) -> None:
    with ScriptedServer([Reply(500)]) as sick, ScriptedServer([Reply(200)]) as well:
        async with kind.opened(Retrying(generate_keys=True)) as caller:
            for _ in range(5):
                with contextlib.suppress(CallNotMade):
                    await caller.send("GET", sick.url)
            seen = len(sick.requests)
            with pytest.raises(CallNotMade, match="was not sent") as raised:
                await caller.send("POST", sick.url)
            with pytest.raises(kind.no_connection):
                await caller.send("POST", sick.url)
            assert (await caller.send("GET", well.url)).status == 200
    assert len(sick.requests) == seen
    report = report_of(raised.value)
    assert report is not None
    assert (report.attempts, report.reason) == (0, Reason.BREAKER)
    assert report.retry_at is not None
    assert report.retry_at.timestamp() > time.time()


async def test_a_breaker_comes_back_after_three_good_probes(kind: Kind) -> None:
    events: list[Event] = []
    terms = BreakerConfig(open_s=0.05, open_max_s=0.05)
    retrying = Retrying(RetryPolicy(attempts_max=1, breaker=terms), listener=events.append, generate_keys=True)
    with ScriptedServer([*[Reply(500)] * 5, Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            for _ in range(5):
                await caller.send("GET", server.url)
            await asyncio.sleep(0.06)
            for _ in range(4):
                assert (await caller.send("GET", server.url)).status == 200
    assert [event.state for event in events if isinstance(event, BreakerMoved)] == ["open", "half-open", "closed"]


async def test_what_is_left_is_told_to_the_server_and_only_shrinks(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(503, after_s=0.01)]) as server:
        async with kind.opened(Retrying(replace(patient, deadline_s=4.0, attempt_s=4.0), generate_keys=True)) as caller:
            await caller.send("POST", server.url)
            with onefold.deadline(2):
                await caller.send("GET", server.url)
            with onefold.deadline(9_000):
                await caller.send("GET", server.url)
    told = [int(request.headers["request-timeout-ms"]) for request in server.requests]
    for call, most in ((told[:4], 4_000), (told[4:8], 2_000), (told[8:], 4_000)):
        assert most - 1_500 < call[0] <= most
        assert all(later < sooner for sooner, later in pairwise(call))


@pytest.mark.parametrize("vendor", [httpx, httpx2])
def test_an_attempt_tells_how_long_it_waits_itself_where_that_is_less(vendor: Any) -> None:
    transport = onefold.retrying(vendor.HTTPTransport())
    with ScriptedServer([Reply(200)]) as server, vendor.Client(transport=transport, timeout=1.5) as client:
        client.post(server.url)
    assert server.requests[0].headers["request-timeout-ms"] == "1500"


@pytest.mark.parametrize("vendor", [httpx, httpx2])
def test_an_answer_that_trickles_in_is_given_up_on_threads_too(vendor: Any) -> None:
    class Trickle(vendor.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(100):
                time.sleep(0.02)
                yield b"."

    class Slow(vendor.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            return vendor.Response(200, headers={"Content-Length": "100"}, stream=Trickle())

    policy = RetryPolicy(deadline_s=0.1)
    with vendor.Client(transport=onefold.retrying(Slow(), policy)) as client, pytest.raises(vendor.ReadTimeout):
        client.get("http://slow.test")


async def test_who_only_reads_and_set_no_deadline_tells_none_at_first(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(503), Reply(200)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            await caller.send("GET", server.url)
    assert ["request-timeout-ms" in request.headers for request in server.requests] == [False, True]


async def test_a_deadline_around_the_call_bounds_it(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Stall()]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            with onefold.deadline(0.3), pytest.raises(kind.no_time) as raised:
                await caller.send("GET", server.url)
            with onefold.deadline(0), pytest.raises(CallNotMade, match="deadline"):
                await caller.send("GET", server.url)
    assert len(server.requests) == 1
    report = report_of(raised.value)
    assert report is not None
    assert report.reason is Reason.DEADLINE


# The others have no place for options.
@only(lambda kind: kind.has_options)
async def test_a_request_may_have_a_deadline_and_a_number_of_attempts_of_its_own(
    kind: Kind, patient: RetryPolicy
) -> None:
    with ScriptedServer([Reply(503)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            await caller.send("GET", server.url, options={"attempts_max": 2, "deadline_s": 7.0})
            await caller.send("GET", server.url, options={"attempts_max": 6})
            with pytest.raises(CallNotMade, match="deadline"):
                await caller.send("GET", server.url, options={"deadline_s": 0})
    assert len(server.requests) == 8
    assert int(server.requests[0].headers["request-timeout-ms"]) <= 7000


async def test_events_tell_effective_from_actual_success(kind: Kind, patient: RetryPolicy) -> None:
    events: list[Event] = []
    script = [Reply(503, headers={"Retry-After": "1"}), Reply(500), Reply(200), Reply(200), Reply(404)]
    with ScriptedServer(script) as server:
        async with kind.opened(Retrying(patient, listener=events.append, generate_keys=True)) as caller:
            for _ in range(3):
                await caller.send("GET", server.url)
        host = server.url.removeprefix("http://")
    shapes = [
        (type(event), getattr(event, "attempt", None) or getattr(event, "attempts", None), getattr(event, "status", 0))
        for event in events
    ]
    assert shapes == [
        (AttemptEnded, 1, 503),
        (RetryPlanned, 1, 0),
        (AttemptEnded, 2, 500),
        (RetryPlanned, 2, 0),
        (AttemptEnded, 3, 200),
        (CallEnded, 3, 0),
        (AttemptEnded, 1, 200),
        (CallEnded, 1, 0),
        (AttemptEnded, 1, 404),
        (CallEnded, 1, 0),
    ]
    assert {getattr(event, "host", None) for event in events} == {host}
    planned = [event for event in events if isinstance(event, RetryPlanned)]
    assert [event.throttled for event in planned] == [True, False]
    assert planned[0].wait_s >= 1
    attempts = [event.succeeded for event in events if isinstance(event, AttemptEnded)]
    calls = [event.succeeded for event in events if isinstance(event, CallEnded)]
    assert (sum(attempts) / len(attempts), sum(calls) / len(calls)) == (2 / 5, 2 / 3)


# The clients for threads block the loop.
@only(lambda kind: kind.on_tasks)
async def test_a_half_open_breaker_lets_three_through_at_once(kind: Kind) -> None:
    terms = BreakerConfig(open_s=0.01, open_max_s=0.01)
    retrying = Retrying(RetryPolicy(attempts_max=1, breaker=terms), generate_keys=True)
    with ScriptedServer([*[Reply(500)] * 5, Reply(200, after_s=0.3)]) as server:
        async with kind.opened(retrying) as caller:
            for _ in range(5):
                await caller.send("GET", server.url)
            await asyncio.sleep(0.02)
            calls = [caller.send("GET", server.url) for _ in range(10)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
    assert len(server.requests) == 5 + 3
    assert sum(isinstance(end, CallNotMade) for end in ended) == 7
