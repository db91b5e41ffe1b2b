"""One service with conditional routes, in each framework, over each kind of driver.

`PUT /orders/{id}` creates or replaces, `DELETE /orders/{id}` removes and may be repeated, `GET /orders/{id}` reads. The
handlers write by natural writes, which are the same on every driver.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Response
from flask import Flask, request

from onefold import AsyncOnefold, Onefold, single_principal
from onefold.fastapi import Condition, Tx
from onefold.flask import current_condition, current_transaction
from onefold.policies import Conditional
from tests.natural.stages import Stage, look, opened

#: Framework, driver, form of the table. What is judged depends on the framework alone, and by which row on the driver
#: and the form alone: each of them once is enough, and both kinds of database with each kind of framework.
WAYS = [
    ("asgi", "asyncpg", "plain"),
    ("fastapi", "psycopg-async", "plain"),
    ("fastapi", "asyncpg engine", "mapped"),
    ("fastapi", "aiosqlite engine", "table"),
    ("flask", "sqlite", "plain"),
    ("flask", "psycopg engine", "mapped"),
    ("wsgi", "psycopg", "plain"),
]
#: One for each framework.
FRAMEWORKS = [
    ("asgi", "sqlite-async", "plain"),
    ("fastapi", "asyncpg", "plain"),
    ("flask", "sqlite engine", "table"),
    ("wsgi", "sqlite", "plain"),
]


class Service:
    """The application, and a client of it."""

    def __init__(self, stage: Stage, app: Any, *, is_asgi: bool) -> None:
        self.stage = stage
        self.app = app
        self._is_asgi = is_asgi

    async def ask(self, method: str, id_: str, note: str = "x", **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.send(method, f"/orders/{id_}", sent, {"note": note} if method == "PUT" else None)

    async def send(self, method: str, path: str, headers: dict[str, str], body: object = None) -> httpx.Response:
        if self._is_asgi:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
                return await client.request(method, path, headers=headers, json=body)

        def call() -> httpx.Response:
            with httpx.Client(transport=httpx.WSGITransport(self.app), base_url="http://shop.test") as client:
                return client.request(method, path, headers=headers, json=body)

        return await asyncio.to_thread(call)


class Writes:
    """What the handlers do, in either colour, to the orders of a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.table = stage.table("orders")
        self.etag: Callable[[Any], Any] = lambda row: row["version"] if isinstance(row, dict) else row.version

    def where(self, id_: str) -> dict[str, Any]:
        return {self._stage.name("id"): id_}

    def create(self, tx: Any, id_: str, note: str) -> Any:
        return tx.insert_once(self.table, {**self.where(id_), "note": note, "version": 1}, on=self._stage.name("id"))

    def replace(self, tx: Any, id_: str, old: str, note: str) -> Any:
        return tx.transition(self.table, where=self.where(id_), state="note", come_from=old, to=note, version="version")

    def remove(self, tx: Any, id_: str) -> Any:
        """By a move out of sight: a view of the table is what the service shows."""
        return tx.transition(
            self.table, where=self.where(id_), state=self._stage.name("status"), come_from="new", to="gone"
        )

    def show(self, row: Any) -> dict[str, Any]:
        read = self._stage.read
        return {"id": read(row, "id"), "note": read(row, "note"), "version": read(row, "version")}

    def note(self, row: Any) -> str:
        found: str = self._stage.read(row, "note")
        return found

    def look(self, id_: str) -> dict[str, Any] | None:
        rows = look(self._stage.address, f"SELECT id, note, version FROM orders WHERE id = '{id_}'")
        return dict(zip(("id", "note", "version"), rows[0], strict=True)) if rows else None


async def put_async(writes: Writes, id_: str, note: str, tx: Any, condition: Any) -> dict[str, Any]:
    current = await condition.lock(writes.table, where=writes.where(id_))
    if current is None:
        return writes.show((await writes.create(tx, id_, note)).row)
    return writes.show((await writes.replace(tx, id_, writes.note(current), note)).row)


def put(writes: Writes, id_: str, note: str, tx: Any, condition: Any) -> dict[str, Any]:
    current = condition.lock(writes.table, where=writes.where(id_))
    if current is None:
        return writes.show(writes.create(tx, id_, note).row)
    return writes.show(writes.replace(tx, id_, writes.note(current), note).row)


