"""Sessions that the application closes before the answer leaves: what they held is written, or the request fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import flask
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from sqlalchemy import event, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from onefold import AsyncOnefold
from onefold._http.fastapi_sessions import AsyncSessionTx, SessionTx
from onefold._http.flask_views import current_session
from tests.http.stages import calling
from tests.sessions.stages import KINDS, Order, Stage, staged

F = TypeVar("F", bound=Callable[..., Any])


class Shown(BaseModel):
    """What the framework makes of an order."""

    model_config = ConfigDict(from_attributes=True)
    item: str
    tenant: str


@pytest.fixture(params=KINDS)
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


def posting(app: flask.Flask, path: str) -> tuple[int, str | None]:
    headers = {"Idempotency-Key": f'"{path}"', "X-Account": "acme"}
    answer = app.test_client().post(path, headers=headers)
    return answer.status_code, answer.headers.get("Idempotent-Replayed")


# --- Flask: a registry that is emptied in teardown ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync-sqlite", "sync-postgres"])
@pytest.mark.parametrize("how", ["add", "flush", "commit", "statement"])
async def test_a_registry_that_flask_s_teardown_empties_loses_nothing(
    request: pytest.FixtureRequest, kind: str, how: str
) -> None:
    async with staged(request, kind) as stage:
        registry = scoped_session(sessionmaker(stage.engine))
        once = await stage.migrated(session_factory=registry)
        app = flask.Flask("shop")
        app.teardown_appcontext(lambda _: registry.remove())

        marked: Callable[[F], F] = once.idempotent()

        @app.post("/orders/<item>")
        @marked
        def buy(item: str) -> Any:
            session = current_session()
            if how == "statement":
                session.execute(text("INSERT INTO orders (item, tenant) VALUES (:item, 'acme')"), {"item": item})
            else:
                session.add(Order(item=item))
            if how == "flush":
                session.flush()
            if how == "commit":
                session.commit()
            if item == "gold":
                flask.abort(409)
            return {}, 201

        once.install(app)
        assert posting(app, "/orders/tea") == (201, None)
        assert stage.items() == ["tea"]
        assert posting(app, "/orders/tea") == (201, "true")
        assert posting(app, "/orders/gold") == (409, None)
        assert posting(app, "/orders/gold") == (409, "true")
        assert stage.items() == ["tea"]


@pytest.mark.parametrize("where", ["view", "after_request"])
@pytest.mark.parametrize("how", ["add", "flush", "statement"])
async def test_a_session_that_is_closed_with_work_in_it_fails_the_request(
    request: pytest.FixtureRequest, how: str, where: str
) -> None:
    async with staged(request, "sync-sqlite") as stage:
        registry = scoped_session(sessionmaker(stage.engine))
        once = await stage.migrated(session_factory=registry)
        app = flask.Flask("shop")
        app.teardown_appcontext(lambda _: registry.remove())

        def work() -> None:
            if how == "statement":
                current_session().execute(text("INSERT INTO orders (item, tenant) VALUES ('log', 'acme')"))
            else:
                current_session().add(Order(item="log"))
            if how == "flush":
                current_session().flush()

        def note(response: flask.Response) -> flask.Response:
            if where == "after_request":
                work()
            return response

        app.after_request(note)

        marked: Callable[[F], F] = once.idempotent()

        @app.post("/orders/<item>")
        @marked
        def buy(item: str) -> Any:
            current_session().add(Order(item=item))
            current_session().commit()
            if where == "view":
                work()
                current_session().close()
            return {}, 201

        once.install(app)
        assert posting(app, "/orders/tea") == (500, None)
        assert posting(app, "/orders/tea") == (500, None)
        assert stage.items() == []


async def test_a_session_that_was_only_read_with_may_be_closed(request: pytest.FixtureRequest) -> None:
    async with staged(request, "sync-sqlite") as stage:
        once = await stage.migrated(session_factory=stage.factory())
        app = flask.Flask("shop")

        marked: Callable[[F], F] = once.idempotent()

        @app.post("/orders/<item>")
        @marked
        def buy(item: str) -> Any:
            with current_session() as session:
                known = list(session.scalars(select(Order.item)))
            with current_session() as session:
                session.add(Order(item=item))
                session.commit()
            with current_session() as session:
                session.add(Order(item="changed my mind"))
                session.flush()
                session.rollback()
            return known, 201

        once.install(app)
        assert posting(app, "/orders/tea") == (201, None)
        assert stage.items() == ["tea"]


# --- FastAPI: dependencies that close -------------------------------------------------------------------------


def closing(once: Any, scope: Any) -> FastAPI:
    """An application whose dependency closes the session it hands on."""
    app = FastAPI()
    marked: Callable[[F], F] = once.idempotent()
    if isinstance(once, AsyncOnefold):

        async def get_session(session: AsyncSessionTx) -> AsyncIterator[AsyncSession]:
            async with session:
                yield session

        given: Any = Depends(get_session, scope=scope)

        @app.post("/orders/{item}", status_code=201)
        @marked
        async def buy(item: str, session: AsyncSession = given, status: int = 201) -> Any:
            session.add(order := Order(item=item))
            if status == 402:
                raise HTTPException(402)
            return JSONResponse({}, status) if status != 201 else {"item": order.item, "tenant": order.tenant}
    else:

        def get_session_on_a_thread(session: SessionTx) -> Iterator[Session]:
            with session:
                yield session

        given_on_a_thread: Any = Depends(get_session_on_a_thread, scope=scope)

        @app.post("/orders/{item}", status_code=201)
        @marked
        def buy_on_a_thread(item: str, session: Session = given_on_a_thread, status: int = 201) -> Any:
            session.add(order := Order(item=item))
            if status == 402:
                raise HTTPException(402)
            return JSONResponse({}, status) if status != 201 else {"item": order.item, "tenant": order.tenant}

    once.install(app)
    return app


@pytest.mark.parametrize("scope", ["function", "request"])
async def test_a_dependency_that_closes_its_session_loses_nothing(stage: Stage, scope: str) -> None:
    once = await stage.migrated(session_factory=stage.factory())
    async with calling(closing(once, scope)) as client:
        assert (await client.post("/orders/tea", key='"k"')).status_code == 201
        assert stage.items() == ["tea"]
        for status in (402, 409):
            for _ in range(2):
                answer = await client.post(f"/orders/gold?status={status}", key=f'"{status}"')
                assert answer.status_code == status
        assert answer.headers["idempotent-replayed"] == "true"
        # What cannot be written fails a request that would have kept it, and no other.
        assert (await client.post("/orders/tea?status=409", key='"l"')).status_code == 409
        assert (await client.post("/orders/tea", key='"m"')).status_code == 500
    assert stage.items() == ["tea"]


async def test_what_a_dependency_s_exit_adds_is_written_too(stage: Stage) -> None:
    once = await stage.migrated(session_factory=stage.factory(expire_on_commit=True))
    app = FastAPI()
    marked: Callable[[F], F] = once.idempotent()
    begun: list[str] = []
    if stage.asynchronous:

        async def log(session: AsyncSessionTx) -> AsyncIterator[None]:
            yield
            session.add(Order(item="log"))

        @app.post("/orders/{item}", status_code=201, dependencies=[Depends(log, scope="function")])
        @marked
        async def buy(item: str, session: AsyncSessionTx) -> dict[str, str]:
            event.listen(session.sync_session, "before_commit", lambda _: begun.append("commit"))
            session.add(Order(item=item))
            return {}
    else:

        def log_on_a_thread(session: SessionTx) -> Iterator[None]:
            yield
            session.add(Order(item="log"))

        @app.post("/orders/{item}", status_code=201, dependencies=[Depends(log_on_a_thread, scope="function")])
        @marked
        def buy_on_a_thread(item: str, session: SessionTx) -> dict[str, str]:
            event.listen(session, "before_commit", lambda _: begun.append("commit"))
            session.add(Order(item=item))
            return {}

    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders/tea", key='"k"')).status_code == 201
    assert stage.items() == ["log", "tea"]
    assert begun == ["commit", "commit"]


async def test_objects_that_the_framework_serialises_are_not_expired(stage: Stage) -> None:
    once = await stage.migrated(session_factory=stage.factory(expire_on_commit=True))
    app = FastAPI()
    marked: Callable[[F], F] = once.idempotent()
    if stage.asynchronous:

        @app.post("/orders/{item}", status_code=201, response_model=Shown)
        @marked
        async def buy(item: str, session: AsyncSessionTx) -> Any:
            session.add(order := Order(item=item, tenant="acme"))
            return order
    else:

        @app.post("/orders/{item}", status_code=201, response_model=Shown)
        @marked
        def buy_on_a_thread(item: str, session: SessionTx) -> Any:
            session.add(order := Order(item=item, tenant="acme"))
            return order

    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders/tea", key='"k"')).json() == {"item": "tea", "tenant": "acme"}
    assert stage.items() == ["tea"]
