"""A principal's quota: refused with 429 above it, replays are never refused, and every way out gives the place back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi import BackgroundTasks, FastAPI, HTTPException
from flask import Flask, Response, abort
from starlette.requests import Request as StarletteRequest

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold.db.sqlite import SqliteDatabase
from onefold.errors import ConfigurationError, StoreUnavailable
from onefold.policies import Quota
from onefold.telemetry import Claimed, Event
from tests.http.stages import Client, Orders, account_of, calling, problem, replayed
from tests.support.patience import PATIENCE_S


class Shop:
    """A FastAPI application with a quota, whose handler does what the request's header says."""

    def __init__(self, orders: Orders, quota: Quota, **settings: Any) -> None:
        self.orders = orders
        self.quota = quota
        self.events: list[Event] = []
        self.once = AsyncOnefold(orders.path, principal=account_of, quota=quota, listener=self.events.append)
        self.app = FastAPI()
        self.entered, self.free = asyncio.Event(), asyncio.Event()
        self.followed = asyncio.Event()

        @self.app.post("/orders", status_code=201)
        @self.once.idempotent(**settings)
        async def order(request: StarletteRequest, background: BackgroundTasks, tx: Tx[Any]) -> None:
            match request.headers.get("does", ""):
                case "wait":
                    self.entered.set()
                    await self.free.wait()
                case "raise":
                    raise LookupError("broken")
                case "refuse":
                    raise HTTPException(402)
                case "fail":
                    raise HTTPException(500)
                case "not stored":
                    raise HTTPException(403)
                case "misuse":
                    await tx.savepoint().__aenter__()
                case "follow":
                    background.add_task(self.follow)
                case "stick":
                    tx.after_commit(self.follow)
                case "stick, refused":
                    tx.after_rollback(self.follow)
                    raise HTTPException(402)
                case _:
                    pass

        @self.app.post("/own")
        @self.once.idempotent(quota=Quota(in_flight=1))
        async def own() -> None: ...

        self.once.install(self.app)

    async def follow(self) -> None:
        self.followed.set()
        await self.free.wait()

    @property
    def in_flight(self) -> int:
        return self.quota._running.get("acme", (0, 0))[0]


@contextlib.asynccontextmanager
async def shop_of(orders: Orders, quota: Quota, **settings: Any) -> AsyncIterator[tuple[Shop, Client]]:
    shop = Shop(orders, quota, **settings)
    async with calling(shop.app) as client:
        yield shop, client
    await shop.once.close()


async def do(client: Client, key: str | None, does: str = "", **headers: str) -> httpx.Response:
    return await client.post("/orders", key=key, headers={"does": does, **headers})


async def test_more_requests_in_flight_than_a_principal_may_have_are_refused_and_replays_are_not(
    orders: Orders,
) -> None:
    async with shop_of(orders, Quota(in_flight=1)) as (shop, client):
        assert (await do(client, '"done"')).status_code == 201
        running = asyncio.create_task(do(client, '"1"', "wait"))
        await shop.entered.wait()
        for key in ('"2"', None):
            refused = await do(client, key)
            assert (refused.status_code, problem(refused)) == (429, "too-many-requests")
            assert (refused.json()["retryable"], refused.headers["retry-after"]) == (True, "1")
        assert Claimed("POST /orders", "limited") in shop.events
        assert replayed(await do(client, '"done"'))
        assert (await do(client, '"1"')).status_code == 409, "a duplicate is told so, and not that there are too many"
        assert (await do(client, '"2"', **{"x-account": "umbrella"})).status_code == 201
        assert (await client.post("/own", key='"2"')).status_code == 200, "a route with its own is counted by itself"
        shop.free.set()
        assert (await running).status_code == 201
        assert (await do(client, '"2"')).status_code == 201
        assert shop.in_flight == 0


async def test_records_per_hour_count_what_is_stored_and_nothing_else(orders: Orders) -> None:
    async with shop_of(orders, Quota(records_per_hour=2)) as (_, client):
        for does, status in (("raise", 500), ("fail", 500), ("not stored", 403)):
            assert (await do(client, f'"{does}"', does)).status_code == status
        assert (await do(client, None)).status_code == 201
        assert (await do(client, '"1"')).status_code == 201
        assert (await do(client, '"2"', "refuse")).status_code == 402
        refused = await do(client, '"3"')
        assert (refused.status_code, problem(refused)) == (429, "too-many-requests")
        assert 3300 <= int(refused.headers["retry-after"]) <= 3900
        assert [replayed(await do(client, key)) for key in ('"1"', '"2"')] == [True, True]
        assert (await do(client, None)).status_code == 201
        assert (await do(client, '"3"', **{"x-account": "umbrella"})).status_code == 201
    assert orders.records == 3


@pytest.mark.parametrize("key", ['"k"', None])
@pytest.mark.parametrize("does", ["", "raise", "refuse", "fail", "not stored", "misuse"])
async def test_every_way_out_gives_the_place_back(orders: Orders, does: str, key: str | None) -> None:
    async with shop_of(orders, Quota(in_flight=1, records_per_hour=100)) as (shop, client):
        assert (await do(client, key, does)).status_code != 429
        assert (shop.in_flight, shop.quota._running) == (0, {})


