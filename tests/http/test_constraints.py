"""Constraints that speak up only when the request is settled: they are for the application's own handlers to answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
from fastapi import BackgroundTasks, FastAPI
from flask import Flask, request
from psycopg_pool import ConnectionPool
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.fastapi_sessions import AsyncSessionTx
from onefold._http.flask_views import current_transaction
from tests.http.stages import account_of, calling, problem, replayed

TABLE = "CREATE TABLE orders (item text UNIQUE DEFERRABLE INITIALLY DEFERRED)"


class Kept(DeclarativeBase):
    pass


class Order(Kept):
    __tablename__ = "orders"

    item: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
async def pool(postgres_dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=3) as found:
        await found.execute(TABLE)
        await found.execute("INSERT INTO orders VALUES ('book')")
        await AsyncOnefold(found).migrate()
        yield found


async def kept(pool: Any) -> tuple[int, int]:
    """How many orders there are, and how many stored answers."""
    row = await pool.fetchrow("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM onefold_record)")
    return row[0], row[1]


def conflict(_: Request, error: Exception) -> Response:
    return JSONResponse({"taken": type(error).__name__}, 409)


def deferred(once: AsyncOnefold, mails: list[str]) -> FastAPI:
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    async def order(tx: Tx[asyncpg.Connection], background: BackgroundTasks) -> None:
        background.add_task(mails.append, "mail")
        await tx.connection.execute("INSERT INTO orders VALUES ('book')")

    once.install(app)
    return app


async def test_a_deferred_constraint_is_answered_by_the_applications_own_handler_and_not_stored(pool: Any) -> None:
    mails: list[str] = []
    app = deferred(AsyncOnefold(pool, principal=account_of), mails)
    app.add_exception_handler(asyncpg.IntegrityConstraintViolationError, conflict)
    async with calling(app) as client:
        for key in ('"k"', '"k"', None):
            answer = await client.post("/orders", key=key)
            assert (answer.status_code, answer.json()) == (409, {"taken": "UniqueViolationError"})
            assert not replayed(answer)
        assert (mails, await kept(pool)) == ([], (1, 0))
        await pool.execute("DELETE FROM orders")
        assert (await client.post("/orders", key='"k"')).status_code == 200
    assert (mails, await kept(pool)) == (["mail"], (1, 1))


async def test_a_deferred_constraint_nobody_has_a_handler_for_is_an_error_that_leaves_nothing(pool: Any) -> None:
    app = deferred(AsyncOnefold(pool, principal=account_of), [])
    app.add_exception_handler(LookupError, conflict)
    async with calling(app) as client:
        for key in ('"k"', None):
            answer = await client.post("/orders", key=key)
            assert (answer.status_code, problem(answer)) == (500, "statement-refused")
    assert await kept(pool) == (1, 0)


async def test_what_a_session_flushes_at_settle_is_answered_by_the_applications_own_handler(
    pool: Any, postgres_dsn: str
) -> None:
    engine = create_async_engine(postgres_dsn.replace("postgresql:", "postgresql+asyncpg:"))
    once = AsyncOnefold(engine, principal=account_of)
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    async def order(session: AsyncSessionTx, now: bool = False) -> None:
        session.add(Order(item="book"))
        if now:
            await session.flush()

    once.install(app)
    app.add_exception_handler(IntegrityError, conflict)
    await pool.execute("ALTER TABLE orders DROP CONSTRAINT orders_item_key, ADD PRIMARY KEY (item)")
    async with calling(app) as client:
        for key in ('"k"', '"k"', None):
            answer = await client.post("/orders", key=key)
            assert (answer.status_code, answer.json(), replayed(answer)) == (409, {"taken": "IntegrityError"}, False)
        assert await kept(pool) == (1, 0)
        # The control: what the handler itself raises is its own refusal, and stored.
        assert (await client.post("/orders?now=1", key='"now"')).status_code == 409
        assert await kept(pool) == (1, 1)
    await engine.dispose()


async def test_a_deferred_constraint_under_sqlalchemy_is_what_sqlalchemy_calls_it(pool: Any, postgres_dsn: str) -> None:
    engine = create_async_engine(postgres_dsn.replace("postgresql:", "postgresql+asyncpg:"))
    once = AsyncOnefold(engine, principal=account_of)
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    async def order(session: AsyncSessionTx) -> None:
        session.add(Order(item="book"))
        await session.flush()

    once.install(app)
    app.add_exception_handler(IntegrityError, conflict)
    async with calling(app) as client:
        answer = await client.post("/orders", key='"k"')
        assert (answer.status_code, answer.json()) == (409, {"taken": "IntegrityError"})
    assert await kept(pool) == (1, 0)
    await engine.dispose()


@pytest.mark.parametrize("key", ['"k"', None])
def test_a_deferred_constraint_is_answered_by_flasks_own_handler(postgres_dsn: str, key: str | None) -> None:
    with ConnectionPool(postgres_dsn, min_size=0, max_size=2) as pool:
        once = Onefold(pool, principal=account_of)
        once.migrate()
        with pool.connection() as connection:
            connection.execute(TABLE)
            connection.execute("INSERT INTO orders VALUES ('book')")
        app = Flask("orders")

        @app.post("/orders")
        @once.idempotent()
        def order() -> str:
            current_transaction().connection.execute("INSERT INTO orders VALUES ('book')")
            return "done"

        @app.errorhandler(psycopg.errors.UniqueViolation)
        def taken(error: Exception) -> tuple[str, int]:
            return f"{request.get_json()['item']} is taken", 409

        once.install(app)
        headers = {"x-account": "acme"} | ({} if key is None else {"idempotency-key": key})
        for _ in range(2):
            answer = app.test_client().post("/orders", headers=headers, json={"item": "book"})
            assert (answer.status_code, answer.get_data(as_text=True)) == (409, "book is taken")
            assert "idempotent-replayed" not in answer.headers
        with pool.connection() as connection:
            assert connection.execute("SELECT count(*) FROM onefold_record").fetchone() == (0,)
            assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
