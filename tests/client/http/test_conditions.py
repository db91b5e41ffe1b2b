"""What the user says about answers and errors: `retry_if`, with every client."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

import onefold
from onefold import HttpAnswer, Reason, Retrying, RetryPolicy
from onefold.errors import ConfigurationError
from onefold.testing.scripted import Answer, Chunks, Reset, ScriptedServer
from tests.client.http.clients import Kind, only

PENDING = Answer(200, b'{"state": "pending"}', {"Content-Type": "application/json"})
DONE = Answer(200, b'{"state": "done"}', {"Content-Type": "application/json"})
PACKED = Answer(
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
    with ScriptedServer([Answer(503), Answer(200)]) as server:
        async with kind.opened(Retrying(patient, retry_if=never)) as caller:
            assert (await caller.send("GET", server.url)).status == 503
    assert seen[1].status == 503


async def test_a_block_may_say_it_for_its_calls(kind: Kind, patient: RetryPolicy) -> None:
    def in_two_seconds(ended: HttpAnswer | Exception) -> float | None:
        return 2.0 if isinstance(ended, HttpAnswer) and ended.status == 404 else None

    events: list[Any] = []
    with ScriptedServer([Answer(404), Answer(200), Answer(404)]) as server:
        async with kind.opened(Retrying(patient, listener=events.append)) as caller:
            with onefold.options(retry_if=in_two_seconds):
                assert (await caller.send("GET", server.url)).status == 200
            assert (await caller.send("GET", server.url)).status == 404
    assert len(server.requests) == 3
    [waited] = [event.wait_s for event in events if hasattr(event, "wait_s")]
    assert waited >= 2


@only(lambda kind: kind.has_options)
async def test_a_request_may_say_it_for_itself(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Answer(404), Answer(200)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            reply = await caller.send("GET", server.url, options={"retry_if": lambda _: True, "attempts_max": 2})
    assert (reply.status, len(server.requests)) == (200, 2)


def test_a_condition_that_is_no_function_is_refused_where_it_is_written() -> None:
    wrong: Any = 503
    for write in (lambda: Retrying(retry_if=wrong), onefold.options(retry_if=wrong).__enter__):
        with pytest.raises(ConfigurationError, match="retry_if=503 must be a function"):
            write()
