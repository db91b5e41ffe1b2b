"""A request leaves nothing behind that only the garbage collector could free."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Onefold
from onefold._http import asgi, wsgi
from tests.http.stages import account_of
from tests.support.collector import left_to_collector

REQUESTS = 10
OPERATION = "POST /orders"

#: Key, body and the status that answers it: a first request, its replay, and what is refused.
ASKED = [
    (b'"first-%d"', b'{"n": %d}', 201),
    (b'"first-%d"', b'{"n": %d}', 201),
    (b'"first-%d"', b'{"other": %d}', 422),
    (b'"never-%d"', b'{"refused": %d}', 402),
    (b"", b'{"n": %d}', 400),
]


def status_for(body: bytes) -> int:
    return 402 if b"refused" in body else 201


def written(connection: Any, sql: str) -> Any:
    """Executed, as the driver wants plain SQL."""
    return getattr(connection, "exec_driver_sql", connection.execute)(sql)


async def order(scope: Any, receive: Any, send: Any) -> None:
    body = (await receive())["body"]
    tx = scope[asgi.TRANSACTION]
    await written(tx.connection, "INSERT INTO orders VALUES ('book')")
    tx.publish("ordered", {"item": "book"}, key="book")
    await send({"type": "http.response.start", "status": status_for(body), "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def order_on_a_thread(environ: Any, start_response: Any) -> list[bytes]:
    body = environ["wsgi.input"].read()
    tx = environ[wsgi.TRANSACTION]
    written(tx.connection, "INSERT INTO orders VALUES ('book')")
    tx.publish("ordered", {"item": "book"}, key="book")
    start_response(f"{status_for(body)} .", [])
    return [b"{}"]


async def ask(app: asgi.Application, key: bytes, body: bytes) -> int:
    statuses = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"x-account", b"acme"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/orders",
        "headers": [*headers, (b"idempotency-key", key)] if key else headers,
    }
    await app(scope, receive, send)
    [status] = statuses
    return int(status)


def ask_on_a_thread(app: wsgi.Application, key: bytes, body: bytes) -> int:
    statuses = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], object]:
        statuses.append(status)
        return lambda _: None

    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/orders",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_X_ACCOUNT": "acme",
        "wsgi.input": io.BytesIO(body),
    }
    if key:
        environ["HTTP_IDEMPOTENCY_KEY"] = key.decode()
    chunks = app(environ, start_response)
    list(chunks)
    getattr(chunks, "close", lambda: None)()
    [status] = statuses
    return int(status[:3])


def numbered(template: bytes, number: int) -> bytes:
    return template % number if b"%d" in template else template


@pytest.fixture(params=["sqlite", "postgres", "sqlalchemy"])
async def once(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[AsyncOnefold]:
    async with contextlib.AsyncExitStack() as stack:
        database: Any = str(sqlite_path)
        if request.param == "postgres":
            dsn = request.getfixturevalue("postgres_dsn")
            database = await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=1, max_size=2))
        elif request.param == "sqlalchemy":
            database = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
            stack.push_async_callback(database.dispose)
        once = AsyncOnefold(database, principal=account_of, source="shop")
        stack.push_async_callback(once.close)
        await once.migrate()
        async with once.transaction() as tx:
            await written(tx.connection, "CREATE TABLE orders (item text)")
        yield once


async def asked_on_asgi(app: asgi.Application, start: int) -> None:
    for key, body, expected in ASKED:
        for number in range(start, start + REQUESTS):
            assert await ask(app, numbered(key, number), body % number) == expected


async def test_an_asgi_request_leaves_nothing_to_the_collector(once: AsyncOnefold) -> None:
    app = once.asgi(order, {OPERATION: once.policy(required=True)})
    await asked_on_asgi(app, 0)
    with left_to_collector() as left:
        await asked_on_asgi(app, REQUESTS)
    assert left == []


@pytest.mark.parametrize("once", ["sqlite"], indirect=True)
async def test_control_a_handler_that_leaves_a_cycle_is_seen(once: AsyncOnefold) -> None:
    async def knotted(scope: Any, receive: Any, send: Any) -> None:
        scope["itself"] = scope
        await order(scope, receive, send)

    app = once.asgi(knotted, {OPERATION: once.policy(required=True)})
    with left_to_collector() as left:
        await asked_on_asgi(app, 0)
    assert "OwnedTransaction" in left


@pytest.fixture(params=["sqlite", "postgres", "sqlalchemy"])
def once_on_threads(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[Onefold]:
    with contextlib.ExitStack() as stack:
        database: Any = str(sqlite_path)
        if request.param == "postgres":
            dsn = request.getfixturevalue("postgres_dsn")
            database = stack.enter_context(ConnectionPool(dsn, min_size=1, max_size=2))
        elif request.param == "sqlalchemy":
            dsn = request.getfixturevalue("postgres_dsn")
            database = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
            stack.callback(database.dispose)
        once = Onefold(database, principal=account_of, source="shop")
        stack.callback(once.close)
        once.migrate()
        with once.transaction() as tx:
            written(tx.connection, "CREATE TABLE orders (item text)")
        yield once


def test_a_wsgi_request_leaves_nothing_to_the_collector(once_on_threads: Onefold) -> None:
    app = once_on_threads.wsgi(order_on_a_thread, {OPERATION: once_on_threads.policy(required=True)})

    def asked(start: int) -> None:
        for key, body, expected in ASKED:
            for number in range(start, start + REQUESTS):
                assert ask_on_a_thread(app, numbered(key, number), body % number) == expected

    asked(0)
    with left_to_collector() as left:
        asked(REQUESTS)
    assert left == []
