"""Problem documents are read within their attempt, up to a limit: none may cost memory, time, or an odd exception."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from pathlib import Path

import pytest

import onefold
from onefold import Retrying, RetryPolicy
from onefold._client import outgoing_request
from onefold._client.journal.queries import counts
from onefold._client.outgoing_request import UNSIZED_BYTES_MAX
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.testing.scripted_server import Act, Chunks, Reply, ScriptedServer
from tests.client.http.clients import Kind, only
from tests.client.http.test_bodies import collected

PROBLEM = {"Content-Type": "application/problem+json"}
PACKED = {**PROBLEM, "Content-Encoding": "gzip"}

IN_FLIGHT = json.dumps({"type": "urn:onefold:problem:key-in-flight"}).encode()


def refusal(retryable: object, **more: object) -> bytes:
    """As a server of onefold writes it."""
    return json.dumps({"type": "urn:onefold:problem:x", "status": 503, "retryable": retryable, **more}).encode()


NEVER = refusal(False)

DEEP = b"[" * 100_000


async def test_a_long_problem_is_handed_on_while_it_arrives(kind: Kind, patient: RetryPolicy) -> None:
    gate = threading.Event()
    start = b"x" * (UNSIZED_BYTES_MAX + 1)
    with ScriptedServer([Chunks((start, b"last"), gate, PROBLEM, 409)]) as server:
        async with asyncio.timeout(60), kind.opened(Retrying(patient, generate_keys=True)) as caller:
            pieces = caller.pieces(server.url)
            found = b""
            while len(found) < len(start):
                found += await anext(pieces)
            gate.set()
            assert found + await collected(pieces) == start + b"last"


@pytest.mark.parametrize(
    "act",
    [
        Reply(409, IN_FLIGHT, PROBLEM),
        Chunks((IN_FLIGHT[:10], IN_FLIGHT[10:]), headers=PROBLEM, status=409),
        Reply(409, gzip.compress(IN_FLIGHT), PACKED),
        Chunks((gzip.compress(IN_FLIGHT),), headers=PACKED, status=409),
    ],
    ids=["whole", "chunks", "packed", "packed chunks"],
)
async def test_a_short_problem_decides_however_it_arrives(kind: Kind, patient: RetryPolicy, act: Act) -> None:
    with ScriptedServer([act, Reply(201, b"done")]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send("POST", server.url, json={})
    assert (reply.status, reply.body) == (201, b"done")


@pytest.mark.parametrize(
    "act",
    [
        Reply(503, NEVER, PROBLEM),
        Reply(503, NEVER, {**PROBLEM, "Retry-After": "1"}),
        Chunks((NEVER[:10], NEVER[10:]), headers=PROBLEM, status=500),
        Reply(429, gzip.compress(NEVER), PACKED),
        Reply(409, json.dumps({**json.loads(IN_FLIGHT), "retryable": False}).encode(), PROBLEM),
    ],
    ids=["whole", "with Retry-After", "chunks", "packed", "in flight"],
)
async def test_a_problem_that_no_retry_can_help_is_handed_on(kind: Kind, patient: RetryPolicy, act: Act) -> None:
    with ScriptedServer([act]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send("POST", server.url, json={})
    assert reply.status in (409, 429, 500, 503)
    assert len(server.requests) == 1
    assert reply.report is not None
    assert (reply.report.attempts, reply.report.reason) == (1, None)


@pytest.mark.parametrize(
    "act",
    [
        Reply(503, refusal(True), PROBLEM),
        Reply(503, refusal("false"), PROBLEM),
        Reply(503, refusal(0), PROBLEM),
        Reply(503, b'{"type": "about:blank"}', PROBLEM),
        Reply(503, b"[false]", PROBLEM),
        Reply(503, NEVER, {"Content-Type": "application/json"}),
        Reply(503, NEVER, {**PROBLEM, "Stripe-Should-Retry": "true"}),
    ],
    ids=["true", "text", "a number", "absent", "a list", "other JSON", "a header says so"],
)
async def test_any_other_problem_is_tried_again(kind: Kind, patient: RetryPolicy, act: Act) -> None:
    with ScriptedServer([act, Reply(200, b"done")]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            assert (await caller.send("GET", server.url)).body == b"done"
    assert len(server.requests) == 2


@only(lambda kind: kind.name != "requests")  # which has read it, because its caller wants it whole
async def test_a_problem_that_is_too_long_to_be_read_is_tried_again(kind: Kind, patient: RetryPolicy) -> None:
    long = Chunks((refusal(False, detail="x" * UNSIZED_BYTES_MAX),), headers=PROBLEM, status=503)
    with ScriptedServer([long, Reply(200, b"done")]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            assert (await caller.send("GET", server.url)).body == b"done"


async def test_an_intent_stays_open_where_the_server_cannot_do_it_for_now(
    kind: Kind, patient: RetryPolicy, tmp_path: Path
) -> None:
    """As a server answers whose operator has to migrate its database first: nobody knows the end of this call."""
    retrying = Retrying(patient, journal=tmp_path / "journal.db")
    with ScriptedServer([Reply(503, NEVER, PROBLEM), Reply(201)]) as server:
        async with kind.opened(retrying) as caller:
            for status, still_open in ((503, 1), (201, 0)):
                with onefold.intent("pay:1"):
                    assert (await caller.send("POST", server.url)).status == status
                found = run(counts("sqlite"), ThreadExecutor(retrying._store.threads))
                assert (found.unresolved, found.resolved) == (still_open, 1 - still_open)
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1
    await retrying.aclose()


@pytest.mark.parametrize(
    "act",
    [
        Reply(409, DEEP, PROBLEM),
        Chunks((DEEP[:60_000],), headers=PROBLEM, status=409),
        Reply(409, b"\xff\xfe", PROBLEM),
    ],
    ids=["deep", "deep chunks", "no text"],
)
async def test_a_problem_that_cannot_be_read_is_an_answer_like_any_other(
    kind: Kind, patient: RetryPolicy, act: Act
) -> None:
    with ScriptedServer([act]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send("POST", server.url, json={})
    assert reply.status == 409
    assert reply.report is not None
    assert reply.report.attempts == 1


def test_no_problem_leads_its_reader_to_the_end_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an object that the garbage collector frees there cannot run its own end, and leaves a socket open."""
    read: list[int] = []
    monkeypatch.setattr(json, "loads", lambda body: read.append(len(body)))
    for depth in (150, 250, 100_000):
        outgoing_request._members(b"[" * depth)
    assert read == [150]
