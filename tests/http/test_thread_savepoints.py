"""`with tx.savepoint()` in a plain `def`, whose thread is not the one of the request's task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI, HTTPException
from flask import Flask, abort
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onefold import AsyncOnefold, Message, Onefold, Transaction
from onefold._http import asgi
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold.errors import ProgrammerError
from tests.http.stages import Orders, account_of, calling, replayed
from tests.support.patience import PATIENCE_S


class Tables(DeclarativeBase):
    """The application's tables."""


class Order(Tables):
    __tablename__ = "orders"

    item: Mapped[str] = mapped_column(primary_key=True)


class Refused(Exception):
    """What a block raises."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A Onefold for threads over one driver, and its table."""

    once: Onefold
    read: Callable[[str], list[tuple[Any, ...]]]

    def insert(self, tx: Any, item: str) -> None:
        sql = f"INSERT INTO orders (item) VALUES ('{item}')"
        tx.connection.execute(sql if not hasattr(tx.connection, "exec_driver_sql") else text(sql))

    @property
    def items(self) -> list[str]:
        return [item for (item,) in self.read("SELECT item FROM orders ORDER BY item")]

    @property
    def events(self) -> int:
        [(count,)] = self.read("SELECT count(*) FROM onefold_outbox")
        return int(count)

    def work(self, tx: Any) -> None:
        """Two parts, of which one is undone, and one inside of the other."""
        self.insert(tx, "book")
        with tx.savepoint():
            self.insert(tx, "kept")
            try:
                with tx.savepoint():
                    self.insert(tx, "undone")
                    tx.publish("orders", {})
                    raise Refused
            except Refused:
                pass
        try:
            with tx.savepoint():
                self.insert(tx, "book")  # there is one already
        except Exception as error:
            assert "UNIQUE" in str(error).upper()  # noqa: PT017
        else:
            raise AssertionError("the database took the same item twice")


@pytest.fixture(params=["sqlite", "psycopg", "sqlalchemy-sqlite", "sqlalchemy-postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as closing:
        if "sqlite" in request.param:
            orders = Orders(tmp_path / "orders.db")
            database: Any = orders.path
            read: Any = orders.sql
        else:
            database = request.getfixturevalue("postgres_dsn")
            outside = closing.enter_context(psycopg.connect(database, autocommit=True))
            outside.execute("CREATE TABLE orders (item text UNIQUE)")
            read = lambda sql: outside.execute(sql).fetchall()  # noqa: E731
        if "sqlalchemy" in request.param:
            scheme = "sqlite:///" if "sqlite" in request.param else "postgresql+psycopg://"
            engine = create_engine(scheme + str(database).removeprefix("postgresql://"))
            closing.callback(engine.dispose)
            database = engine
        once = Onefold(database, principal=account_of, source="shop", broker="local")
        closing.callback(once.close)
        once.migrate()
        yield Stage(once, read)


async def test_fastapi(stage: Stage) -> None:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @stage.once.idempotent()
    def order(tx: Tx[Any], status: int = 201) -> None:
        stage.work(tx)
        if status != 201:
            raise HTTPException(status)

    stage.once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders?status=402", key='"refused"')).status_code == 402
        assert (stage.items, stage.events) == ([], 0)
        for again in (False, True):
            answer = await client.post("/orders", key='"k"')
            assert (answer.status_code, replayed(answer)) == (201, again)
    assert (stage.items, stage.events) == (["book", "kept"], 0)


@pytest.mark.parametrize("stage", ["sqlalchemy-sqlite", "sqlalchemy-postgres"], indirect=True)
async def test_a_session_forgets_what_was_undone(stage: Stage) -> None:
    app, left = FastAPI(), list[bool]()

    @app.post("/orders")
    @stage.once.idempotent()
    def order(tx: Tx[Any]) -> None:
        session, book, undone = tx.session(), Order(item="book"), Order(item="undone")
        session.add(book)
        try:
            with tx.savepoint():
                session.add(undone)
                raise Refused
        except Refused:
            left.extend((book in session, undone in session))
        with tx.savepoint():
            session.add(Order(item="kept"))

    stage.once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 200
    assert (left, stage.items) == ([True, False], ["book", "kept"])


async def test_starlette(stage: Stage) -> None:
    @stage.once.idempotent()
    def order(request: Request) -> Response:
        stage.work(request.scope[asgi.TRANSACTION])
        return Response(status_code=201)

    app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    stage.once.install(app)
    async with calling(app) as client:
        for key in ('"k"', '"k"'):
            assert (await client.post("/orders", key=key)).status_code == 201
    assert (stage.items, stage.events) == (["book", "kept"], 0)


def test_flask(stage: Stage) -> None:
    app = Flask("shop")

    @app.post("/orders/<int:status>")
    @stage.once.idempotent()
    def order(status: int) -> tuple[str, int]:
        stage.work(current_transaction())
        return abort(status) if status >= 400 else ("", status)

    stage.once.install(app)
    client = app.test_client()
    for status in (409, 201, 201):
        headers = {"x-account": "acme", "idempotency-key": f'"{status}"'}
        assert client.post(f"/orders/{status}", headers=headers).status_code == status
    assert (stage.items, stage.events) == (["book", "kept"], 0)


def test_a_consumer(stage: Stage) -> None:
    handled = threading.Event()

    @stage.once.consumer("fulfilment", topic="order.placed")
    def ship(message: Message, tx: Transaction[Any]) -> None:
        stage.work(tx)
        tx.after_commit(handled.set)

    with stage.once.consuming(), stage.once.relaying():
        with stage.once.transaction() as tx:
            assert tx.publish("order.placed", {})
        assert handled.wait(PATIENCE_S)
    assert stage.items == ["book", "kept"]


async def test_on_the_loop_itself_the_other_way_to_write_it_is_named_and_works(stage: Stage) -> None:
    app = FastAPI()
    told: list[str] = []

    @app.post("/orders")
    @stage.once.idempotent(writes=False)
    async def order(tx: Tx[Any]) -> None:
        try:
            with tx.savepoint():
                raise AssertionError("it would block the loop")
        except ProgrammerError as error:
            told.append(str(error))
        async with tx.savepoint():
            pass

    stage.once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 200
    [message] = told
    assert "`async with tx.savepoint()`" in message


async def test_on_a_thread_of_an_async_transaction_the_way_out_is_named(tmp_path: Path) -> None:
    once = AsyncOnefold(tmp_path / "orders.db", principal=account_of)

    def on_a_thread(tx: Any) -> None:
        with tx.savepoint():
            raise AssertionError("its connection is another thread's")

    async with once.transaction() as tx:
        with pytest.raises(ProgrammerError, match=r"write `async with tx\.savepoint\(\)`, in an `async def`"):
            await asyncio.to_thread(on_a_thread, tx)
    await once.close()
