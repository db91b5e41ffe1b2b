"""Writes past the request's transaction: refused in development, with what to do; and the pool that they exhaust."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import flask
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.responses import JSONResponse
from sqlalchemy import delete, insert, select
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from onefold._http.fastapi_dependencies import Tx
from onefold._http.fastapi_sessions import AsyncRequestSession
from onefold._http.flask_views import current_transaction
from onefold.errors import TransactionMisused
from tests.http.stages import calling, problem
from tests.sessions.stages import Order, Stage, staged

F = TypeVar("F", bound=Callable[..., Any])
Write = Callable[[AsyncSession], Any]


@pytest.fixture(params=["async-sqlite", "async-postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


async def add_only(session: AsyncSession) -> None:
    session.add(Order(item="tea"))


async def add_and_commit(session: AsyncSession) -> None:
    session.add(Order(item="tea"))
    await session.commit()


async def insert_only(session: AsyncSession) -> None:
    await session.execute(insert(Order).values(item="tea"))


async def commit_a_read(session: AsyncSession) -> None:
    await session.execute(select(Order))
    await session.commit()


async def change_what_was_read(session: AsyncSession) -> None:
    """Flushed and committed by the dependency's exit, after the answer."""
    order = await session.get(Order, "acme")
    assert order is not None
    order.tenant = "other"