async def test_a_cancelled_request_gives_its_place_back(orders: Orders) -> None:
    async with shop_of(orders, Quota(in_flight=1)) as (shop, client):
        running = asyncio.create_task(do(client, '"1"', "wait"))
        await shop.entered.wait()
        assert shop.in_flight == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert shop.in_flight == 0


@pytest.mark.parametrize("does", ["stick", "stick, refused"])
async def test_a_request_that_is_cancelled_in_a_hook_after_its_commit_has_made_its_record(
    orders: Orders, does: str
) -> None:
    async with shop_of(orders, Quota(records_per_hour=1)) as (shop, client):
        running = asyncio.create_task(do(client, '"1"', does))
        await shop.followed.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert orders.records == 1
        assert (await do(client, '"2"')).status_code == 429
        assert replayed(await do(client, '"1"', does))
        shop.free.set()


async def test_what_follows_the_answer_holds_no_place(orders: Orders) -> None:
    async with shop_of(orders, Quota(in_flight=1)) as (shop, client):
        running = asyncio.create_task(do(client, '"1"', "follow"))
        await shop.followed.wait()
        assert shop.in_flight == 0
        shop.free.set()
        assert (await running).status_code == 201


async def test_an_unprotected_request_is_counted_while_it_runs(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop_of(orders, Quota(in_flight=1, records_per_hour=1), store_down="run") as (shop, client):

        def gone(_: object) -> object:
            raise StoreUnavailable("no file")

        monkeypatch.setattr(SqliteDatabase, "acquire", gone)
        monkeypatch.setattr(SqliteDatabase, "at_hand", gone)
        running = asyncio.create_task(do(client, '"1"', "wait"))
        await shop.entered.wait()
        assert (await do(client, '"2"')).status_code == 429
        shop.free.set()
        assert (await running).status_code == 201
        assert [(await do(client, key)).status_code for key in ('"2"', '"3"')] == [201, 201], "nothing was recorded"
        assert shop.in_flight == 0


class Views:
    """The same for Flask."""

    def __init__(self, orders: Orders, quota: Quota) -> None:
        self.quota = quota
        self.once = Onefold(orders.path, principal=account_of, quota=quota)
        self.app = Flask("shop")
        self.entered, self.free = threading.Event(), threading.Event()
        does: dict[str, Callable[[], object]] = {
            "": current_transaction,
            "wait": self.wait,
            "raise": self.fail,
            "refuse": lambda: abort(409),
            "interrupt": self.interrupt,
            "interrupt later": lambda: current_transaction().after_commit(self.interrupt),
        }

        @self.app.post("/orders/<what>")
        @self.app.post("/orders/")
        @self.once.idempotent()
        def order(what: str = "") -> Response:
            does[what]()
            return Response(status=201)

        self.once.install(self.app)

    def wait(self) -> None:
        self.entered.set()
        assert self.free.wait(PATIENCE_S)

    def fail(self) -> None:
        raise LookupError("broken")

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    def post(self, key: str, what: str = "") -> int:
        headers = {"x-account": "acme", "idempotency-key": key}
        return self.app.test_client().post(f"/orders/{what}", headers=headers).status_code


def test_threads_of_wsgi_are_counted_too(orders: Orders) -> None:
    views = Views(orders, Quota(in_flight=1))
    with ThreadPoolExecutor() as pool:
        assert views.post('"done"') == 201
        running = pool.submit(views.post, '"1"', "wait")
        assert views.entered.wait(PATIENCE_S)
        assert (views.post('"2"'), views.post('"done"')) == (429, 201)
        views.free.set()
        assert running.result(PATIENCE_S) == 201
    assert (views.post('"2"'), views.post('"3"', "refuse"), views.post('"4"', "raise")) == (201, 409, 500)
    with pytest.raises(KeyboardInterrupt):
        views.post('"5"', "interrupt")
    assert views.quota._running == {}
    views.once.close()


def test_a_thread_that_is_interrupted_in_a_hook_after_its_commit_has_made_its_record(orders: Orders) -> None:
    views = Views(orders, Quota(records_per_hour=1))
    with pytest.raises(KeyboardInterrupt):
        views.post('"1"', "interrupt later")
    assert orders.records > 0
    assert (views.post('"2"'), views.quota._running) == (429, {})
    views.once.close()


async def test_openapi_names_the_refusal_where_there_is_a_quota(orders: Orders) -> None:
    async with shop_of(orders, Quota(in_flight=1)) as (shop, _):

        @shop.app.post("/free")
        @shop.once.idempotent(quota=None)
        async def free() -> None: ...

        paths = shop.app.openapi()["paths"]
        assert ["429" in paths[path]["post"]["responses"] for path in ("/orders", "/own", "/free")] == [
            True,
            True,
            False,
        ]


def test_a_quota_that_is_none_is_refused_where_it_is_written(orders: Orders) -> None:
    with pytest.raises(ConfigurationError, match="quota=10 must be a Quota"):
        Onefold(orders.path, principal=account_of, quota=10)  # type: ignore[arg-type]
    once = Onefold(orders.path, principal=account_of)
    with pytest.raises(ConfigurationError, match="quota=10 must be a Quota"):
        once.idempotent(quota=10)  # type: ignore[arg-type]
    once.close()
