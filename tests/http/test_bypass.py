"""Marked handlers that the layer does not find, or that are reached around it: they do not run unprotected."""

from __future__ import annotations

import asyncio
from typing import Any

import flask
import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Host, Mount, Route, Router

from onefold import AsyncOnefold, Onefold
from onefold.errors import ConfigurationError, ProgrammerError
from tests.http.stages import Client, Orders, account_of, calling, problem, replayed


class Shop:
    """An application of which a layer outside sees nothing but that it can be called."""

    def __init__(self, once: AsyncOnefold, name: str = "") -> None:
        self.ran: list[str] = []
        self.app = FastAPI()

        @self.app.post("/orders")
        @once.idempotent()
        async def order() -> dict[str, int | str]:
            self.ran.append("order")
            return {"orders": len(self.ran), "shop": name}

        self.order = order

    async def opaque(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


async def refused(app: Any, path: str, kind: type[ProgrammerError], *, host: str = "shop.test") -> str:
    """What the framework is given when a request is refused at the handler's door; the client gets a plain 500."""
    async with calling(app) as client:
        answer = await client.post(path, key='"k"', headers={"host": host})
        assert (answer.status_code, answer.text, problem(answer)) == (500, "Internal Server Error", "")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
        with pytest.raises(ProgrammerError) as refusal:
            await http.post(path, headers={"x-account": "acme", "idempotency-key": '"k"'})
    assert type(refusal.value) is kind
    return str(refusal.value)


async def happens_once(client: Client, path: str, **more: Any) -> bool:
    answers = [await client.post(path, key='"k"', **more) for _ in range(2)]
    return [(answer.status_code, replayed(answer)) for answer in answers] == [(200, False), (200, True)]


# --- refused -------------------------------------------------------------------------------------------------


async def test_a_marked_handler_that_is_hidden_from_the_layer_keeps_the_application_from_starting(
    once: AsyncOnefold,
) -> None:
    shop = Shop(once)
    outer = Starlette(routes=[Mount("/eu", shop.opaque)])
    once.install(outer)
    told = await refused(outer, "/eu/orders", ConfigurationError)
    assert "Shop.__init__.<locals>.order" in told
    assert "no application that onefold is installed into" in told
    assert shop.ran == []


async def test_a_handler_that_only_a_rewritten_path_leads_to_does_not_run(once: AsyncOnefold) -> None:
    shop = Shop(once)

    async def rewriting(scope: Any, receive: Any, send: Any) -> None:
        await shop.app({**scope, "path": "/orders"}, receive, send)

    assert "outside of a request" in await refused(once.asgi(rewriting, {}), "/v1/orders", ProgrammerError)
    assert shop.ran == []


async def test_a_handler_without_a_passage_may_not_call_a_marked_one(once: AsyncOnefold) -> None:
    shop = Shop(once)
    once.install(shop.app)

    @shop.app.post("/both")
    async def both() -> None:
        await shop.order()

    assert "unmarked function" in await refused(shop.app, "/both", ProgrammerError)
    assert shop.ran == []


def test_a_view_of_flask_that_only_a_rewritten_path_leads_to_does_not_run(orders: Orders) -> None:
    once = Onefold(orders.path, principal=account_of)
    app = flask.Flask(__name__)
    app.testing = True  # exceptions reach the test
    ran: list[str] = []

    @app.post("/orders")
    @once.idempotent()
    def order() -> str:
        ran.append("order")
        return "ordered"

    plain = app.wsgi_app

    def rewriting(environ: Any, start_response: Any) -> Any:
        return plain({**environ, "PATH_INFO": environ["PATH_INFO"].removeprefix("/v1")}, start_response)

    app.wsgi_app = rewriting  # type: ignore[method-assign]
    once.install(app)
    client, headers = app.test_client(), {"x-account": "acme", "idempotency-key": '"k"'}
    with pytest.raises(ProgrammerError, match=r"order is marked as idempotent, but it was called outside"):
        client.post("/v1/orders", headers=headers)
    assert ran == []
    assert [client.post("/orders", headers=headers).text for _ in range(2)] == ["ordered"] * 2
    assert len(ran) == 1
    once.close()


async def test_work_that_a_request_left_behind_may_not_call_a_marked_handler(once: AsyncOnefold) -> None:
    shop = Shop(once)
    once.install(shop.app)
    left: list[asyncio.Task[Any]] = []
    may_go_on = asyncio.Event()

    async def work() -> None:
        await may_go_on.wait()
        await shop.order()

    @shop.app.post("/later")
    @once.idempotent()
    async def later() -> None:
        left.append(asyncio.create_task(work()))

    async with calling(shop.app) as client:
        assert (await client.post("/later", key='"k"')).status_code == 200
    may_go_on.set()
    with pytest.raises(ProgrammerError, match="outside of a request"):
        await left[0]
    assert shop.ran == []


# --- not refused ---------------------------------------------------------------------------------------------


async def test_an_application_below_may_bring_its_own_layer(once: AsyncOnefold) -> None:
    shop = Shop(once)
    once.install(shop.app)

    @shop.app.post("/both")
    @once.idempotent()
    async def both() -> None:
        await shop.order()

    outer = Starlette(routes=[Mount("/eu", shop.opaque)])
    once.install(outer)
    async with calling(outer) as client:
        assert await happens_once(client, "/eu/orders")
        assert await happens_once(client, "/eu/both")
    assert shop.ran == ["order", "order"]


# --- hosts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
async def test_routes_below_a_host_are_found_there_and_only_there(once: AsyncOnefold, framework: Any) -> None:
    shop, other = Shop(once), Shop(once)

    async def unmarked(request: Request) -> JSONResponse:
        return JSONResponse({})

    app = framework(
        routes=[
            Route("/first", unmarked, methods=["POST"]),
            Host("shop.test", shop.app),
            Mount("/eu", Router([Host("other.test", other.app)])),
            Route("/orders", unmarked, methods=["POST"]),
        ]
    )
    once.install(app)
    async with calling(app) as client:
        assert await happens_once(client, "/orders", headers={"host": "shop.test:8000"})
        assert await happens_once(client, "/eu/orders", headers={"host": "other.test"})
        for path, host in (("/orders", "third.test"), ("/first", "shop.test")):
            assert not await happens_once(client, path, headers={"host": host})
        page = (await client.get("/onefold/specification")).text
    assert (shop.ran, other.ran) == (["order"], ["order"])
    assert "POST //shop.test/orders" in page
    assert "POST //other.test/eu/orders" in page


async def test_the_same_key_at_another_host_is_another_request(once: AsyncOnefold) -> None:
    app = Starlette(routes=[Host(f"{name}.test", Shop(once, name).app) for name in ("one", "two")])
    once.install(app)
    async with calling(app) as client:
        answers = [
            await client.post("/orders", key='"k"', headers={"host": f"{name}.test"}) for name in ("one", "two", "one")
        ]
    assert [(answer.json()["shop"], replayed(answer)) for answer in answers] == [
        ("one", False),
        ("two", False),
        ("one", True),
    ]


async def test_a_handler_below_a_host_with_parameters_keeps_the_application_from_starting(once: AsyncOnefold) -> None:
    shop, behind = Shop(once), Shop(once)
    app = Starlette(routes=[Host("{tenant}.shop.test", shop.app), Mount("", behind.app)])
    once.install(app)
    assert "Host with parameters" in await refused(app, "/orders", ConfigurationError, host="acme.shop.test")
    assert (shop.ran, behind.ran) == ([], [])