def shop(once: Any, write: Write, errors: list[BaseException], **settings: Any) -> FastAPI:
    """An application with a session dependency of its own beside one tx.publish()."""
    app, sessions = FastAPI(), async_sessionmaker(once._database._engine)
    marked: Callable[[F], F] = once.idempotent(**settings)

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with sessions() as session:
            yield session
            try:
                await session.commit()
            except BaseException as error:
                errors.append(error)
                raise

    @app.post("/orders", status_code=201)
    @marked
    async def buy(tx: Tx[Any], session: AsyncSession = Depends(get_session)) -> None:
        await tx.publish("order.placed", {})
        await write(session)

    once.install(app)
    return app


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
@pytest.mark.parametrize("write", [add_only, add_and_commit, insert_only, commit_a_read])
async def test_a_write_on_another_connection_of_the_engine_is_refused(
    stage: Stage, write: Write, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    once, errors = await stage.migrated(development=True), list[BaseException]()
    app = shop(once, write, errors)

    @app.exception_handler(TransactionMisused)
    async def note(_: Any, error: TransactionMisused) -> Any:
        errors.append(error)
        raise error

    async with calling(app) as client:
        assert (await client.post("/orders", key=key)).status_code == 500
    assert "POST /orders" in str(errors[0])
    assert "on another connection of the engine than the request's own" in str(errors[0])
    assert "tx.session()" in str(errors[0])
    assert (stage.items(), stage.events()) == ([], 0)


async def test_what_a_dependency_s_exit_flushes_after_the_answer_is_refused(stage: Stage) -> None:
    with Session(stage.outside) as session:
        session.add(Order(item="acme"))
        session.commit()
    once, errors = await stage.migrated(development=True), list[BaseException]()
    async with calling(shop(once, change_what_was_read, errors)) as client:
        await client.post("/orders", key='"k"')
    assert [type(error) for error in errors] == [TransactionMisused]
    with Session(stage.outside) as session:
        assert session.scalars(select(Order.tenant)).all() == ["acme"]


async def test_a_route_that_writes_elsewhere_on_purpose_says_so(request: pytest.FixtureRequest) -> None:
    async with staged(request, "async-postgres") as stage:  # SQLite has one writer at a time
        once = await stage.migrated(development=True)
        async with calling(shop(once, insert_only, [], writes=False)) as client:
            assert (await client.post("/orders")).status_code == 201
        assert stage.items() == ["tea"]


async def test_work_after_the_answer_and_outside_of_requests_is_left_alone(stage: Stage) -> None:
    once, sessions = await stage.migrated(development=True), async_sessionmaker(stage.engine)
    app = FastAPI()
    marked: Callable[[F], F] = once.idempotent()

    async def later() -> None:
        async with sessions.begin() as session:
            session.add(Order(item="later"))

    @app.post("/orders")
    @marked
    async def buy(tx: Tx[Any], background: BackgroundTasks) -> None:
        await tx.publish("order.placed", {})
        background.add_task(later)

    @app.post("/visits")
    async def visit(session: AsyncRequestSession) -> None:
        session.add(Order(item="visit"))
        await session.commit()

    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 200
        assert (await client.post("/visits")).status_code == 200
    async with sessions.begin() as session:
        session.add(Order(item="outside"))
    assert stage.items() == ["later", "outside", "visit"]


async def test_a_flask_view_is_refused_too(request: pytest.FixtureRequest) -> None:
    async with staged(request, "sync-postgres") as stage:
        once, sessions = await stage.migrated(development=True), sessionmaker(stage.engine)
        app, seen = flask.Flask(__name__), list[BaseException]()
        marked: Callable[[F], F] = once.idempotent()

        @app.post("/orders")
        @marked
        def buy() -> dict[str, str]:
            _ = current_transaction().publish("order.placed", {})
            with sessions() as session:
                session.execute(insert(Order).values(item="tea"))
                session.commit()
            return {}

        @app.errorhandler(TransactionMisused)
        def note(error: TransactionMisused) -> tuple[str, int]:
            seen.append(error)
            return "refused", 500

        once.install(app)
        assert app.test_client().post("/orders", headers={"x-account": "acme"}).status_code == 500
        assert "INSERT on another connection of the engine" in str(seen[0])
        assert (stage.items(), stage.events()) == ([], 0)


async def test_in_production_nothing_listens(stage: Stage) -> None:
    once = await stage.migrated()
    assert "onefold_guard" not in stage.engine.get_execution_options()
    assert once is not None


# --- the pool that two connections per request exhaust ---------------------------------------------------------


async def test_a_pool_that_is_exhausted_names_the_cause(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(request, "async-postgres", pool_size=1, max_overflow=0, pool_timeout=0.5) as stage:
        once, sessions = await stage.migrated(), async_sessionmaker(stage.engine)
        app, raised = FastAPI(), list[BaseException]()
        marked: Callable[[F], F] = once.idempotent()
        holding, refused = asyncio.Event(), asyncio.Event()

        @app.post("/orders")
        @marked
        async def buy(tx: Tx[Any]) -> None:
            _ = tx.connection
            holding.set()
            await refused.wait()
            async with sessions() as session:
                await session.execute(select(Order))

        async def outside(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except PoolTimeout as error:
                raised.append(error)
                raise

        once.install(app)
        async with calling(outside) as client:
            first = asyncio.create_task(client.post("/orders", key='"k"'))
            await asyncio.wait_for(holding.wait(), 60)
            second = await client.post("/orders", key='"l"')
            refused.set()
            assert (await first).status_code == 500
        [note] = raised[0].__notes__
        assert "POST /orders holds a connection and waited for a second one, and got none" in note
        assert (second.status_code, problem(second)) == (503, "store-unavailable")
        assert "every connection to the database was in use" in second.json()["detail"]
        [logged] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert "takes a second connection of the same pool while its request holds one" in logged


async def delete_only(session: AsyncSession) -> None:
    await session.execute(delete(Order))


async def test_each_onefold_on_an_engine_has_its_own_requests_watched(stage: Stage) -> None:
    first, errors = await stage.migrated(development=True), list[BaseException]()
    second = stage.once(development=True)
    for once in (first, second):
        app = shop(once, delete_only, [])

        async def note(_: Any, error: TransactionMisused) -> Any:
            errors.append(error)
            return JSONResponse({}, 500)

        app.add_exception_handler(TransactionMisused, note)  # type: ignore[arg-type]
        async with calling(app) as client:
            assert (await client.post("/orders", key='"k"')).status_code == 500
    assert ["POST /orders: a DELETE on another connection" in str(error) for error in errors] == [True, True]
