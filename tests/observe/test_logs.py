"""Logs as JSON: the fields of a line, at a request and at a message, and what is never in one."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from onefold import AsyncOnefold, Message, Onefold, single_principal
from onefold._http.request import Request
from onefold._kernel.log_context import fields_here, log_extra
from onefold.telemetry import JsonFormatter, LogFields, hash_key, log_as_json
from onefold.testing.memory_broker import MemoryBroker
from tests.cli.commands import started
from tests.observe.traced import Traced

KEY = "secret-key"
SECRETS = ("secret-key", "secret-principal", "secret-body", "secret-data", "secret-event-key", "secret-header")

_application = logging.getLogger("shop")


class Lines:
    """What was logged, as JSON."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(JsonFormatter())

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def of(self, logger: str) -> list[dict[str, Any]]:
        return [line for line in self.all() if line["logger"] == logger]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logged, root = Lines(), logging.getLogger()
    root.addHandler(logged.handler)
    levels = {name: logging.getLogger(name).level for name in ("onefold", "shop")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.INFO)
    yield logged
    root.removeHandler(logged.handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def check_no_secret(text: str) -> None:
    found = [secret for secret in SECRETS if secret in text]
    assert not found, found


def make_shop(path: Path, **settings: Any) -> FastAPI:
    once = AsyncOnefold(path, source="shop", principal=lambda request: "secret-principal", **settings)
    app = FastAPI()

    @app.post("/orders/{kind}")
    @once.idempotent()
    async def order(kind: str, body: dict[str, str]) -> dict[str, str]:
        _application.info("ordering %s", kind)
        if kind == "broken":
            raise ValueError("out of stock")
        return body

    once.install(app)
    return app


def post(app: FastAPI, kind: str = "books") -> int:
    headers = {"Idempotency-Key": KEY, "X-Correlation-ID": "case-7", "X-Other": "secret-header"}
    with TestClient(app, raise_server_exceptions=False) as client:
        return client.post(f"/orders/{kind}", json={"card": "secret-body"}, headers=headers).status_code


def test_a_line_of_the_applications_own_has_the_fields_of_its_request(lines: Lines, tmp_path: Path) -> None:
    assert post(make_shop(tmp_path / "shop.db")) == 200
    [line] = lines.of("shop")
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "shop",
        "message": "ordering books",
        "operation": "POST /orders/{kind}",
        "key_hash": hash_key(KEY),
        "correlation_id": "case-7",
    }
    assert fields_here() == {}, "after the request there are none"
    check_no_secret(lines.text)


def test_a_line_in_a_span_has_its_ids(lines: Lines, tmp_path: Path) -> None:
    traced = Traced()
    post(make_shop(tmp_path / "shop.db", listener=traced.listener))
    [span] = traced.named("POST /orders/{kind}")
    [line] = lines.of("shop")
    assert (line["trace_id"], line["span_id"]) == span.context


def test_a_request_that_fails_in_its_claim_is_logged_with_its_fields(lines: Lines, tmp_path: Path) -> None:
    app = make_shop(tmp_path / "shop.db")
    with Onefold(tmp_path / "shop.db").transaction() as tx:
        tx.connection.execute("DROP TABLE onefold_record")
    assert post(app) >= 500
    [line] = [line for line in lines.of("onefold.requests") if line["level"] == "ERROR"]
    assert (line["event"], line["operation"]) == ("request.failed", "POST /orders/{kind}")
    assert (line["key_hash"], line["correlation_id"]) == (hash_key(KEY), "case-7")
    check_no_secret(lines.text)


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_an_outage_of_the_database_is_a_line_for_each_request_and_tracebacks_are_for_debugging(
    lines: Lines, level: int
) -> None:
    """They tell where in onefold it was noticed: a hundred lines, for each of thousands of requests."""
    logging.getLogger("onefold").setLevel(level)
    app = FastAPI()
    once = AsyncOnefold("postgresql://nobody@127.0.0.1:1/none", principal=single_principal)

    @app.post("/orders")
    @once.idempotent(required=True)
    async def order() -> None: ...

    once.install(app)
    with TestClient(app) as client:
        assert client.post("/orders", headers={"idempotency-key": KEY}).status_code == 503
    [line] = [line for line in lines.of("onefold.requests") if line["level"] == "ERROR"]
    assert "no connection to Postgres" in line["message"]
    assert ("exception" in line) is (level == logging.DEBUG)


