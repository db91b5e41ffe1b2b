"""Natural writes wherever there is a transaction: requests of both colours, messages, steps, and strict levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold import AsyncOnefold, InsertOutcome, Onefold, single_principal
from onefold.errors import SerializationFailed, StoreBusy
from onefold.fastapi import Tx
from onefold.flask import current_transaction
from tests.natural.stages import address_for, look, refused


def place(tx: Any) -> Any:
    return tx.insert_once("orders", {"id": "o1", "status": "paid"}, on="id")


def ship(tx: Any) -> Any:
    return tx.transition("orders", where={"id": "o1"}, state="status", come_from="paid", to="shipped")


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_in_a_request_of_fastapi(request: pytest.FixtureRequest, database: str) -> None:
    address = address_for(request, database)
    once = AsyncOnefold(address, principal=single_principal)
    await once.migrate()
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent()
    async def order(tx: Tx[Any]) -> dict[str, Any]:
        async with tx.exclusive("orders", "o1"):
            _, created = await place(tx)
            moved = await ship(tx)
        return {"created": created, "moved": moved.outcome.value}

    once.install(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        answers = [
            (await client.post("/orders", headers=headers)).json()
            for headers in ({"Idempotency-Key": "k1"}, {"Idempotency-Key": "k1"}, {"Idempotency-Key": "k2"}, {})
        ]
    await once.close()
    first, later = {"created": True, "moved": "moved"}, {"created": False, "moved": "already there"}
    assert answers == [first, first, later, later]
    assert look(address, "SELECT status FROM orders") == [("shipped",)]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_in_a_request_of_flask_a_message_and_a_phase(request: pytest.FixtureRequest, database: str) -> None:
    address = address_for(request, database)
    once = Onefold(address, principal=single_principal, source="shop")
    once.migrate()
    app = Flask(__name__)

    @app.post("/orders")
    @once.idempotent()
    def order() -> tuple[dict[str, Any], int]:
        with current_transaction().exclusive("orders", "o1"):
            return {"created": place(current_transaction()).created}, 201

    @app.post("/busy")
    @once.idempotent()
    def busy() -> tuple[dict[str, Any], int]:
        raise StoreBusy("the key is taken")

    once.install(app)
    client = app.test_client()
    answers = [client.post("/orders", headers={"Idempotency-Key": key}).json for key in ("f1", "f1", "f2")]
    assert answers == [{"created": True}, {"created": True}, {"created": False}]
    assert client.post("/busy", headers={"Idempotency-Key": "f3"}).status_code == 503
    with once.handling("shipping", "m1") as tx:
        assert tx is not None
        assert ship(tx).moved
    with once.work("cancel o1") as work:
        found = work.phase("ship again", lambda tx: ship(tx).outcome.value)
    once.close()
    assert found == "already there"
    assert look(address, "SELECT status FROM orders") == [("shipped",)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_level_refuses_what_its_snapshot_does_not_show(request: pytest.FixtureRequest, level: Any) -> None:
    address = address_for(request, "postgres")
    once = Onefold(address, isolation=level)
    with refused(SerializationFailed), once.transaction() as tx:
        tx.connection.execute("SELECT count(*) FROM orders")
        look(address, "INSERT INTO orders (id, status) VALUES ('o1', 'paid')")
        place(tx)
    with refused(SerializationFailed), once.transaction() as tx:
        tx.connection.execute("SELECT count(*) FROM orders")
        look(address, "UPDATE orders SET status = 'shipped'")
        ship(tx)
    with once.transaction() as tx:
        assert place(tx).outcome is InsertOutcome.EXISTING
        assert ship(tx).arrived
    once.close()


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.lists(VALUES, min_size=3, max_size=3), other=VALUES, place_of_other=st.integers(0, 2))
def test_any_payload_is_the_same_as_itself_and_no_other(
    tmp_path: Path, payload: list[Any], other: Any, place_of_other: int
) -> None:
    """On columns without a type, where SQLite keeps what it is given."""
    once = Onefold(tmp_path / "payloads.db")
    names = ("a", "b", "c")
    changed = [*payload[:place_of_other], other, *payload[place_of_other + 1 :]]
    with once.transaction() as tx:
        tx.connection.execute("DROP TABLE IF EXISTS payloads")
        tx.connection.execute("CREATE TABLE payloads (id INTEGER PRIMARY KEY, a, b, c)")
        for outcome in (InsertOutcome.CREATED, InsertOutcome.SAME):
            found = tx.insert_once(
                "payloads", {"id": 1, **dict(zip(names, payload, strict=True))}, on="id", compare=True
            )
            assert found.outcome is outcome
            assert tuple(found.row.values()) == (1, *payload)
        told = tx.insert_once("payloads", {"id": 1, **dict(zip(names, changed, strict=True))}, on="id", compare="tell")
        assert told.differing == (() if changed == payload else (names[place_of_other],))
    once.close()


STATES = ("new", "paid", "shipped", "cancelled")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.lists(
        st.tuples(st.sets(st.sampled_from(STATES), min_size=1), st.sampled_from(STATES), st.integers(0, 4) | st.none()),
        max_size=12,
    )
)
def test_any_sequence_of_moves_ends_where_the_rules_say(
    tmp_path: Path, moves: list[tuple[set[str], str, int | None]]
) -> None:
    once = Onefold(tmp_path / "moves.db")
    state, version = "new", 0
    with once.transaction() as tx:
        tx.connection.execute("DROP TABLE IF EXISTS orders")
        tx.connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT, version INTEGER)")
        tx.connection.execute("INSERT INTO orders VALUES ('o1', 'new', 0)")
        for come_from, to, expected in moves:
            allowed = come_from - {to}
            if not allowed:
                continue
            moved = tx.transition(
                "orders",
                where={"id": "o1"},
                state="status",
                come_from=allowed,
                to=to,
                version="version",
                expected_version=expected,
            )
            word = (
                "already there" if state == to
                else "not allowed" if state not in allowed
                else "stale" if expected not in (None, version)
                else "moved"
            )  # fmt: skip
            assert moved.outcome.value == word
            if word == "moved":
                state, version = to, version + 1
            assert (moved.state, moved.version) == (state, version)
    once.close()
