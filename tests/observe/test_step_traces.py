"""The spans of recorded steps, of works without a request, and of requests that a completer goes on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, Onefold, Retrying, Transaction, single_principal
from onefold.db.sqlite import AsyncSqlite
from onefold.fastapi import Steps
from onefold.telemetry import hash_key
from onefold.testing.scripted_server import Reply, ScriptedServer
from tests.observe.traced import SeenSpan, Traced


@pytest.fixture
def traced() -> Traced:
    return Traced()


class Rides:
    """Rides whose card is charged by another service, which answers what its script says."""

    def __init__(self, path: Path, traced: Traced, charge_at: str) -> None:
        self.once = AsyncOnefold(path, source="rides", principal=single_principal, listener=traced.listener)
        self.app = FastAPI()
        retrying = Retrying(listener=traced.listener)

        async def write_down(tx: Transaction[AsyncSqlite]) -> int:
            await tx.publish("ride.created", {})
            return 1

        async def charge() -> int:
            async with retrying.around(httpx.AsyncClient()) as client:
                answer = await client.post(charge_at)
            return answer.raise_for_status().status_code

        async def mark_paid(tx: Transaction[AsyncSqlite]) -> None:
            await tx.publish("ride.paid", {})

        @self.app.post("/rides", status_code=201)
        @self.once.idempotent(required=True)
        async def create_ride(work: Steps) -> dict[str, int]:
            ride = await work.phase("create", write_down)
            await work.call("charge", charge)
            await work.finish(mark_paid)
            return {"ride": ride}

        self.once.install(self.app)

    async def post(self, **headers: str) -> int:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://rides") as client:
            return (await client.post("/rides", headers={"Idempotency-Key": "ride-1", **headers})).status_code

    async def make_due(self) -> None:
        async with self.once.transaction() as tx:
            await tx.connection.execute("UPDATE onefold_work SET due_at_ms = created_at_ms")


def names(spans: list[SeenSpan]) -> list[tuple[str, Any]]:
    return [(span.name, span["onefold.outcome"]) for span in spans]


async def test_steps_are_below_their_request_and_calls_below_their_step(sqlite_path: Path, traced: Traced) -> None:
    with ScriptedServer([Reply(200)]) as server:
        rides = Rides(sqlite_path, traced, server.url)
        assert await rides.post() == 201
        await rides.once.close()
    request, *steps = traced.spans()
    assert names(steps) == [
        ("phase create", "done"),
        ("publish ride.created", None),
        ("call charge", "done"),
        ("onefold POST", None),
        ("POST", None),
        ("finish", "done"),
        ("publish ride.paid", None),
    ]
    create, created, charge, call, _, finish, paid = steps
    assert [span.parent for span in (create, charge, finish)] == [request.id] * 3
    assert (created.parent, call.parent, paid.parent) == (create.id, charge.id, finish.id)
    assert call["onefold.key.hash"], "the step's own key"


async def test_the_completer_goes_on_in_the_trace_of_the_attempt_that_was_left(
    sqlite_path: Path, traced: Traced
) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with ScriptedServer([Reply(400), Reply(200)]) as server:
        rides = Rides(sqlite_path, traced, server.url)
        assert await rides.post(traceparent=parent) == 500
        await rides.make_due()
        completed = await rides.once.complete(abandoned_after_s=0)
        assert completed.completed == 1
        assert await rides.post() == 201
        await rides.once.close()
    left, resumed, replay = traced.spans(onefold__operation="POST /rides")
    assert (left["onefold.end"], left["onefold.completing"]) == ("released", None)
    assert (resumed["onefold.end"], resumed["onefold.completing"]) == ("stored", True)
    assert (resumed.trace, resumed.parent, resumed.links) == (left.trace, left.id, (left.context,))
    assert replay.links == (resumed.context,)
    below = [span for span in traced.spans() if span.parent == resumed.id]
    assert names(below) == [("phase create", "recorded"), ("call charge", "done"), ("finish", "done")]


async def test_a_work_is_found_by_its_name_across_its_blocks(sqlite_path: Path, traced: Traced) -> None:
    once = AsyncOnefold(sqlite_path, listener=traced.listener)

    async def note(tx: Transaction[AsyncSqlite]) -> None:
        """Nothing to write."""

    async def read(error: Exception | None = None) -> None:
        async with once.work("import:42") as work:
            await work.phase("read", note)
            if error is not None:
                raise error

    with pytest.raises(LookupError):
        await read(LookupError("secret"))
    for _ in range(2):
        await read()
    await once.close()
    blocks = traced.spans(onefold__key__hash=hash_key("import:42"))
    check_blocks(blocks)
    assert names([span for span in traced.spans() if span.name == "phase read"]) == [
        ("phase read", "done"),
        ("phase read", "recorded"),
        ("phase read", "recorded"),
    ]


def test_a_work_on_a_thread_has_the_same_spans(sqlite_path: Path, traced: Traced) -> None:
    once = Onefold(sqlite_path, listener=traced.listener)

    def note(tx: Transaction[Any]) -> None:
        """Nothing to write."""

    def read(error: Exception | None = None) -> None:
        with once.work("import:42") as work:
            work.phase("read", note)
            if error is not None:
                raise error

    with pytest.raises(LookupError):
        read(LookupError("secret"))
    for _ in range(2):
        read()
    once.close()
    check_blocks(traced.spans(onefold__key__hash=hash_key("import:42")))


def check_blocks(blocks: list[SeenSpan]) -> None:
    assert names(blocks) == [("onefold work", "run"), ("onefold work", "run"), ("onefold work", "replay")]
    assert [span["onefold.end"] for span in blocks] == ["released", "stored", "stored"]
    assert [span.failed for span in blocks] == [True, False, False]
    assert {span["onefold.intent"] for span in blocks} == {"import:42"}
    assert "secret" not in repr(blocks)
