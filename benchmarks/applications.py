"""The same payment API, written many times: without onefold, with it, and as the textbook has it.

All are Starlette applications with one route, one JSON body and one INSERT, so that what differs between two of
them is what they do about a retry, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, Final, TypeAlias

import asyncpg
from psycopg_pool import AsyncConnectionPool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import onefold
from onefold._http.asgi import TRANSACTION
from onefold._kernel.telemetry import Listener
from onefold.caches import MemoryCache, RedisCache
from onefold.policies import trusted_header
from onefold.prometheus import prometheus_metrics

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[None]]

POSTGRES_TABLES: Final = (
    "CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text NOT NULL, "
    "amount bigint NOT NULL)",
    "CREATE TABLE textbook_keys (key text PRIMARY KEY, request_hash bytea NOT NULL, state text NOT NULL, "
    "status int, body bytea, created_at timestamptz NOT NULL DEFAULT now())",
)
SQLITE_TABLES: Final = (
    "CREATE TABLE payments (id INTEGER PRIMARY KEY, account TEXT NOT NULL, amount INTEGER NOT NULL)",
)
COUNT_PAYMENTS: Final = "SELECT count(*) FROM payments"

_ASYNCPG_INSERT: Final = "INSERT INTO payments (account, amount) VALUES ($1, $2)"
_PSYCOPG_INSERT: Final = "INSERT INTO payments (account, amount) VALUES (%s, %s)"
_SQLITE_INSERT: Final = "INSERT INTO payments (account, amount) VALUES (?, ?)"


#: Where the address of the cache server is.
VALKEY: Final = "ONEFOLD_BENCH_VALKEY"

#: The principal, as an application behind a gateway finds it.
account_of: Final = trusted_header("x-account")


def noop(place: str, pool_size: int) -> Starlette:
    """No database at all: what HTTP and JSON alone allow."""

    async def pay(request: Request) -> Response:
        return created(await request.json())

    return application(pay)


def asyncpg_bare(place: str, pool_size: int) -> Starlette:
    """BEGIN, INSERT, COMMIT."""
    pool = asyncpg_pool(place, pool_size)

    async def pay(request: Request) -> Response:
        payment = await request.json()
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(_ASYNCPG_INSERT, payment["account"], payment["amount"])
        return created(payment)

    return application(pay, lifespan=lambda app: opened(pool))


def asyncpg_onefold(
    place: str, pool_size: int, listener: Listener | None = None, cache: MemoryCache | RedisCache | None = None
) -> Starlette:
    """The INSERT, in onefold's transaction."""
    pool = asyncpg_pool(place, pool_size)
    once = onefold.AsyncOnefold(pool, principal=account_of, listener=listener, cache=cache)

    @once.idempotent(required=True)
    async def pay(request: Request) -> Response:
        payment = await request.json()
        await request.scope[TRANSACTION].connection.execute(_ASYNCPG_INSERT, payment["account"], payment["amount"])
        return created(payment)

    app = application(pay, lifespan=lambda app: opened(pool))
    once.install(app)
    return app


def asyncpg_measured(place: str, pool_size: int) -> Starlette:
    """The same, with metrics for Prometheus."""
    return asyncpg_onefold(place, pool_size, prometheus_metrics())


def asyncpg_memory(place: str, pool_size: int) -> Starlette:
    """With an answer cache in memory."""
    return asyncpg_onefold(place, pool_size, cache=MemoryCache())


def asyncpg_valkey(place: str, pool_size: int) -> Starlette:
    """With an answer cache on a server."""
    return asyncpg_onefold(place, pool_size, cache=valkey_cache())


def valkey_cache() -> RedisCache:
    # A worker that is busy for a tenth of a second is no failure of the server: what is measured is the cache in use.
    return RedisCache(os.environ[VALKEY], secret=b"bench" * 8, namespace="bench", timeout_s=2.0)


def asyncpg_textbook(place: str, pool_size: int) -> Starlette:
    """What most teams write: mark the key, do the work, store the answer, a statement and a round trip for each."""
    pool = asyncpg_pool(place, pool_size)

    async def pay(request: Request) -> Response:
        body = await request.body()
        key, asked = request.headers["idempotency-key"], sha256(body).digest()
        payment = json.loads(body)
        async with pool.acquire() as connection, connection.transaction():
            claimed = await connection.fetchval(
                "INSERT INTO textbook_keys (key, request_hash, state) VALUES ($1, $2, 'in_progress') "
                "ON CONFLICT (key) DO NOTHING RETURNING true",
                key,
                asked,
            )
            if not claimed:
                known = await connection.fetchrow("SELECT * FROM textbook_keys WHERE key = $1", key)
                if known is None or known["request_hash"] != asked:
                    return Response(status_code=422)
                return Response(known["body"], known["status"], {"idempotent-replayed": "true"}, "application/json")
            await connection.execute(_ASYNCPG_INSERT, payment["account"], payment["amount"])
            response = created(payment)
            await connection.execute(
                "UPDATE textbook_keys SET state = 'completed', status = $2, body = $3 WHERE key = $1",
                key,
                response.status_code,
                response.body,
            )
        return response

    return application(pay, lifespan=lambda app: opened(pool))


