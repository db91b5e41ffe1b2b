"""What follows an answer (background tasks, the rest of a stream): after COMMIT, and never for an answer that another
took the place of, whatever middleware stands between the layer and the endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from flask import Flask
from flask import Response as FlaskResponse
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold.db.sqlite import AsyncSqlite
from tests.http.stages import Orders, account_of, calling, problem, replayed


class PassingOn(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


class Rewriting(BaseHTTPMiddleware):
    """Takes the body apart and answers with a response of its own."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        answer: Any = await call_next(request)
        body = b"".join([chunk async for chunk in answer.body_iterator])
        return Response(body, answer.status_code, dict(answer.headers))


class Buffering:
    """Has the whole answer before it passes any of it on, in the same task."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        messages: list[Any] = []

        async def keep(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, keep)
        for message in messages:
            await send(message)


BETWEEN: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "BaseHTTPMiddleware": (PassingOn,),
    "two of them": (PassingOn, PassingOn),
    "one that rewrites": (Rewriting,),
    "one that buffers": (Buffering,),
    "both": (PassingOn, Buffering),
}


class Shop:
    """Endpoints that leave work behind. It writes down the orders it finds committed."""

    def __init__(self, orders: Orders, *between: Any) -> None:
        self.orders = orders
        self.found: list[list[str]] = []
        self.uses_tx = True
        self.once = AsyncOnefold(orders.path, principal=account_of, development=True)
        self.app = FastAPI()
        for middleware in between:
            self.app.add_middleware(middleware)
        self.once.install(self.app)
        self._add_endpoints()

    def work(self) -> None:
        self.found.append(self.orders.items)

    async def buy(self, tx: Any) -> None:
        if self.uses_tx:
            await tx.connection.execute("INSERT INTO orders (item) VALUES ('book')")

    def _add_endpoints(self) -> None:
        async def leave_work(background: BackgroundTasks) -> None:
            background.add_task(self.work)

        @self.app.post("/injected")
        @self.once.idempotent()
        async def injected(tx: Tx[AsyncSqlite], background: BackgroundTasks) -> dict[str, bool]:
            background.add_task(self.work)
            await self.buy(tx)
            return {"done": True}

        @self.app.post("/dependency")
        @self.once.idempotent()
        async def dependency(tx: Tx[AsyncSqlite], _: None = Depends(leave_work)) -> dict[str, bool]:
            await self.buy(tx)
            return {"done": True}

        @self.app.post("/response")
        @self.once.idempotent()
        async def response(tx: Tx[AsyncSqlite]) -> Response:
            await self.buy(tx)
            return JSONResponse({"done": True}, background=BackgroundTask(self.work))


PATHS = ["/injected", "/dependency", "/response"]


@pytest.fixture
async def shop(orders: Orders, request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    found = Shop(orders, *BETWEEN[request.param])
    yield found
    await found.once.close()


@pytest.mark.parametrize("shop", BETWEEN, indirect=True)
@pytest.mark.parametrize("path", PATHS)
async def test_background_tasks_run_once_after_the_commit(shop: Shop, path: str) -> None:
    async with calling(shop.app) as client:
        first = await client.post(path, key='"k"')
        assert (first.status_code, first.json(), shop.found) == (200, {"done": True}, [["book"]])
        retry = await client.post(path, key='"k"')
    assert (replayed(retry), shop.found) == (True, [["book"]])


@pytest.mark.parametrize("shop", BETWEEN, indirect=True)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", ['"k"', None])
async def test_no_background_task_runs_when_another_answer_goes_out(shop: Shop, path: str, key: str | None) -> None:
    shop.uses_tx = False  # in development a success that never used its transaction is refused
    async with calling(shop.app) as client:
        refused = await client.post(path, key=key)
    assert (refused.status_code, problem(refused), shop.found) == (500, "handler-broken", [])


@pytest.mark.parametrize("shop", ["BaseHTTPMiddleware", "nothing"], indirect=True)
async def test_no_background_task_runs_when_middleware_answers_an_error_instead(shop: Shop) -> None:
    class Failing(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
            await call_next(request)
            return Response(status_code=502)

    app, once = FastAPI(), AsyncOnefold(shop.orders.path, principal=account_of)
    app.add_middleware(Failing)
    once.install(app)

    @app.post("/orders")
    @once.idempotent()
    async def endpoint(tx: Tx[AsyncSqlite], background: BackgroundTasks) -> None:
        background.add_task(shop.work)
        await shop.buy(tx)

    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 502
    assert (shop.found, shop.orders.items) == ([], [])
    await once.close()


@pytest.mark.parametrize("middleware", [(), (PassingOn,)], ids=["nothing", "BaseHTTPMiddleware"])
async def test_no_background_task_runs_when_commit_fails(postgres_dsn: str, middleware: tuple[Any, ...]) -> None:
    ran: list[str] = []
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=2) as pool:
        await pool.execute("CREATE TABLE orders (item text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        await pool.execute("INSERT INTO orders VALUES ('book')")
        once = AsyncOnefold(pool, principal=account_of)
        await once.migrate()
        app = FastAPI()
        for found in middleware:
            app.add_middleware(found)
        once.install(app)

        @app.post("/orders")
        @once.idempotent()
        async def endpoint(tx: Tx[asyncpg.Connection], background: BackgroundTasks) -> None:
            background.add_task(ran.append, "mail")
            await tx.connection.execute("INSERT INTO orders VALUES ('book')")

        async with calling(app) as client:
            assert (await client.post("/orders", key='"k"')).status_code == 500
        assert ran == []


@pytest.mark.parametrize("middleware", [(), (PassingOn,)], ids=["nothing", "BaseHTTPMiddleware"])
async def test_the_rest_of_a_stream_is_not_made_when_another_answer_goes_out(
    orders: Orders, middleware: tuple[Any, ...]
) -> None:
    once = AsyncOnefold(orders.path, principal=account_of, development=True)
    app = FastAPI()
    for found in middleware:
        app.add_middleware(found)
    once.install(app)
    made: list[str] = []

    async def parts() -> AsyncIterator[bytes]:
        for number in range(1000):
            made.append(f"part {number}")
            yield b"x" * 60
        made.append("end")

    @app.post("/orders")
    @once.idempotent(response_bytes_max=100)
    async def endpoint() -> StreamingResponse:
        return StreamingResponse(parts(), background=BackgroundTask(made.append, "mail"))

    async with calling(app) as client:
        refused = await client.post("/orders", key='"k"')
    assert (refused.status_code, problem(refused)) == (500, "handler-broken")
    assert len(made) < 10, "one part more may be on its way between two tasks"
    await once.close()


async def test_a_dependency_hears_of_an_answer_that_did_not_go_out(orders: Orders) -> None:
    once = AsyncOnefold(orders.path, principal=account_of, development=True)
    app = FastAPI()
    once.install(app)
    heard: list[str] = []

    async def session() -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            heard.append(type(error).__name__)
            raise

    @app.post("/orders")
    @once.idempotent()
    async def endpoint(_: None = Depends(session)) -> None: ...

    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 500
    assert heard in (["AnswerReplaced"], [])  # before FastAPI 0.118 dependencies end before the answer
    await once.close()


def test_a_marked_endpoint_has_no_parameter_more_in_the_schema(orders: Orders) -> None:
    once = Onefold(orders.path, principal=account_of)
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    def endpoint(quantity: int, **more: int) -> None: ...

    once.install(app)
    names = {parameter["name"] for parameter in app.openapi()["paths"]["/orders"]["post"]["parameters"]}
    assert names == {"quantity", "more", "Idempotency-Key"}
    once.close()


# --- Flask ---------------------------------------------------------------------------------------------------


@pytest.fixture
def flask_once(orders: Orders) -> Iterator[Onefold]:
    once = Onefold(orders.path, principal=account_of, development=True)
    yield once
    once.close()


@pytest.mark.parametrize("streams", [False, True])
def test_what_flask_does_on_close_is_done_after_commit_or_not_at_all(
    orders: Orders, flask_once: Onefold, streams: bool
) -> None:
    app = Flask("shop")
    ran: list[object] = []
    closed: list[str] = []

    def parts() -> Iterator[str]:
        try:
            yield "done"
        finally:
            closed.append("stream")

    @app.post("/orders")
    @flask_once.idempotent()
    def order() -> FlaskResponse:
        from flask import request

        if request.args:
            current_transaction().connection.execute("INSERT INTO orders (item) VALUES ('book')")
        response = FlaskResponse(parts() if streams else "done")
        add: Callable[[Callable[[], object]], object] = response.call_on_close
        add(lambda: ran.append(orders.items))
        return response

    flask_once.install(app)
    headers = {"x-account": "acme", "idempotency-key": '"k"'}
    with app.test_client() as client:
        assert client.post("/orders", headers=headers).status_code == 500
        assert (ran, closed) == ([], ["stream"] if streams else [])
        assert client.post("/orders?write=1", headers=headers, buffered=True).status_code == 200
    assert ran == [["book"]]
