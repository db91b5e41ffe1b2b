"""The spans of clients: one for a call, one below it for each attempt, and what leaves with each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

from onefold import Retrying, RetryPolicy, intent
from onefold.clients import options
from onefold.errors import CallNotMade
from onefold.telemetry import hash_key
from onefold.testing.no_waiting import no_waiting
from onefold.testing.scripted_server import Act, Reply, Reset, ScriptedServer
from tests.observe.traced import SeenSpan, Traced

SCRIPT: Sequence[Act] = (Reply(503), Reset(), Reply(201))
KEY = "order-1"
ASK = {"Idempotency-Key": KEY}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def context_in(traceparent: str) -> tuple[str, str]:
    _, trace, span, _ = traceparent.split("-")
    return trace, span


def post_by_httpx(retrying: Retrying, url: str) -> None:
    with retrying.around(httpx.Client()) as client:
        client.post(f"{url}/secret-path?token=secret-token", content=b"secret-body", headers=ASK)


def post_by_requests(retrying: Retrying, url: str) -> None:
    with requests.Session() as session:
        retrying.around(session).post(f"{url}/secret-path?token=secret-token", data=b"secret-body", headers=ASK)


async def _post_by_async_httpx(retrying: Retrying, url: str) -> None:
    async with retrying.around(httpx.AsyncClient()) as client:
        await client.post(f"{url}/secret-path?token=secret-token", content=b"secret-body", headers=ASK)


async def _post_by_aiohttp(retrying: Retrying, url: str) -> None:
    async with aiohttp.ClientSession(middlewares=[retrying.middleware]) as session:
        await session.post(f"{url}/secret-path?token=secret-token", data=b"secret-body", headers=ASK)


def post_by_async_httpx(retrying: Retrying, url: str) -> None:
    asyncio.run(_post_by_async_httpx(retrying, url))


def post_by_aiohttp(retrying: Retrying, url: str) -> None:
    asyncio.run(_post_by_aiohttp(retrying, url))


@pytest.mark.parametrize("post", [post_by_httpx, post_by_async_httpx, post_by_requests, post_by_aiohttp])
def test_a_call_has_a_span_and_each_attempt_one_below_it(traced: Traced, post: Any) -> None:
    retrying = Retrying(RetryPolicy(attempts_max=3), listener=traced.listener)
    with no_waiting(), ScriptedServer(SCRIPT) as server:
        post(retrying, server.url)
        sent, port = [request.headers for request in server.requests], server.port
    call, *attempts = traced.spans()
    assert (call.name, call.kind, call.parent, call.failed) == ("onefold POST", "internal", None, False)
    assert (call["onefold.attempts"], call["http.response.status_code"]) == (3, 201)
    assert {span["onefold.key.hash"] for span in (call, *attempts)} == {hash_key(KEY)}
    assert [(span.name, span.kind, span.parent) for span in attempts] == [("POST", "client", call.id)] * 3
    assert [span["http.request.resend_count"] for span in attempts] == [None, 1, 2]
    assert [span["http.response.status_code"] for span in attempts] == [503, None, 201]
    assert [span.failed for span in attempts] == [True, True, False]
    assert attempts[0]["server.address"] == "127.0.0.1"
    assert attempts[0]["server.port"] == port
    # What leaves with an attempt is that attempt's own context.
    assert [context_in(headers["traceparent"]) for headers in sent] == [span.context for span in attempts]
    told = repr(traced.spans())
    assert "secret" not in told
    assert KEY not in told


def test_control_the_key_would_be_found_if_it_were_there(traced: Traced) -> None:
    traced.listener.begin_span("careless", attributes={"key": KEY}).end()
    assert KEY in repr(traced.spans())


def test_an_intent_is_named_and_its_calls_are_found_by_one_hash(traced: Traced, tmp_path: Path) -> None:
    retrying = Retrying(RetryPolicy(attempts_max=1), listener=traced.listener, journal=tmp_path / "journal.db")
    with ScriptedServer([Reply(503), Reply(201)]) as server, retrying.around(httpx.Client()) as client:
        for _ in range(2):  # the second as after a restart: another call, another trace, the same key
            with intent("pay:ord-42"):
                client.post(server.url)
    first, second = traced.named("onefold POST")
    assert first.trace != second.trace
    assert {span["onefold.intent"] for span in traced.spans()} == {"pay:ord-42"}
    found = traced.spans(onefold__key__hash=first["onefold.key.hash"])
    assert [span["http.response.status_code"] for span in found] == [503, 503, 201, 201]


def test_a_call_is_part_of_the_span_it_is_made_in(traced: Traced) -> None:
    tracer = traced.provider.get_tracer("application")
    retrying = Retrying(listener=traced.listener)
    with (
        ScriptedServer([Reply(200)]) as server,
        retrying.around(httpx.Client()) as client,
        tracer.start_as_current_span("checkout"),
    ):
        client.get(server.url)
    [outer] = traced.named("checkout")
    [call] = traced.named("onefold GET")
    assert (call.trace, call.parent) == (outer.trace, outer.id)


def test_instrumentation_of_httpx_is_below_each_attempt(traced: Traced) -> None:
    HTTPXClientInstrumentor().instrument(tracer_provider=traced.provider)
    try:
        with no_waiting(), ScriptedServer([Reply(503), Reply(201)]) as server:
            retrying = Retrying(listener=traced.listener)
            with retrying.around(httpx.Client()) as client:
                client.post(server.url, headers=ASK)
            sent = [request.headers["traceparent"] for request in server.requests]
    finally:
        HTTPXClientInstrumentor().uninstrument()
    ours = [span for span in traced.spans() if span["onefold.key.hash"] and span.kind == "client"]
    theirs = [span for span in traced.spans() if span.kind == "client" and span not in ours]
    assert [span.parent for span in theirs] == [span.id for span in ours]
    assert len({span.trace for span in traced.spans()}) == 1
    assert list(map(context_in, sent)) == [span.context for span in theirs]


def test_a_call_that_is_refused_before_it_leaves_has_no_attempt(traced: Traced) -> None:
    retrying = Retrying(listener=traced.listener)
    with retrying.around(httpx.Client()) as client, options(deadline_s=0), pytest.raises(CallNotMade):
        client.get("http://127.0.0.1:9/")
    [call] = traced.spans()
    assert call.failed
    assert call["onefold.attempts"] == 0


def attempts_of(traced: Traced) -> list[SeenSpan]:
    return traced.named("attempt ledger")


def test_functions_have_the_same_spans_on_threads(traced: Traced) -> None:
    calls = []

    def book(amount: int) -> str:
        calls.append(amount)
        if len(calls) < 3:
            raise ConnectionError("secret")
        return "booked"

    with no_waiting():
        assert Retrying(listener=traced.listener).calls("ledger", on=OSError)(book)(5) == "booked"
    check_function_spans(traced)


async def test_functions_have_the_same_spans_on_asyncio(traced: Traced) -> None:
    calls = []

    async def book(amount: int) -> str:
        calls.append(amount)
        await asyncio.sleep(0)
        if len(calls) < 3:
            raise ConnectionError("secret")
        return "booked"

    with no_waiting():
        assert await Retrying(listener=traced.listener).calls("ledger", on=OSError)(book)(5) == "booked"
    check_function_spans(traced)


def check_function_spans(traced: Traced) -> None:
    [call] = traced.named("onefold ledger")
    attempts = attempts_of(traced)
    assert [span.parent for span in attempts] == [call.id] * 3
    assert [span["onefold.attempt"] for span in attempts] == [1, 2, 3]
    assert [span.failed for span in (*attempts, call)] == [True, True, False, False]
    assert "secret" not in repr(traced.spans())
