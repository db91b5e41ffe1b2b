"""What the user says about answers and errors: `retry_if`, with every client."""

from __future__ import annotations

import asyncio
import gzip
import re
from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any

import pytest
import requests

import onefold
from onefold import Retrying, RetryPolicy
from onefold.clients import BreakerConfig, HttpAnswer, Reason, options, report_of
from onefold.errors import CallNotMade, ConfigurationError
from onefold.telemetry import CallEnded
from onefold.testing.scripted_server import Act, Chunks, Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind, only

PENDING = Reply(200, b'{"state": "pending"}', {"Content-Type": "application/json"})
DONE = Reply(200, b'{"state": "done"}', {"Content-Type": "application/json"})
PACKED = Reply(
    200, gzip.compress(b'{"state": "pending"}'), {"Content-Type": "application/json", "Content-Encoding": "gzip"}
)


def pending(ended: HttpAnswer | Exception) -> bool | None:
    if isinstance(ended, HttpAnswer) and (ended.header("content-type") or "").startswith("application/json"):
        return (ended.json() or {}).get("state") == "pending" or None
    return None


async def test_an_answer_that_is_not_the_one_wanted_is_asked_for_again(kind: Kind, patient: RetryPolicy) -> None:
    chunks = Chunks((b'{"state": ', b'"pending"}'), headers={"Content-Type": "application/json"})
    with ScriptedServer([PENDING, PACKED, chunks, DONE]) as server:
        async with kind.opened(Retrying(patient, retry_if=pending)) as caller:
            reply = await caller.send("GET", server.url)
    assert (reply.status, reply.body) == (200, DONE.body)
    assert reply.report is not None
    assert (reply.report.attempts, reply.report.reason) == (4, None)


