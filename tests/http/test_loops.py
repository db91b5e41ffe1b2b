"""Onefold, which is for threads, in an ASGI application: SQLite's lock is not waited for on the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import flask
import httpx
import pytest
from fastapi import Depends, FastAPI

from onefold import Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold.errors import ProgrammerError
from tests.http.stages import Orders, account_of, calling

REFUSED = r"AsyncOnefold.*`def`"


@pytest.fixture
def once(orders: Orders) -> Iterator[Onefold]:
    found = Onefold(orders.path, principal=account_of)
    yield found
    found.close()


def written(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO orders (item) VALUES ('book')")


async def on_the_loop(tx: Tx[sqlite3.Connection]) -> None:
    written(tx.connection)


async def by_a_dependency(tx: Tx[sqlite3.Connection]) -> sqlite3.Connection:
    return tx.connection


def with_what_it_is_given(connection: Annotated[sqlite3.Connection, Depends(by_a_dependency)]) -> None:
    written(connection)


@pytest.mark.parametrize("endpoint", [on_the_loop, with_what_it_is_given])
@pytest.mark.parametrize("key", [None, '"k"'])
async def test_a_touch_on_the_event_loop_is_refused_with_the_way_out(
    orders: Orders, once: Onefold, endpoint: Callable[..., Any], key: str | None
) -> None:
    app = FastAPI()
    once.install(app)
    app.post("/orders")(once.idempotent()(endpoint))
    async with calling(app) as client:
        assert (await client.post("/orders", key=key)).status_code == 500
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as http:
        headers = {"x-account": "acme"} | ({} if key is None else {"idempotency-key": key})
        with pytest.raises(ProgrammerError, match=REFUSED):
            await http.post("/orders", headers=headers)
    assert (orders.items, orders.records) == ([], 0)


async def test_a_touch_on_a_thread_is_not(orders: Orders, once: Onefold) -> None:
    app = FastAPI()
    once.install(app)

    @app.post("/orders")
    @once.idempotent()
    async def order(tx: Tx[sqlite3.Connection]) -> None:
        await asyncio.to_thread(lambda: written(tx.connection))

    @app.post("/plain")
    @once.idempotent()
    def plain(tx: Tx[sqlite3.Connection]) -> None:
        tx.connection.execute("INSERT INTO orders (item) VALUES ('pen')")

    async with calling(app) as client:
        for path in ("/orders", "/plain"):
            assert (await client.post(path, key='"k"')).status_code == 200
    assert orders.items == ["book", "pen"]


async def test_a_wsgi_application_that_is_called_on_an_event_loop_blocks_it_anyway(
    orders: Orders, once: Onefold
) -> None:
    """As in an async test of a Flask application: whoever calls it waits for it."""
    app = flask.Flask(__name__)

    @app.post("/orders")
    @once.idempotent()
    def order() -> str:
        written(current_transaction().connection)
        return "ordered"

    once.install(app)
    assert app.test_client().post("/orders", headers={"x-account": "acme"}).text == "ordered"
    assert orders.items == ["book"]