def test_control_a_secret_that_is_logged_is_found(lines: Lines) -> None:
    _application.info("the body is %s", {"card": "secret-body"})
    with pytest.raises(AssertionError, match="secret-body"):
        check_no_secret(lines.text)


def test_a_key_that_cannot_be_read_has_no_hash(tmp_path: Path) -> None:
    once = AsyncOnefold(tmp_path / "shop.db", principal=single_principal)
    guard = once._layer._guard
    request = Request("POST", "/", headers=((b"idempotency-key", b""),))
    assert guard._named_key(request) is None
    assert guard._named_key(Request("POST", "/")) is None


def test_an_exception_is_one_field_of_one_line(lines: Lines) -> None:
    try:
        raise LookupError("gone\nfor good")
    except LookupError:
        _application.exception("a line\nand another", extra=log_extra("thing.lost", work="42"))
    [line] = lines.all()
    assert (line["message"], line["event"], line["work"]) == ("a line\nand another", "thing.lost", "42")
    assert line["exception"].endswith("LookupError: gone\nfor good")


def test_a_format_of_ones_own_has_the_fields_too(tmp_path: Path) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("[%(correlation_id)s|%(consumer)s] %(message)s"))
    handler.addFilter(LogFields())
    _application.addHandler(handler)
    _application.setLevel(logging.INFO)
    try:
        post(make_shop(tmp_path / "shop.db"))
    finally:
        _application.removeHandler(handler)
        _application.setLevel(logging.NOTSET)
    assert stream.getvalue() == "[case-7|] ordering books\n"


def test_one_line_has_an_application_log_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # basicConfig closes those that it takes off, and these are pytest's
    try:
        log_as_json("WARNING")
        _application.warning("ready")
        _application.info("not told")
    finally:
        root.handlers = handlers
        root.setLevel(level)
    assert json.loads(capsys.readouterr().err)["message"] == "ready"


WORKER = """
import logging

from onefold import AsyncOnefold, Message

once = AsyncOnefold("shop.db", source="shop")
logging.basicConfig(format="%(message)s")


@once.consumer("stock", topic="ordered", attempts=1)
async def take(message: Message) -> None:
    logging.getLogger("shop").warning("taking")
    raise LookupError("out of stock")
"""


def test_workers_write_nothing_but_json_to_stderr_where_they_are_asked_to(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    once = Onefold(tmp_path / "shop.db", source="shop")
    with once.transaction() as tx:
        _ = tx.publish("ordered", {"card": "secret-data"}, key="secret-event-key", headers={"correlation-id": "case-7"})
    once.close()
    words = ("worker:once", "--log-format", "json")
    with started("consume", *words, cwd=tmp_path) as consumer:
        consumer.until_said("consuming from")
        with started("relay", *words, cwd=tmp_path) as relay:
            consumer.until_said("message.dead")
    told = [json.loads(line) for line in consumer.said.splitlines()]
    [own] = [line for line in told if line["logger"] == "shop"]
    [dead] = [line for line in told if line.get("event") == "message.dead"]
    for line in (own, dead):
        assert (line["consumer"], line["topic"]) == ("stock", "ordered")
    assert own["message_id"] == dead["message_id"]
    assert (own["correlation_id"], own["attempt"], own["message"]) == ("case-7", 1, "taking")
    assert dead["level"] == "ERROR"
    relayed = [json.loads(line) for line in relay.said.splitlines()]
    assert any("buckets" in line["message"] for line in relayed)
    check_no_secret(consumer.said + relay.said)


def test_a_plain_handler_has_the_fields_of_its_message(lines: Lines, tmp_path: Path) -> None:
    traced = Traced()
    once = Onefold(tmp_path / "shop.db", source="shop", listener=traced.listener)

    @once.consumer("stock", topic="ordered")
    def take(message: Message) -> None:
        _application.info("taking")

    MemoryBroker(once).publish("ordered", {"card": "secret-data"}, message_id="m1", key="secret-event-key")
    once.close()
    [line] = lines.of("shop")
    [span] = traced.named("process ordered")
    assert (line["consumer"], line["topic"], line["message_id"], line["attempt"]) == ("stock", "ordered", "m1", 1)
    assert (line["trace_id"], line["span_id"]) == span.context
    check_no_secret(lines.text)