async def test_the_last_answer_is_handed_on_where_no_attempt_is_left(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([PENDING]) as server:
        async with kind.opened(Retrying(patient, retry_if=pending)) as caller:
            reply = await caller.send("GET", server.url)
    assert (reply.status, reply.body, len(server.requests)) == (200, PENDING.body, 4)
    assert reply.report is not None
    assert reply.report.reason is Reason.ATTEMPTS


async def test_a_write_without_a_key_is_not_repeated_whatever_is_said(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([PENDING]) as server:
        async with kind.opened(Retrying(patient, retry_if=lambda _: True)) as caller:
            reply = await caller.send("POST", server.url, content=b"x")
    assert (reply.status, len(server.requests)) == (200, 1)
    assert reply.report is not None
    assert reply.report.reason is Reason.NO_KEY


async def test_an_error_may_be_final_or_worth_another_attempt(kind: Kind, patient: RetryPolicy) -> None:
    seen: list[Any] = []

    def never(ended: HttpAnswer | Exception) -> bool:
        seen.append(ended)
        return False

    with ScriptedServer([Reset()]) as server:
        async with kind.opened(Retrying(patient, retry_if=never)) as caller:
            [raised] = await asyncio.gather(caller.send("GET", server.url), return_exceptions=True)
    assert (len(server.requests), len(seen)) == (1, 1)
    assert isinstance(seen[0], Exception)
    assert type(raised) is type(seen[0])
    with ScriptedServer([Reply(503), Reply(200)]) as server:
        async with kind.opened(Retrying(patient, retry_if=never)) as caller:
            assert (await caller.send("GET", server.url)).status == 503
    assert seen[1].status == 503


async def test_an_error_that_is_final_is_a_failure_of_the_host_all_the_same(kind: Kind) -> None:
    events: list[Any] = []
    retrying = Retrying(RetryPolicy(budget=None), retry_if=lambda ended: False, listener=events.append)
    with ScriptedServer([Reset()]) as server:
        async with kind.opened(retrying) as caller:
            errors = [
                (await asyncio.gather(caller.send("GET", server.url), return_exceptions=True))[0] for _ in range(6)
            ]
    assert len(server.requests) == 5
    assert isinstance(errors[5], CallNotMade)
    report = report_of(errors[0])
    assert report is not None
    assert (report.attempts, report.reason) == (1, Reason.FINAL)
    assert len([event for event in events if isinstance(event, CallEnded)]) == 6


async def test_a_block_may_say_it_for_its_calls(kind: Kind, patient: RetryPolicy) -> None:
    def in_two_seconds(ended: HttpAnswer | Exception) -> float | None:
        return 2.0 if isinstance(ended, HttpAnswer) and ended.status == 404 else None

    events: list[Any] = []
    with ScriptedServer([Reply(404), Reply(200), Reply(404)]) as server:
        async with kind.opened(Retrying(patient, listener=events.append)) as caller:
            with options(retry_if=in_two_seconds):
                assert (await caller.send("GET", server.url)).status == 200
            assert (await caller.send("GET", server.url)).status == 404
    assert len(server.requests) == 3
    [waited] = [event.wait_s for event in events if hasattr(event, "wait_s")]
    assert waited >= 2


async def test_seconds_leave_an_error_what_it_is(kind: Kind, patient: RetryPolicy, closed_port: int) -> None:
    """Also a POST without a key is tried again where no byte of it has left, and only there."""
    events: list[Any] = []
    retrying = Retrying(patient, retry_if=lambda _: 2.0, listener=events.append)
    async with kind.opened(retrying) as caller:
        with pytest.raises(kind.no_connection) as raised:
            await caller.send("POST", f"http://127.0.0.1:{closed_port}", content=b"x")
        report = report_of(raised.value)
        assert report is not None
        assert (report.attempts, report.reason) == (4, Reason.ATTEMPTS)
        assert [event.wait_s >= 2 for event in events if hasattr(event, "wait_s")] == [True] * 3
        with ScriptedServer([Reset()]) as server:
            [error] = await asyncio.gather(caller.send("POST", server.url, content=b"x"), return_exceptions=True)
        assert len(server.requests) == 1
        report = report_of(error)
        assert report is not None
        assert report.reason is Reason.NO_KEY


async def test_an_error_that_is_tried_again_in_so_many_seconds_counts_against_the_host(
    kind: Kind, closed_port: int
) -> None:
    policy = RetryPolicy(attempts_max=2, budget=None, breaker=BreakerConfig(calls_least=2))
    async with kind.opened(Retrying(policy, retry_if=lambda _: 0.0)) as caller:
        for _ in range(3):
            with pytest.raises(kind.no_connection) as raised:
                await caller.send("GET", f"http://127.0.0.1:{closed_port}")
    assert isinstance(raised.value, CallNotMade), "the breaker is open"


NO_SECONDS: tuple[Any, ...] = (nan, inf, -inf, -0.5, -1, "2", b"", [3], timedelta(seconds=1), 2j)


@pytest.mark.parametrize("act", [Reply(503, b"busy"), Reset()], ids=["answer", "error"])
async def test_what_is_no_number_of_seconds_is_refused_by_name_and_value(
    kind: Kind, patient: RetryPolicy, act: Act
) -> None:
    wrong: Any = None

    def soon(ended: object) -> Any:
        return wrong

    with ScriptedServer([*[act] * len(NO_SECONDS), Reply(200)]) as server:
        async with kind.opened(Retrying(patient, retry_if=soon), connections_max=1) as caller:
            for wrong in NO_SECONDS:
                with pytest.raises(ConfigurationError, match=rf"retry_if: .*soon returned {re.escape(repr(wrong))}, "):
                    await caller.send("GET", server.url)
            wrong = None
            assert (await caller.send("GET", server.url)).status == 200, "the connection is free again"
    assert len(server.requests) == len(NO_SECONDS) + 1


@pytest.mark.parametrize("far", [1e300, 10**400], ids=["float", "int"])
async def test_more_seconds_than_anybody_waits_are_ten_years(kind: Kind, patient: RetryPolicy, far: float) -> None:
    with ScriptedServer([Reply(503)]) as server:
        async with kind.opened(Retrying(patient, retry_if=lambda _: far)) as caller:
            reply = await caller.send("GET", server.url)
    assert reply.report is not None
    assert reply.report.reason is Reason.RETRY_AFTER
    assert reply.report.retry_at is not None
    assert timedelta(days=3650) < reply.report.retry_at - datetime.now(UTC) < timedelta(days=3670)


@only(lambda kind: kind.has_options)
async def test_a_request_may_say_it_for_itself(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(404), Reply(200)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            reply = await caller.send("GET", server.url, options={"retry_if": lambda _: True, "attempts_max": 2})
    assert (reply.status, len(server.requests)) == (200, 2)


def test_a_condition_that_is_no_function_is_refused_where_it_is_written() -> None:
    wrong: Any = 503
    for write in (lambda: Retrying(retry_if=wrong), options(retry_if=wrong).__enter__):
        with pytest.raises(ConfigurationError, match="retry_if=503 must be a function"):
            write()


async def test_a_condition_that_would_have_to_be_awaited_is_refused(patient: RetryPolicy) -> None:
    async def wrong(ended: object) -> bool:
        return True

    given: Any = wrong
    hidden: Any = lambda ended: wrong(ended)  # noqa: E731
    with pytest.raises(ConfigurationError, match="wrong is a coroutine function"):
        Retrying(retry_if=given)
    with pytest.raises(ConfigurationError, match="wrong is a coroutine function"):
        Retrying().calls("ledger", on=OSError, retry_if=given)
    session = onefold.retrying(requests.Session(), retry_if=hidden)
    refused = pytest.raises(ConfigurationError, match="returned <coroutine")
    with ScriptedServer([Reply(503)]) as server, session, refused:
        session.get(server.url)
