"""An application that works in steps, in each framework: a ride is written down, charged, and marked as paid.

The processor stands for another company's service: it counts what it did for each key, and does nothing twice under
one. A plan says where a request goes wrong.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask, request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._kernel.transaction import Transaction
from onefold.fastapi import Steps

RIDE = {"from": "A", "to": "B"}


class Charge(TypedDict):
    id: str
    cents: int


@dataclass
class Processor:
    """Another company's service. What it did, by key."""

    effects: Counter[str] = field(default_factory=Counter)
    calls: list[str] = field(default_factory=list)
    fail_next: list[Exception] = field(default_factory=list)

    def charge(self, key: str) -> Charge:
        self.calls.append(key)
        if self.fail_next:
            raise self.fail_next.pop(0)
        if not self.effects[key]:
            self.effects[key] += 1
        return {"id": f"ch_{sorted(self.effects).index(key)}", "cents": 500}


class Broken(Exception):
    """The plan says so."""


@dataclass
class Plan:
    """What happens after each step, for all requests until it is changed."""

    after: dict[str, Callable[[], Any]] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    status: int = 201
    finishes: bool = True
    """Whether the last step is `finish`; else the answer is stored in a transaction of its own."""

    def at(self, place: str) -> None:
        self.runs[place] += 1
        if place in self.after:
            self.after[place]()


def breaks() -> None:
    raise Broken("on purpose")


@dataclass
class Shop:
    """The functions of the steps, in both colours."""

    processor: Processor = field(default_factory=Processor)
    plan: Plan = field(default_factory=Plan)

    def insert(self, tx: Transaction[Any], name: str) -> dict[str, Any]:
        self.plan.at("insert")
        tx.connection.execute(*self._insert(tx, name))
        _ = tx.publish("ride.created", {"name": name})
        return {"name": name}

    def charge(self, ride: dict[str, Any], *, key: str) -> Charge:
        self.plan.at("charge")
        return self.processor.charge(key)

    def pay(self, tx: Transaction[Any], charge: Charge) -> None:
        self.plan.at("pay")
        tx.connection.execute(*self._insert(tx, f"paid {charge['id']}"))

    def run(self, work: Steps) -> tuple[dict[str, Any], int]:
        ride = work.phase("create", self.insert, "ride")
        self.plan.at("created")
        charge = work.call("charge", self.charge, ride, key=work.derive("charge"))
        self.plan.at("charged")
        if self.plan.finishes:
            work.finish(self.pay, charge)
        self.plan.at("finished")
        return {"charge": charge["id"]}, self.plan.status

    async def ainsert(self, tx: Transaction[Any], name: str) -> dict[str, Any]:
        self.plan.at("insert")
        await self._execute(tx, name)
        _ = tx.publish("ride.created", {"name": name})
        return {"name": name}

    async def acharge(self, ride: dict[str, Any], *, key: str) -> Charge:
        self.plan.at("charge")
        return self.processor.charge(key)

    async def apay(self, tx: Transaction[Any], charge: Charge) -> None:
        self.plan.at("pay")
        await self._execute(tx, f"paid {charge['id']}")

    async def arun(self, work: Steps) -> tuple[dict[str, Any], int]:
        ride = await work.phase("create", self.ainsert, "ride")
        self.plan.at("created")
        charge = await work.call("charge", self.acharge, ride, key=work.derive("charge"))
        self.plan.at("charged")
        if self.plan.finishes:
            await work.finish(self.apay, charge)
        self.plan.at("finished")
        return {"charge": charge["id"]}, self.plan.status

    def _insert(self, tx: Transaction[Any], name: str) -> tuple[str, tuple[str]]:
        mark = "%s" if "psycopg" in type(tx.connection).__module__ else "?"
        return f"INSERT INTO effects VALUES ({mark})", (name,)

    async def _execute(self, tx: Transaction[Any], name: str) -> None:
        if "sqlite" in type(tx.connection).__module__:
            await tx.connection.execute("INSERT INTO effects VALUES (?)", (name,))
        else:
            await tx.connection.execute("INSERT INTO effects VALUES ($1)", name)


