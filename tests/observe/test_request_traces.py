"""The spans of requests: what each outcome says, whose child a span is, and what a replay is linked to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Response
from fastapi.testclient import TestClient
from flask import Flask
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from onefold import AsyncOnefold, Keyring, Onefold, single_principal
from onefold.fastapi import Tx
from onefold.telemetry import hash_key
from tests.observe.traced import Traced

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01"
KEY = "order-1"
ASK = {"Idempotency-Key": KEY}


def make_app(path: Path, traced: Traced, **settings: Any) -> FastAPI:
    once = AsyncOnefold(path, source="shop", principal=single_principal, listener=traced.listener, **settings)
    app = FastAPI()

    @app.post("/payments/{account}", status_code=201)
    @once.idempotent()
    async def pay(account: str, amount: int, tx: Tx[Any]) -> dict[str, str]:
        if amount == 13:
            raise RuntimeError("secret text")
        await tx.publish("paid", {"account": account})
        return {"paid": account}

    @app.post("/broken")
    @once.idempotent()
    async def fail_with_status() -> Response:
        return Response(status_code=502)

    once.install(app)
    return app


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture
def client(tmp_path: Path, traced: Traced) -> Iterator[TestClient]:
    with TestClient(make_app(tmp_path / "shop.db", traced), raise_server_exceptions=False) as client:
        yield client


def pay(client: TestClient, amount: int = 1, **headers: Any) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"/payments/acme?amount={amount}", headers={**ASK, **named})


def test_a_request_that_runs_is_the_servers_span_below_its_callers(client: TestClient, traced: Traced) -> None:
    assert pay(client, traceparent=PARENT, x_correlation_id="case-7").status_code == 201
    [span] = traced.named("POST /payments/{account}")
    assert (span.kind, span.trace, span.parent, span.failed) == ("server", TRACE, CALLER, False)
    assert span.attributes == {
        "onefold.operation": "POST /payments/{account}",
        "onefold.key.hash": hash_key(KEY),
        "onefold.correlation_id": "case-7",
        "onefold.outcome": "run",
        "onefold.end": "stored",
        "http.request.method": "POST",
        "http.route": "/payments/{account}",
        "http.response.status_code": 201,
        "url.scheme": "http",
    }


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_a_replay_is_linked_to_the_span_that_ran(tmp_path: Path, traced: Traced, sealed: bool) -> None:
    sealer = Keyring({"now": b"k" * 32}, write="now") if sealed else None
    with TestClient(make_app(tmp_path / "shop.db", traced, sealer=sealer)) as client:
        pay(client)
    # In another process, as it were: the context is read from the record.
    with TestClient(make_app(tmp_path / "shop.db", traced, sealer=sealer)) as client:
        assert pay(client).headers["idempotent-replayed"] == "true"
    run, replay = traced.named("POST /payments/{account}")
    assert (run["onefold.outcome"], replay["onefold.outcome"]) == ("run", "replay")
    assert run.trace != replay.trace
    assert replay.links == (run.context,)
    assert run["onefold.key.hash"] == replay["onefold.key.hash"]


def test_a_record_of_an_application_without_traces_is_replayed_without_a_link(tmp_path: Path, traced: Traced) -> None:
    silent = AsyncOnefold(tmp_path / "shop.db", principal=single_principal)
    app = FastAPI()

    @app.post("/payments/{account}", status_code=201)
    @silent.idempotent()
    async def pay_silently(account: str, amount: int) -> dict[str, str]:
        return {"paid": account}

    silent.install(app)
    with TestClient(app) as client:
        pay(client)
    with TestClient(make_app(tmp_path / "shop.db", traced)) as client:
        assert pay(client).headers["idempotent-replayed"] == "true"
    with TestClient(app) as client:  # and the other way round: what is stored beside the answer is not repeated
        assert "traceparent" not in pay(client).headers
    [replay] = traced.named("POST /payments/{account}")
    assert replay.links == ()


def test_an_answer_that_was_stored_with_its_span_is_replayed_as_it_was(client: TestClient) -> None:
    first, again = pay(client), pay(client)
    assert first.content == again.content
    assert set(again.headers) - set(first.headers) == {"idempotent-replayed"}


@pytest.mark.parametrize(
    ("amount", "status", "outcome", "end", "reason", "failed"),
    [(2, 422, "mismatch", None, None, False), (13, 500, "run", "released", "RuntimeError", True)],
)
def test_what_became_of_a_claim_is_told(
    client: TestClient, traced: Traced, amount: int, status: int, outcome: str, end: str, reason: str, failed: bool
) -> None:
    if outcome == "mismatch":
        pay(client)
    assert pay(client, amount).status_code == status
    span = traced.named("POST /payments/{account}")[-1]
    assert (span["onefold.outcome"], span["onefold.end"], span["onefold.reason"]) == (outcome, end, reason)
    assert span.failed is failed
    assert "secret text" not in repr(span)


def test_an_answer_of_5xx_is_a_failure_and_nothing_is_stored(client: TestClient, traced: Traced) -> None:
    client.post("/broken", headers=ASK)
    [span] = traced.named("POST /broken")
    assert (span["onefold.end"], span["onefold.reason"], span["error.type"]) == ("released", "status 502", "502")
    assert span.failed


def test_an_event_carries_the_span_that_published_it(client: TestClient, traced: Traced, tmp_path: Path) -> None:
    pay(client, traceparent=PARENT, tracestate="vendor=1", correlation_id="case-7")
    [request] = traced.named("POST /payments/{account}")
    [publish] = traced.named("publish paid")
    assert (publish.kind, publish.trace, publish.parent) == ("producer", TRACE, request.id)
    assert publish["messaging.operation.type"] == "create"
    assert publish["messaging.destination.name"] == "paid"
    assert publish["onefold.correlation_id"] == "case-7"
    [event] = Onefold(tmp_path / "shop.db")._database.acquire().fetch(_statement())
    assert f'"traceparent":"00-{TRACE}-{publish.id}-01"' in event[0].replace(" ", "")
    assert '"tracestate":"vendor=1"' in event[0].replace(" ", "")


def _statement() -> Any:
    from onefold._kernel.effects import Statement

    return Statement("SELECT headers FROM onefold_outbox")


@pytest.mark.parametrize(
    "hostile",
    [
        "garbage",
        "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        f"ff-{TRACE}-{CALLER}-01",
        f"00-{TRACE}-{CALLER}-01-more",
        "00-" + "a" * 70_000,
        "\u00e9" * 55,
        f"{PARENT},{PARENT}",
    ],
)
def test_a_traceparent_that_is_none_is_ignored(client: TestClient, traced: Traced, hostile: str) -> None:
    headers = [(b"Idempotency-Key", b"order-1"), (b"traceparent", hostile.encode()), (b"tracestate", b"=" * 9000)]
    assert client.post("/payments/acme?amount=1", headers=headers).status_code == 201
    [span] = traced.named("POST /payments/{account}")
    assert span.parent is None
    assert len(traced.named("publish paid")) == 1


def test_a_request_is_a_child_of_the_applications_own_instrumentation(tmp_path: Path, traced: Traced) -> None:
    app = make_app(tmp_path / "shop.db", traced)
    FastAPIInstrumentor.instrument_app(app, tracer_provider=traced.provider, exclude_spans=["receive", "send"])
    try:
        with TestClient(app) as client:
            pay(client, traceparent=PARENT)
            pay(client)
    finally:
        FastAPIInstrumentor.uninstrument_app(app)
    run, replay = traced.spans(onefold__key__hash=hash_key(KEY))
    theirs = {span.id: span for span in traced.spans() if span.kind == "server"}
    assert (run.name, run.kind, run.trace) == ("onefold POST /payments/{account}", "internal", TRACE)
    assert theirs[run.parent or ""].parent == CALLER
    assert replay.parent in theirs
    assert replay.links == (run.context,)
    assert len(theirs) == 2, "one server span for each request"


def test_an_unsampled_context_flows_on_and_no_span_is_exported(tmp_path: Path) -> None:
    traced = Traced(sampler=ParentBased(ALWAYS_OFF))
    with TestClient(make_app(tmp_path / "shop.db", traced)) as client:
        assert pay(client, traceparent=PARENT[:-1] + "0").status_code == 201
        pay(client)
    [event] = Onefold(tmp_path / "shop.db")._database.acquire().fetch(_statement())
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", json.loads(event[0])["traceparent"])
    assert traced.spans() == []


def test_wsgi_has_the_same_spans(tmp_path: Path, traced: Traced) -> None:
    once = Onefold(tmp_path / "shop.db", principal=single_principal, listener=traced.listener)
    app = Flask("shop")

    @app.post("/payments/<account>")
    @once.idempotent()
    def pay_here(account: str) -> dict[str, str]:
        return {"paid": account}

    once.install(app)
    for _ in range(2):
        app.test_client().post("/payments/acme", headers={**ASK, "traceparent": PARENT})
    run, replay = traced.spans()
    assert (run.kind, run.trace, run.parent) == ("server", TRACE, CALLER)
    assert (run["onefold.outcome"], run["onefold.end"]) == ("run", "stored")
    assert run["http.response.status_code"] == 200
    assert (replay["onefold.outcome"], replay.links) == ("replay", (run.context,))