@asynccontextmanager
async def service(framework: str, driver: str, form: Any, address: str) -> AsyncIterator[Service]:
    async with opened(driver, address, form, principal=single_principal) as stage:
        migrated = stage.once.migrate()
        if stage.asynchronous:
            await migrated
        look(address, "DELETE FROM onefold_record")  # of other tests on the same server
        make: dict[str, Callable[..., Any]] = {"fastapi": _fastapi, "flask": _flask, "asgi": _asgi, "wsgi": _wsgi}
        yield Service(stage, make[framework](stage.once, Writes(stage)), is_asgi=framework in ("fastapi", "asgi"))


def _fastapi(once: AsyncOnefold, writes: Writes) -> Any:
    app = FastAPI()

    @app.put("/orders/{id_}")
    @once.conditional(etag="version")
    async def replace(id_: str, body: dict[str, str], tx: Tx[Any], condition: Condition) -> dict[str, Any]:
        return await put_async(writes, id_, body["note"], tx, condition)

    @app.delete("/orders/{id_}", status_code=204)
    @once.conditional(etag=writes.etag, repeatable_delete=True)
    async def remove(id_: str, tx: Tx[Any], condition: Condition) -> None:
        if await condition.lock(writes.table, where={**writes.where(id_), writes._stage.name("status"): "new"}):
            await writes.remove(tx, id_)

    @app.get("/orders/{id_}")
    @once.conditional(etag="version")
    async def read(id_: str, response: Response) -> Any:
        response.headers["cache-control"] = "no-cache"
        return writes.look(id_) or Response(status_code=404)

    once.install(app)
    return app


def _flask(once: Onefold, writes: Writes) -> Any:
    app = Flask(__name__)

    @app.put("/orders/<id_>")
    @once.conditional(etag="version")
    def replace(id_: str) -> Any:
        body: Any = request.json
        return put(writes, id_, body["note"], current_transaction(), current_condition()), 200

    @app.delete("/orders/<id_>")
    @once.conditional(etag=writes.etag, repeatable_delete=True)
    def remove(id_: str) -> Any:
        where = {**writes.where(id_), writes._stage.name("status"): "new"}
        if current_condition().lock(writes.table, where=where):
            writes.remove(current_transaction(), id_)
        return "", 204, {"ETag": '"gone"'}

    @app.get("/orders/<id_>")
    @once.conditional(etag="version")
    def read(id_: str) -> Any:
        found = writes.look(id_)
        if found is None:
            return app.response_class(status=404)
        current_condition().tag(found)
        return app.response_class(json.dumps(found), headers={"cache-control": "no-cache"})

    once.install(app)
    return app


_ROUTES = ("PUT /orders/{id}", "DELETE /orders/{id}")


def _policies(once: Any) -> dict[str, Any]:
    return {route: once.policy(conditional=Conditional(etag="version", repeatable_delete=True)) for route in _ROUTES}


def _asgi(once: Any, writes: Writes) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"] or b"{}")
        id_, tx, condition = scope["path"].rsplit("/", 1)[1], scope["onefold.transaction"], scope["onefold.condition"]
        status, answer = 200, b""
        if scope["method"] == "PUT":
            row = await put_async(writes, id_, body["note"], tx, condition)
            condition.tag(row)
            answer = json.dumps(row).encode()
        else:
            status = 204
            if await condition.lock(writes.table, where={**writes.where(id_), "status": "new"}):
                await writes.remove(tx, id_)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    return once.asgi(app, _policies(once))


def _wsgi(once: Any, writes: Writes) -> Any:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        id_, tx = environ["PATH_INFO"].rsplit("/", 1)[1], environ["onefold.transaction"]
        condition = environ["onefold.condition"]
        if environ["REQUEST_METHOD"] == "PUT":
            row = put(writes, id_, json.loads(environ["wsgi.input"].read())["note"], tx, condition)
            condition.tag(row)
            start_response("200 OK", [])
            return [json.dumps(row).encode()]
        if condition.lock(writes.table, where={**writes.where(id_), "status": "new"}):
            writes.remove(tx, id_)
        start_response("204 No Content", [])
        return []

    return once.wsgi(app, _policies(once))


@contextmanager
def is_problem(answer: httpx.Response, status: int, name: str) -> Iterator[dict[str, Any]]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert answer.json()["type"] == f"urn:onefold:problem:{name}"
    yield answer.json()
