"""`assert_idempotent`: endpoints that keep the contract pass under every client, and each planted defect is named."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from fastapi import FastAPI
from flask import Flask, request
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from onefold import AsyncOnefold, Onefold, Transaction, single_principal
from onefold.db.sqlite import AsyncSqlite
from onefold.errors import ConfigurationError
from onefold.fastapi import Tx
from onefold.flask import current_transaction
from onefold.starlette import transaction_of
from onefold.testing.endpoint import ContractBroken, assert_idempotent

JSON = {"item": "book"}
INSERT = "INSERT INTO orders (item) VALUES (?)"


class Order(BaseModel):
    item: str


@pytest.fixture
def count(sqlite_path: Path) -> Callable[[], int]:
    def rows() -> int:
        with closing(sqlite3.connect(sqlite_path)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")
            [(found,)] = connection.execute("SELECT count(*) FROM orders")
            return int(found)

    rows()
    return rows


def fastapi_orders(once: AsyncOnefold) -> FastAPI:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent(required=True)
    async def place(order: Order, tx: Tx[AsyncSqlite]) -> dict[str, Any]:
        row = await tx.connection.execute(INSERT, (order.item,))
        return {"id": row.lastrowid}

    once.install(app)
    return app


def test_an_endpoint_of_fastapi_passes_under_the_test_client(sqlite_path: Path, count: Callable[[], int]) -> None:
    once = AsyncOnefold(sqlite_path, principal=single_principal)
    with TestClient(fastapi_orders(once)) as client:
        assert_idempotent(client, "POST", "/orders", json=JSON, once=once, count=count)
    assert count() == 4  # replay and mismatch, race, two crashes


async def test_an_endpoint_passes_under_httpx_on_postgres(postgres_dsn: str) -> None:
    once = AsyncOnefold(postgres_dsn, principal=single_principal)
    await once.migrate()
    async with once.transaction() as tx:
        await tx.connection.execute("CREATE TABLE orders (item text)")

    @once.idempotent(required=True)
    async def place(request: Request) -> JSONResponse:
        tx: Transaction[asyncpg.Connection[asyncpg.Record]] = transaction_of(request)
        await tx.connection.execute("INSERT INTO orders VALUES ($1)", (await request.json())["item"])
        return JSONResponse({"placed": True}, 201)

    async def rows() -> int:
        async with once.transaction() as tx:
            return int(await tx.connection.fetchval("SELECT count(*) FROM orders"))

    app = Starlette(routes=[Route("/orders", place, methods=["POST"])])
    once.install(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # a crash is 500, as a server answers
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        await assert_idempotent(client, "POST", "/orders", json=JSON, once=once, count=rows, racers=3)
    assert await rows() == 4
    await once.close()


@pytest.mark.parametrize("testing", [True, False])
def test_an_endpoint_of_flask_passes_under_its_client(
    sqlite_path: Path, count: Callable[[], int], testing: bool
) -> None:
    once = Onefold(sqlite_path, principal=single_principal)
    app = Flask(__name__)
    app.testing = testing  # has its client raise a crash, or answer 500

    @app.post("/orders")
    @once.idempotent(required=True)
    def place() -> tuple[dict[str, Any], int]:
        row = current_transaction().connection.execute(INSERT, (request.get_json()["item"],))
        return {"id": row.lastrowid}, 201

    once.install(app)
    assert_idempotent(app.test_client(), "POST", "/orders", json=JSON, once=once, count=count)
    assert count() == 4
    once.close()


# The controls: planted defects


class Naive:
    """An endpoint that remembers answers by key, as many do it, with one defect."""

    def __init__(self, defect: str, path: Path) -> None:
        self.defect, self.path = defect, path
        self.answers: dict[str, tuple[bytes, bytes]] = {}
        self.meeting = threading.Barrier(4)
        self.turns = nullcontext() if defect == "races" else threading.Lock()

    def answer(self, key: str, body: bytes) -> Response:
        with self.turns:
            return self._find_or_make(key, body)

    def _find_or_make(self, key: str, body: bytes) -> Response:
        if self.defect != "forgets" and key in self.answers:
            kept, stored = self.answers[key]
            if kept != body and self.defect != "mixes up":
                return Response(status_code=422)
            return Response(stored, 201, {"Idempotent-Replayed": "true"})
        if self.defect == "fails later" and len(self.answers) == 2:
            return Response(status_code=500)
        if self.defect == "races" and len(self.answers) == 1:
            self.meeting.wait(60)
        with closing(sqlite3.connect(self.path)) as connection:
            row = connection.execute(INSERT, ("book",))
            connection.commit()
        stored = f'{{"id": {row.lastrowid}}}'.encode()
        self.answers[key] = body, stored
        return Response(stored, 201)


@pytest.fixture
def naive(sqlite_path: Path) -> Callable[[str], TestClient]:
    def make(defect: str) -> TestClient:
        endpoint = Naive(defect, sqlite_path)

        async def place(request: Request) -> Response:
            body = await request.body()
            return await run_in_threadpool(endpoint.answer, request.headers["idempotency-key"], body)

        return TestClient(Starlette(routes=[Route("/orders", place, methods=["POST"])]))

    return make


@pytest.mark.parametrize(
    ("defect", "said"),
    [
        ("forgets", "replay: expected the stored answer"),
        ("mixes up", "mismatch: expected 422"),
        ("races", "race: 4 of 4 requests under one key ran, and one must"),
        ("", "crash before COMMIT: the request was answered, 201"),
        ("fails later", "crash before COMMIT: the request was answered, 500"),
    ],
)
def test_control_a_defect_is_found_in_the_part_that_it_breaks(
    naive: Callable[[str], TestClient], sqlite_path: Path, count: Callable[[], int], defect: str, said: str
) -> None:
    once = Onefold(sqlite_path)
    with naive(defect) as client, pytest.raises(ContractBroken) as broken:
        assert_idempotent(client, "POST", "/orders", json=JSON, once=once, count=count)
    assert str(broken.value).startswith(said)
    once.close()


def test_an_endpoint_that_runs_again_may_not_be_marked(
    naive: Callable[[str], TestClient], sqlite_path: Path, count: Callable[[], int]
) -> None:
    once = Onefold(sqlite_path)
    with naive("forgets") as client, pytest.raises(ContractBroken, match=r"is the endpoint marked, as `@once.idempo"):
        assert_idempotent(client, "POST", "/orders", json=JSON, once=once, count=count)
    once.close()


def test_control_a_write_beside_the_transaction_is_found_by_its_count(sqlite_path: Path, tmp_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, principal=single_principal)
    written: list[str] = []
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent(required=True, writes=False)
    async def place(order: Order, tx: Tx[AsyncSqlite]) -> dict[str, Any]:
        written.append(order.item)  # is not taken back by a rollback
        return {"placed": True}

    once.install(app)
    with TestClient(app) as client, pytest.raises(ContractBroken, match="crash before COMMIT: the effect happened 2"):
        assert_idempotent(client, "POST", "/orders", json=JSON, once=once, count=lambda: len(written))


def test_a_row_under_a_business_key_wants_another_payload_for_each_part(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, principal=single_principal)
    with once.transaction() as tx:
        tx.connection.execute("CREATE TABLE invoices (number TEXT PRIMARY KEY)")
    app = Flask(__name__)

    @app.post("/invoices")
    @once.idempotent(required=True)
    def issue() -> tuple[dict[str, bool], int]:
        issued = current_transaction().insert_once("invoices", {"number": request.json["number"]}, on="number")
        return {"created": issued.created}, 201

    once.install(app)

    def invoices() -> int:
        with once.transaction() as tx:
            return int(tx.connection.execute("SELECT count(*) FROM invoices").fetchone()[0])

    said = "race: the effect happened 0 times.*does `count` look where.*business key.*give `json` a function"
    with pytest.raises(ContractBroken, match=said):
        assert_idempotent(app.test_client(), "POST", "/invoices", json={"number": "I-0"}, once=once, count=invoices)
    numbers = (f"I-{number}" for number in range(1, 100))
    assert_idempotent(
        app.test_client(), "POST", "/invoices", json=lambda: {"number": next(numbers)}, once=once, count=invoices
    )
    assert invoices() == 1 + 4  # the first request, the race and two crashes
    once.close()


def cancellations(once: Onefold, refusal: int) -> Flask:
    with once.transaction() as tx:
        tx.connection.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, state TEXT)")
    app = Flask(__name__)

    @app.post("/orders/<int:number>/cancellation")
    @once.idempotent(required=True)
    def cancel(number: int) -> tuple[dict[str, int], int]:
        change = "UPDATE orders SET state = 'cancelled' WHERE number = ? AND state = 'open'"
        if current_transaction().connection.execute(change, (number,)).rowcount == 0:
            return {"not open": number}, refusal
        return {"cancelled": number}, 200

    once.install(app)
    return app


@pytest.mark.parametrize("refusal", [404, 409])
def test_a_change_of_state_wants_another_path_for_each_part(sqlite_path: Path, refusal: int) -> None:
    once = Onefold(sqlite_path, principal=single_principal)
    client = cancellations(once, refusal).test_client()
    numbers = iter(range(100))

    def path() -> str:
        number = next(numbers)
        with once.transaction() as tx:
            tx.connection.execute("INSERT INTO orders VALUES (?, 'open')", (number,))
        return f"/orders/{number}/cancellation"

    def cancelled() -> int:
        with once.transaction() as tx:
            [(found,)] = tx.connection.execute("SELECT count(*) FROM orders WHERE state = 'cancelled'")
            return int(found)

    with pytest.raises(ContractBroken, match=r"(?s)race: .*; where .* give `path` or `json` a function"):
        assert_idempotent(client, "POST", path(), once=once, count=cancelled)
    assert_idempotent(client, "POST", path, once=once, count=cancelled)
    assert (cancelled(), next(numbers)) == (1 + 4, 1 + 4)  # the first request, the race and two crashes
    once.close()


def test_a_client_of_another_kind_is_refused(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path)
    with pytest.raises(ConfigurationError, match="client is a dict: give a test client of Starlette"):
        assert_idempotent({}, "POST", "/orders", once=once)
    once.close()
