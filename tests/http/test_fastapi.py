"""FastAPI: the transaction as a dependency, answers that are not the handler's own, and what follows an answer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request as StarletteRequest

from onefold import AsyncOnefold, Onefold, Transaction, single_principal
from onefold._http.fastapi_dependencies import Tx, transaction_of
from onefold.db.sqlite import AsyncSqlite, SqliteDatabase, async_sqlite
from onefold.errors import ConfigurationError, ProgrammerError
from tests.http.stages import Client, Orders, account_of, calling, problem, replayed
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:  # generic for the type checker only
    AsyncpgConnection = asyncpg.Connection[asyncpg.Record]
else:
    AsyncpgConnection = asyncpg.Connection


class Order(BaseModel):
    item: str
    status: int = 201


class Shop:
    """A FastAPI application over a SQLite file, with onefold for asyncio installed."""

    def __init__(self, orders: Orders, **options: Any) -> None:
        self.orders = orders
        self.once = AsyncOnefold(orders.path, principal=account_of, **options)
        self.app = FastAPI()
        self.once.install(self.app)


@pytest.fixture
async def shop(orders: Orders) -> AsyncIterator[Shop]:
    found = Shop(orders, development=True)
    yield found
    await found.once.close()


@pytest.fixture
async def client(shop: Shop) -> AsyncIterator[Client]:
    async with calling(shop.app) as found:
        yield found


async def buy(order: Order, tx: Tx[AsyncSqlite]) -> dict[str, str]:
    """The endpoint of most of these tests."""
    await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
    if order.status != 201:
        raise HTTPException(order.status, "as you wish")
    return {"bought": order.item}


# --- the transaction -----------------------------------------------------------------------------------------


async def test_an_endpoint_runs_once_and_its_answer_is_replayed(shop: Shop, client: Client) -> None:
    shop.app.post("/orders", status_code=201)(shop.once.idempotent(required=True)(buy))
    first = await client.post("/orders", {"item": "book"}, key='"k"')
    retry = await client.post("/orders", {"item": "book"}, key='"k"')
    assert (first.status_code, first.json(), replayed(first)) == (201, {"bought": "book"}, False)
    assert (retry.status_code, retry.content, replayed(retry)) == (201, first.content, True)
    assert shop.orders.items == ["book"]
    assert problem(await client.post("/orders", {"item": "pen"})) == "key-missing"


async def test_an_http_exception_of_the_endpoint_is_stored_without_its_rows(shop: Shop, client: Client) -> None:
    shop.app.post("/orders", status_code=201)(shop.once.idempotent()(buy))
    answers = [await client.post("/orders", {"item": "book", "status": 402}, key='"k"') for _ in range(2)]
    assert [(answer.status_code, replayed(answer)) for answer in answers] == [(402, False), (402, True)]
    assert answers[0].json() == answers[1].json() == {"detail": "as you wish"}
    assert shop.orders.items == []


async def test_an_exception_leaves_nothing_and_the_retry_runs(shop: Shop, client: Client) -> None:
    calls: list[str] = []

    @shop.app.post("/orders")
    @shop.once.idempotent()
    async def endpoint(order: Order, tx: Tx[AsyncSqlite]) -> None:
        calls.append(order.item)
        await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
        if len(calls) == 1:
            raise LookupError("not today")

    assert (await client.post("/orders", {"item": "book"}, key='"k"')).status_code == 500
    assert (shop.orders.items, shop.orders.records) == ([], 0)
    assert (await client.post("/orders", {"item": "book"}, key='"k"')).status_code == 200
    assert shop.orders.items == ["book"]


async def test_half_an_endpoint_does_not_stay_when_an_exception_handler_answers_success(
    shop: Shop, client: Client
) -> None:
    @shop.app.exception_handler(LookupError)
    async def answer_anyway(request: StarletteRequest, error: Exception) -> Response:
        return Response(status_code=303, headers={"location": "/sorry"})

    @shop.app.post("/orders")
    @shop.once.idempotent()
    async def fail(order: Order, tx: Tx[AsyncSqlite]) -> None:
        await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
        raise LookupError

    for key in ('"k"', '"k"', None):
        answer = await client.post("/orders", {"item": "book"}, key=key)
        assert (answer.status_code, replayed(answer), shop.orders.items) == (303, False, [])
    assert shop.orders.records == 0


async def test_middleware_that_runs_an_endpoint_again_after_it_raised_is_refused_with_the_way_out(
    orders: Orders,
) -> None:
    once = AsyncOnefold(orders.path, principal=account_of)
    app = FastAPI()
    told: list[str] = []

    class Again:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                await self.app(scope, receive, send)
            except LookupError:
                try:
                    await self.app(scope, receive, send)
                except ProgrammerError as error:
                    told.append(str(error))
                    raise

    @app.post("/orders")
    @once.idempotent()
    async def fail(tx: Tx[AsyncSqlite]) -> None:
        raise LookupError

    app.add_middleware(Again)
    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 500
    [message] = told
    assert "raised LookupError and is called again in the same request (POST /orders)" in message
    assert "in a savepoint" in message
    await once.close()


async def test_the_transaction_is_an_asyncpg_connection_on_postgres(postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=4) as pool:
        await pool.execute("CREATE TABLE orders (item text)")
        once = AsyncOnefold(pool, principal=account_of, development=True)
        await once.migrate()
        app = FastAPI()
        once.install(app)

        @app.post("/orders", status_code=201)
        @once.idempotent(required=True)
        async def endpoint(order: Order, tx: Tx[AsyncpgConnection]) -> dict[str, str]:
            async with tx.connection.transaction():
                await tx.connection.execute("INSERT INTO orders (item) VALUES ($1)", order.item)
            if order.status != 201:
                raise HTTPException(order.status)
            return {"bought": order.item}

        async with calling(app) as client:
            many = await asyncio.gather(*(client.post("/orders", {"item": "book"}, key='"k"') for _ in range(10)))
            assert {answer.status_code for answer in many} <= {201, 409}
            assert replayed(await client.post("/orders", {"item": "book"}, key='"k"'))
            assert (await client.post("/orders", {"item": "pen", "status": 402}, key='"l"')).status_code == 402
        assert [tuple(row) for row in await pool.fetch("SELECT item FROM orders")] == [("book",)]


def sync_app(once: Onefold, seen: list[type]) -> FastAPI:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent(required=True)
    def endpoint(order: Order, tx: Tx[sqlite3.Connection]) -> dict[str, str]:
        seen.append(type(tx.connection))
        tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
        if order.status != 201:
            raise HTTPException(order.status)
        return {"bought": order.item}

    once.install(app)
    return app


async def test_plain_endpoints_get_the_real_sqlite_connection(orders: Orders) -> None:
    once = Onefold(orders.path, principal=account_of, development=True)
    seen: list[type] = []
    async with calling(sync_app(once, seen)) as client:
        assert (await client.post("/orders", {"item": "book"}, key='"k"')).status_code == 201
        assert replayed(await client.post("/orders", {"item": "book"}, key='"k"'))
        assert (await client.post("/orders", {"item": "pen", "status": 402}, key='"l"')).status_code == 402
    assert [issubclass(kind, sqlite3.Connection) for kind in seen] == [True] * 2
    assert orders.items == ["book"]
    once.close()


async def test_many_plain_endpoints_at_once_take_turns(orders: Orders) -> None:
    once = Onefold(SqliteDatabase(orders.path, busy_timeout_s=PATIENCE_S), principal=account_of)
    once.migrate()
    async with calling(sync_app(once, [])) as client:
        many = (client.post("/orders", {"item": f"book {number}"}, key=f'"{number}"') for number in range(30))
        assert {answer.status_code for answer in await asyncio.gather(*many)} == {201}
    assert len(orders.items) == 30
    once.close()


async def test_without_a_key_an_optional_route_still_commits_before_it_answers(shop: Shop, client: Client) -> None:
    shop.app.post("/orders", status_code=201)(shop.once.idempotent()(buy))
    assert (await client.post("/orders", {"item": "book"})).status_code == 201
    assert shop.orders.items == ["book"]
    assert (await client.post("/orders", {"item": "pen", "status": 402})).status_code == 402
    assert (await client.post("/orders", {"item": "ink", "status": 503})).status_code == 503
    assert (shop.orders.items, shop.orders.records) == (["book"], 0)


async def test_a_savepoint_undoes_its_part_only(shop: Shop, client: Client) -> None:
    @shop.app.post("/orders")
    @shop.once.idempotent()
    async def endpoint(order: Order, tx: Tx[AsyncSqlite]) -> None:
        await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
        try:
            async with tx.savepoint():
                await tx.connection.execute("INSERT INTO orders (item) VALUES ('extra')")
                raise LookupError("out of extras")
        except LookupError:
            pass

    assert (await client.post("/orders", {"item": "book"}, key='"k"')).status_code == 200
    assert shop.orders.items == ["book"]


# --- answers that are not the handler's own ------------------------------------------------------------------


async def test_c15b_a_failed_validation_is_not_stored_and_the_corrected_retry_runs(shop: Shop, client: Client) -> None:
    shop.app.post("/orders", status_code=201)(shop.once.idempotent()(buy))
    invalid = await client.post("/orders", {"itme": "book"}, key='"k"')
    assert (invalid.status_code, problem(invalid)) == (422, "")
    corrected = await client.post("/orders", {"item": "book"}, key='"k"')
    assert (corrected.status_code, replayed(corrected)) == (201, False)


async def test_c15b_a_dependency_that_refuses_is_not_stored(shop: Shop, client: Client) -> None:
    admitted: list[bool] = []

    def admitting() -> None:
        if not admitted:
            raise HTTPException(404, "not for you")

    @shop.app.post("/orders", status_code=201, dependencies=[Depends(admitting)])
    @shop.once.idempotent()
    async def endpoint(order: Order, tx: Tx[AsyncSqlite]) -> dict[str, str]:
        return await buy(order, tx)

    assert (await client.post("/orders", {"item": "book"}, key='"k"')).status_code == 404
    admitted.append(True)
    assert (await client.post("/orders", {"item": "book"}, key='"k"')).status_code == 201


async def test_a_second_session_that_goes_around_the_transaction_is_refused_in_development(
    shop: Shop, client: Client
) -> None:
    @shop.app.post("/orders")
    @shop.once.idempotent()
    async def endpoint(order: Order, tx: Tx[AsyncSqlite]) -> None:
        shop.orders.sql(f"INSERT INTO orders (item) VALUES ('{order.item}')")

    refused = await client.post("/orders", {"item": "book"}, key='"k"')
    assert (refused.status_code, problem(refused)) == (500, "handler-broken")
    assert "writes=False" in refused.json()["detail"]
    assert shop.orders.records == 0


async def test_an_idempotent_call_inside_another_is_refused(shop: Shop, client: Client) -> None:
    shop.app.post("/orders", status_code=201)(shop.once.idempotent()(buy))
    inner: list[httpx.Response] = []

    @shop.app.post("/baskets", status_code=201)
    @shop.once.idempotent()
    async def baskets(order: Order, tx: Tx[AsyncSqlite]) -> None:
        await tx.connection.execute("INSERT INTO orders (item) VALUES ('basket')")
        inner.append(await client.post("/orders", {"item": "book"}, key='"inner"'))

    outer = await client.post("/baskets", {"item": "x"}, key='"outer"')
    assert outer.status_code == 201
    assert (inner[0].status_code, problem(inner[0])) == (500, "handler-broken")
    assert "inside another idempotent request" in inner[0].json()["detail"]
    assert shop.orders.items == ["basket"]


async def test_an_unmarked_route_is_not_touched(shop: Shop, client: Client) -> None:
    @shop.app.post("/search")
    async def search(request: StarletteRequest) -> dict[str, bool]:
        return {"transaction": "onefold.transaction" in request.scope}

    answers = [await client.post("/search", {}, key='"k"') for _ in range(2)]
    assert [answer.json() for answer in answers] == [{"transaction": False}] * 2
    assert not any(replayed(answer) for answer in answers)


async def test_a_transaction_that_only_a_request_asks_for_on_an_unmarked_route_is_an_error_that_says_so(
    shop: Shop,
) -> None:
    """Not a parameter of the handler: those are refused when the application starts."""

    @shop.app.post("/orders", dependencies=[Depends(transaction_of)])
    async def endpoint() -> None: ...

    with pytest.raises(ProgrammerError, match=r"mark the endpoint with @once\.idempotent"):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(shop.app), base_url="http://shop.test") as http:
            await http.post("/orders")


# --- what follows the answer ---------------------------------------------------------------------------------


async def test_a_background_task_runs_after_the_commit_and_finds_the_transaction_over(
    shop: Shop, client: Client
) -> None:
    seen: list[object] = []

    def later(tx: Transaction[AsyncSqlite]) -> None:
        seen.append(shop.orders.items)
        try:
            seen.append(tx.connection)
        except ProgrammerError as error:
            seen.append(str(error))

    @shop.app.post("/orders")
    @shop.once.idempotent()
    async def endpoint(order: Order, tx: Tx[AsyncSqlite], background: BackgroundTasks) -> None:
        await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
        background.add_task(later, tx)

    await client.post("/orders", {"item": "book"}, key='"k"')
    assert seen[0] == ["book"]
    assert "the transaction is over" in str(seen[1])
    await client.post("/orders", {"item": "book"}, key='"k"')
    assert len(seen) == 2


async def test_a_background_task_that_fails_does_not_undo_the_answer(shop: Shop, client: Client) -> None:
    def later() -> None:
        raise LookupError("no mail server")

    @shop.app.post("/orders")
    @shop.once.idempotent()
    async def endpoint(order: Order, tx: Tx[AsyncSqlite], background: BackgroundTasks) -> None:
        await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
        background.add_task(later)

    first = await client.post("/orders", {"item": "book"}, key='"k"')
    retry = await client.post("/orders", {"item": "book"}, key='"k"')
    assert (first.status_code, retry.status_code, replayed(retry)) == (200, 200, True)


async def test_the_exit_of_a_dependency_sees_the_handlers_exception_and_a_committed_answer(
    shop: Shop, client: Client
) -> None:
    seen: list[object] = []

    def watched() -> Iterator[None]:
        try:
            yield
        except LookupError as error:
            seen.append(error)
            raise
        seen.append(list(shop.orders.items))

    @shop.app.post("/orders", dependencies=[Depends(watched)])
    @shop.once.idempotent()
    async def endpoint(order: Order, tx: Tx[AsyncSqlite]) -> None:
        await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
        if order.item == "bad":
            raise LookupError

    assert (await client.post("/orders", {"item": "bad"}, key='"k"')).status_code == 500
    assert isinstance(seen.pop(), LookupError)
    assert (await client.post("/orders", {"item": "book"}, key='"l"')).status_code == 200
    assert seen == [["book"]]


@pytest.mark.parametrize("behind_middleware", [True, False], ids=["behind a middleware", "bare"])
async def test_c28_a_framework_that_listens_for_the_client_does_not_cancel_the_work(
    shop: Shop, behind_middleware: bool
) -> None:
    async def through(request: StarletteRequest, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    started, goes_on = asyncio.Event(), asyncio.Event()

    @shop.app.post("/orders")
    @shop.once.idempotent()
    async def endpoint(tx: Tx[AsyncSqlite]) -> StreamingResponse:
        await tx.connection.execute("INSERT INTO orders (item) VALUES ('book')")

        async def stream() -> AsyncIterator[bytes]:
            yield b"part one, "
            started.set()
            await goes_on.wait()
            yield b"part two"

        return StreamingResponse(stream())

    if behind_middleware:
        shop.app.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=through))  # inside the layer
    gone = asyncio.Event()
    heard: list[str] = []
    body = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Any:
        if body:
            return body.pop()
        await gone.wait()
        heard.append("disconnect")
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise OSError("the client has hung up")

    headers = [(b"x-account", b"acme"), (b"idempotency-key", b'"k"')]
    scope = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"", "headers": headers}
    call = asyncio.ensure_future(shop.app(scope, receive, send))
    await started.wait()
    gone.set()
    for _ in range(20):  # whoever listens has had its turn
        await asyncio.sleep(0)
    assert not heard
    goes_on.set()
    await asyncio.gather(call, return_exceptions=True)
    async with calling(shop.app) as client:
        retry = await client.http.post("/orders", content=b"{}", headers=headers)
    assert (retry.status_code, retry.content, replayed(retry)) == (200, b"part one, part two", True)
    assert shop.orders.items == ["book"]


# --- mistakes that are found at start ------------------------------------------------------------------------


def test_a_route_without_a_principal_is_refused_at_start_with_the_way_out(orders: Orders) -> None:
    once = Onefold(orders.path)
    with pytest.raises(ConfigurationError, match=r"has no principal.*principal=onefold\.single_principal"):
        once.idempotent(required=True)
    assert once.idempotent(principal=single_principal) is not None
    once.close()


def test_what_cannot_be_installed_into_is_refused_with_the_way_out(orders: Orders) -> None:
    once = Onefold(orders.path, principal=single_principal)
    with pytest.raises(ConfigurationError, match=r"cannot install into builtins\.dict.*once\.asgi\(app, routes\)"):
        once.install({})
    once.close()


@pytest.mark.parametrize("pages", ["onefold", ""])
def test_pages_below_no_path_are_refused(orders: Orders, pages: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a path that starts with '/'"):
        Onefold(orders.path, pages=pages)


async def test_a_database_that_was_not_migrated_says_what_to_run(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    once = AsyncOnefold(async_sqlite(orders.path), principal=account_of)
    app = FastAPI()
    once.install(app)
    app.post("/orders", status_code=201)(once.idempotent()(buy))
    async with calling(app) as client:
        refused = await client.post("/orders", {"item": "book"}, key='"k"')
        assert (refused.status_code, problem(refused)) == (503, "store-not-migrated")
        assert "onefold migrate" in refused.json()["detail"]
        assert "onefold migrate" in caplog.text
        await once.migrate()
        assert (await client.post("/orders", {"item": "book"}, key='"k"')).status_code == 201
    await once.close()


def test_a_database_that_was_not_migrated_is_not_migrated_behind_its_owners_back(orders: Orders) -> None:
    Onefold(SqliteDatabase(orders.path), principal=account_of).close()
    assert [name for (name,) in orders.sql("SELECT name FROM sqlite_master WHERE type = 'table'")] == ["orders"]