class Answer(NamedTuple):
    """What a client got."""

    status_code: int
    headers: Any
    body: Any

    def json(self) -> Any:
        return self.body


class Application:
    """A served application, whichever framework it is written for."""

    def __init__(self, shop: Shop, post: Callable[[str, Any], Answer], complete: Callable[..., Any]) -> None:
        self.shop = shop
        self._post = post
        #: One round of the completer, in the process and on the loop of the application.
        self.complete = complete

    def post(self, key: str = "k-1", ride: Any = RIDE) -> Answer:
        return self._post(key, ride)


@contextmanager
def flask_rides(address: str, **settings: Any) -> Iterator[Application]:
    shop, app = Shop(), Flask(__name__)
    once = Onefold(address, principal=single_principal, source="rides", **settings)

    @app.post("/rides")
    @once.idempotent(required=True)
    def create_ride(work: Steps) -> Any:
        assert request.json is not None
        return shop.run(work)

    once.install(app)
    client = app.test_client()

    def post(key: str, ride: Any) -> Answer:
        found = client.post("/rides", json=ride, headers={"Idempotency-Key": key})
        return Answer(found.status_code, {name.lower(): value for name, value in found.headers}, found.json)

    yield Application(shop, post, once.complete)
    once.close()


@contextmanager
def fastapi_rides(address: str, *, threads: bool = False, **settings: Any) -> Iterator[Application]:
    shop = Shop()
    once: Onefold | AsyncOnefold = (Onefold if threads else AsyncOnefold)(
        address, principal=single_principal, source="rides", **settings
    )

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        if isinstance(once, AsyncOnefold):
            await once.close()

    app = FastAPI(lifespan=lifespan)

    if threads:

        @app.post("/rides", status_code=201)
        @once.idempotent(required=True)
        def create_ride(ride: dict[str, Any], work: Steps) -> Any:
            body, status = shop.run(work)
            return JSONResponse(body, status)

    else:

        @app.post("/rides", status_code=201)
        @once.idempotent(required=True)
        async def create_ride_async(work: Steps, ride: dict[str, Any]) -> Any:
            body, status = await shop.arun(work)
            return JSONResponse(body, status)

    once.install(app)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Application(shop, functools.partial(_post, client), _complete(client, once))
    if isinstance(once, Onefold):
        once.close()


@contextmanager
def starlette_rides(address: str, **settings: Any) -> Iterator[Application]:
    shop = Shop()
    once = AsyncOnefold(address, principal=single_principal, source="rides", **settings)

    @once.idempotent(required=True)
    async def create_ride(request: Request, work: Steps) -> JSONResponse:
        body, status = await shop.arun(work)
        return JSONResponse(body, status)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await once.close()

    app = Starlette(routes=[Route("/rides", create_ride, methods=["POST"])], lifespan=lifespan)
    once.install(app)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Application(shop, functools.partial(_post, client), _complete(client, once))


def _complete(client: TestClient, once: Onefold | AsyncOnefold) -> Callable[..., Any]:
    def complete(**settings: Any) -> Any:
        if isinstance(once, Onefold):
            return once.complete(**settings)
        assert client.portal is not None
        return client.portal.call(functools.partial(once.complete, **settings))

    return complete


def _post(client: TestClient, key: str, ride: Any) -> Answer:
    found = client.post("/rides", json=ride, headers={"Idempotency-Key": key})
    is_json = "json" in found.headers["content-type"]
    return Answer(found.status_code, dict(found.headers), found.json() if is_json else None)


FRAMEWORKS: dict[str, Callable[..., Any]] = {
    "fastapi": fastapi_rides,
    "fastapi def": lambda address, **settings: fastapi_rides(address, threads=True, **settings),
    "flask": flask_rides,
    "starlette": starlette_rides,
}
