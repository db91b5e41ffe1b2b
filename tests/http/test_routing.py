"""Finding the idempotent route of a request as the framework itself will find it: routers, mounts, prefixes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from onefold import AsyncOnefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.request import Request as OnefoldRequest
from onefold._http.route_policy import Policy, single_principal
from onefold._http.routes import HostPrefix, RouteEntry, RouteTable
from onefold.db.sqlite import AsyncSqlite
from onefold.errors import ProgrammerError
from onefold.starlette import transaction_of
from tests.http.stages import Client, Orders, account_of, calling, problem, replayed


class Order(BaseModel):
    item: str


@pytest.fixture
async def once(orders: Orders) -> AsyncIterator[AsyncOnefold]:
    found = AsyncOnefold(orders.path, principal=account_of, development=True)
    yield found
    await found.close()


async def buy(order: Order, tx: Tx[AsyncSqlite]) -> dict[str, str]:
    await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (order.item,))
    return {"bought": order.item}


async def happens_once(client: Client, path: str, item: str, *, method: str = "POST") -> bool:
    first = await client.post(path, {"item": item}, key='"k"', method=method)
    retry = await client.post(path, {"item": item}, key='"k"', method=method)
    return (first.status_code, retry.status_code, replayed(first), replayed(retry)) == (200, 200, False, True)


async def test_routers_with_prefixes_are_followed_however_deep_and_late(orders: Orders, once: AsyncOnefold) -> None:
    app, outer, inner = FastAPI(), APIRouter(prefix="/v1"), APIRouter(prefix="/shops/{shop}")
    once.install(app)
    inner.post("/orders")(once.idempotent()(buy))
    outer.include_router(inner, prefix="/eu")
    app.include_router(outer, prefix="/api")
    app.openapi()
    inner.post("/late")(once.idempotent()(buy))
    async with calling(app) as client:
        assert await happens_once(client, "/api/v1/eu/shops/7/orders", "book")
        assert await happens_once(client, "/api/v1/eu/shops/7/late", "pen")
        app.post("/later")(once.idempotent()(buy))
        assert await happens_once(client, "/later", "ink")
    assert orders.items == ["book", "ink", "pen"]


async def test_routes_of_a_mounted_application_are_found_from_outside(orders: Orders, once: AsyncOnefold) -> None:
    outer, inner = FastAPI(), FastAPI()
    once.install(outer)
    inner.post("/orders/{number}")(once.idempotent()(buy))
    outer.mount("/shop", inner)
    async with calling(outer) as client:
        assert await happens_once(client, "/shop/orders/1", "book")
        other = await client.post("/shop/orders/2", {"item": "book"}, key='"k"')
    assert problem(other) == "key-reused"
    assert orders.items == ["book"]


async def test_a_mounted_application_may_bring_its_own_layer(orders: Orders, once: AsyncOnefold) -> None:
    outer, inner = FastAPI(), FastAPI()
    once.install(inner)
    inner.post("/orders")(once.idempotent(required=True)(buy))
    outer.mount("/shop", inner)
    async with calling(outer) as client:
        assert await happens_once(client, "/shop/orders", "book")
        missing = await client.post("/shop/orders", {"item": "pen"})
        assert missing.headers["link"] == '</shop/onefold/specification>; rel="describedby"'
        page = await client.get("/shop/onefold/specification")
        assert (page.status_code, "POST /shop/orders" in page.text) == (200, True)
        for operation in ("POST /shop/orders", "POST /orders"):  # as it is published, and as the application has it
            query = {"operation": operation}
            status = await client.http.get(
                "/shop/onefold/status", params=query, headers={"x-account": "acme", "idempotency-key": '"k"'}
            )
            assert status.json()["state"] == "done"


@pytest.mark.parametrize("root_path", ["/api", "/ord", "/orders"])
async def test_a_prefix_that_a_proxy_took_away_does_not_hide_a_route(
    orders: Orders, once: AsyncOnefold, root_path: str
) -> None:
    app = FastAPI()
    once.install(app)
    app.post("/orders")(once.idempotent()(buy))
    async with calling(app, root_path=root_path) as client:
        assert await happens_once(client, "/orders", "book") or root_path == "/orders"
        if root_path == "/orders":  # then the framework itself reads the path as being below that prefix
            assert await happens_once(client, "/orders/orders", "pen")


async def test_a_prefix_that_the_server_left_in_the_path_does_not_hide_a_route(
    orders: Orders, once: AsyncOnefold
) -> None:
    app = FastAPI()
    once.install(app)
    app.post("/orders")(once.idempotent(required=True)(buy))
    async with calling(app, root_path="/api") as client:
        assert await happens_once(client, "/api/orders", "book")
        missing = await client.post("/api/orders", {"item": "pen"})
        assert missing.headers["link"] == '</api/onefold/specification>; rel="describedby"'
        assert (await client.get("/api/onefold/specification")).status_code == 200


async def test_the_first_route_that_matches_is_the_one_even_where_only_its_parameter_type_decides(
    orders: Orders, once: AsyncOnefold
) -> None:
    app = FastAPI()
    once.install(app)

    @app.post("/orders/{number:int}")
    async def unmarked(number: int) -> str:
        return "a number"

    app.post("/orders/{name}")(once.idempotent()(buy))
    app.post("/files/{path:path}")(once.idempotent()(buy))
    async with calling(app) as client:
        numbers = [await client.post("/orders/7", {"item": "x"}, key='"k"') for _ in range(2)]
        assert [(answer.json(), replayed(answer)) for answer in numbers] == [("a number", False)] * 2
        assert await happens_once(client, "/orders/seven", "book")
        assert await happens_once(client, "/files/a/b/c", "pen")


async def test_starlette_alone_will_do_with_functions_and_classes(orders: Orders, once: AsyncOnefold) -> None:
    @once.idempotent()
    async def order(request: Request) -> JSONResponse:
        item = (await request.json())["item"]
        await transaction_of(request).connection.execute("INSERT INTO orders (item) VALUES (?)", (item,))
        return JSONResponse({"bought": item})

    class Endpoint(HTTPEndpoint):
        @once.idempotent()
        async def put(self, request: Request) -> JSONResponse:
            result: Any = await order.__wrapped__(request)  # type: ignore[attr-defined]
            assert isinstance(result, JSONResponse)
            return result

        async def delete(self, request: Request) -> JSONResponse:
            return JSONResponse({})

    mounted = Mount("/v2", routes=[Route("/orders", Endpoint)])
    app = Starlette(routes=[Route("/orders", order, methods=["POST"]), mounted])
    once.install(app)
    async with calling(app) as client:
        assert await happens_once(client, "/orders", "book")
        assert await happens_once(client, "/v2/orders", "pen", method="PUT")
        assert not replayed(await client.post("/v2/orders", key='"k"', method="DELETE"))
        page = (await client.get("/onefold/specification")).text
    assert "PUT /v2/orders" in page
    assert "DELETE /v2/orders" not in page


async def test_an_endpoint_of_starlette_that_is_not_marked_is_told_where_to_mark(once: AsyncOnefold) -> None:
    async def order(request: Request) -> JSONResponse:
        with pytest.raises(ProgrammerError, match=r"/orders has no transaction: mark .* the function itself or the"):
            transaction_of(request)
        return JSONResponse("refused")

    app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders")).json() == "refused"


async def test_a_path_that_only_looks_like_a_route_is_not_one(orders: Orders, once: AsyncOnefold) -> None:
    app = FastAPI()
    once.install(app)
    app.post("/orders")(once.idempotent(required=True)(buy))
    async with calling(app) as client:
        assert (await client.post("/orders/7", {"item": "book"})).status_code == 404
        assert (await client.post("/order", {"item": "book"})).status_code == 404
        assert (await client.post("/orders", {"item": "book"}, method="PUT")).status_code == 405


async def test_a_line_feed_behind_the_path_which_starlette_does_not_see_is_not_a_way_around(
    orders: Orders, once: AsyncOnefold
) -> None:
    app = FastAPI()
    once.install(app)
    app.post("/orders")(once.idempotent(required=True)(buy))
    async with calling(app) as client:
        assert problem(await client.post("/orders%0A", {"item": "book"})) == "key-missing"


def entry(template: str, *, marked: bool = True, host: HostPrefix | None = None) -> RouteEntry:
    return RouteEntry(frozenset({"POST"}), template, Policy(principal=single_principal) if marked else None, host)


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (entry("/orders/{id}"), "/orders/{id}"),
        (entry("/orders/{id}", marked=False), None),
        (entry("/orders/new", marked=False), None),
        (entry("/orders/new", host=HostPrefix("//shop.test", lambda _: True)), "//shop.test/orders/new"),
        (entry("/orders/new", host=HostPrefix("//shop.test", lambda _: False)), "/orders/new"),
        (entry("/orders"), "/orders/new"),
    ],
)
def test_a_route_without_parameters_waits_for_its_turn_as_any_other(first: RouteEntry, found: str | None) -> None:
    table = RouteTable([first, entry("/orders/new")])
    route = table.resolve(OnefoldRequest("POST", "/orders/new"))
    assert (None if route is None else route.template) == found
    assert table.resolve(OnefoldRequest("GET", "/orders/new")) is None


def test_a_route_without_parameters_is_found_below_the_root_of_a_server_and_below_a_mount() -> None:
    table = RouteTable([entry("/orders")])
    for source in ({}, {"root_path": "/api"}, {"root_path": "/api/shop", "app_root_path": "/api"}):
        route = table.resolve(OnefoldRequest("POST", source.get("root_path", "") + "/orders", source=source))
        assert route is not None
        assert route.name == ("/shop/orders" if "app_root_path" in source else "/orders")