def psycopg_bare(place: str, pool_size: int) -> Starlette:
    """psycopg begins by itself and commits at the end of the block."""
    pool = psycopg_pool(place, pool_size)

    async def pay(request: Request) -> Response:
        payment = await request.json()
        async with pool.connection() as connection:
            await connection.execute(_PSYCOPG_INSERT, (payment["account"], payment["amount"]))
        return created(payment)

    return application(pay, lifespan=lambda app: opened(pool))


def psycopg_onefold(place: str, pool_size: int) -> Starlette:
    """The INSERT, in onefold's transaction."""
    pool = psycopg_pool(place, pool_size)
    once = onefold.AsyncOnefold(pool, principal=account_of)

    @once.idempotent(required=True)
    async def pay(request: Request) -> Response:
        payment = await request.json()
        connection = request.scope[TRANSACTION].connection
        await connection.execute(_PSYCOPG_INSERT, (payment["account"], payment["amount"]))
        return created(payment)

    app = application(pay, lifespan=lambda app: opened(pool))
    once.install(app)
    return app


def sqlite_bare(place: str, pool_size: int) -> Starlette:
    """BEGIN IMMEDIATE, INSERT, COMMIT on one thread: SQLite has one writer, so more threads would only queue."""
    executor = ThreadPoolExecutor(max_workers=1)
    connection = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")

    def write(account: str, amount: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_SQLITE_INSERT, (account, amount))
        connection.execute("COMMIT")

    async def pay(request: Request) -> Response:
        payment = await request.json()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(executor, write, payment["account"], payment["amount"])
        return created(payment)

    return application(pay)


def sqlite_onefold(place: str, pool_size: int, cache: MemoryCache | RedisCache | None = None) -> Starlette:
    """The INSERT, in onefold's transaction."""
    once = onefold.AsyncOnefold(place, principal=account_of, cache=cache)

    @once.idempotent(required=True)
    async def pay(request: Request) -> Response:
        payment = await request.json()
        await request.scope[TRANSACTION].connection.execute(_SQLITE_INSERT, (payment["account"], payment["amount"]))
        return created(payment)

    app = application(pay)
    once.install(app)
    return app


def sqlite_memory(place: str, pool_size: int) -> Starlette:
    """With an answer cache in memory."""
    return sqlite_onefold(place, pool_size, MemoryCache())


def sqlite_valkey(place: str, pool_size: int) -> Starlette:
    """With an answer cache on a server."""
    return sqlite_onefold(place, pool_size, valkey_cache())


#: By the name a server process is started with.
APPLICATIONS: Final[dict[str, Callable[[str, int], Starlette]]] = {
    application.__name__: application
    for application in (
        noop,
        asyncpg_bare,
        asyncpg_onefold,
        asyncpg_measured,
        asyncpg_memory,
        asyncpg_valkey,
        asyncpg_textbook,
        psycopg_bare,
        psycopg_onefold,
        sqlite_bare,
        sqlite_onefold,
        sqlite_memory,
        sqlite_valkey,
    )
}


def application(pay: Endpoint, *, lifespan: Lifespan | None = None) -> Starlette:
    return Starlette(routes=[Route("/payments", pay, methods=["POST"])], lifespan=lifespan)


def created(payment: Any) -> JSONResponse:
    return JSONResponse({"account": payment["account"], "amount": payment["amount"], "state": "paid"}, 201)


def asyncpg_pool(dsn: str, size: int) -> asyncpg.Pool[asyncpg.Record]:
    """Not open yet; made while its loop runs."""
    return asyncpg.create_pool(dsn, min_size=size, max_size=size)


def psycopg_pool(dsn: str, size: int) -> AsyncConnectionPool:
    """Not open yet; made while its loop runs."""
    return AsyncConnectionPool(dsn, min_size=size, max_size=size, open=False)


@contextlib.asynccontextmanager
async def opened(pool: asyncpg.Pool[asyncpg.Record] | AsyncConnectionPool) -> AsyncIterator[None]:
    async with pool:
        yield
