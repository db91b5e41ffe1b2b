"""Problem documents are read within their attempt, up to a limit: none may cost memory, time, or an odd exception."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading

import pytest

from onefold import Retrying, RetryPolicy
from onefold.client.wire import UNSIZED_BYTES_MAX
from onefold.testing.scripted import Act, Answer, Chunks, ScriptedServer
from tests.client.http.clients import Kind
from tests.client.http.test_bodies import collected

PROBLEM = {"Content-Type": "application/problem+json"}
PACKED = {**PROBLEM, "Content-Encoding": "gzip"}

IN_FLIGHT = json.dumps({"type": "urn:onefold:problem:key-in-flight"}).encode()

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
        Answer(409, IN_FLIGHT, PROBLEM),
        Chunks((IN_FLIGHT[:10], IN_FLIGHT[10:]), headers=PROBLEM, status=409),
        Answer(409, gzip.compress(IN_FLIGHT), PACKED),
        Chunks((gzip.compress(IN_FLIGHT),), headers=PACKED, status=409),
    ],
    ids=["whole", "chunks", "packed", "packed chunks"],
)
async def test_a_short_problem_decides_however_it_arrives(kind: Kind, patient: RetryPolicy, act: Act) -> None:
    with ScriptedServer([act, Answer(201, b"done")]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send("POST", server.url, json={})
    assert (reply.status, reply.body) == (201, b"done")


@pytest.mark.parametrize(
    "act",
    [
        Answer(409, DEEP, PROBLEM),
        Chunks((DEEP[:60_000],), headers=PROBLEM, status=409),
        Answer(409, b"\xff\xfe", PROBLEM),
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
