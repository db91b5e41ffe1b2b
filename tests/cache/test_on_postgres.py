"""The answer cache before Postgres: which database it is, and how much longer its records live."""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import Any

import asyncpg
import httpx
import pytest

from onefold import AsyncOnefold, single_principal
from onefold.caches import MemoryCache, RedisCache
from onefold.telemetry import CacheLooked, Event
from onefold.testing.servers import PrivateValkey
from tests.cache.conftest import CACHES, SECRET
from tests.db.roles import create_login, dsn_of


async def pay(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await scope["onefold.transaction"].connection.execute("INSERT INTO payment DEFAULT VALUES")
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"paid"})


@pytest.mark.parametrize("kind", CACHES)
async def test_a_record_is_repeated_for_as_long_as_postgres_keeps_it_and_no_longer(
    kind: str, postgres_dsn: str, valkey: PrivateValkey
) -> None:
    looks: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, CacheLooked):
            looks.append(event.outcome)

    redis = partial(RedisCache, valkey.url, secret=SECRET, namespace="orders", timeout_s=5.0)
    make = MemoryCache if kind == "memory" else redis
    once = AsyncOnefold(postgres_dsn, principal=single_principal, cache=make(ttl_s=3600.0), listener=hear)
    await once.migrate()
    assert once._layer.cached is not None
    cache: Any = once._layer.cached.cache
    connection = await asyncpg.connect(postgres_dsn)
    app = once.asgi(pay, {"POST /payments": once.policy(required=True)})
    transport: Any = httpx.ASGITransport(app)
    try:
        await connection.execute("CREATE TABLE payment (id integer GENERATED ALWAYS AS IDENTITY)")
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

            async def post() -> bool:
                answer = await client.post("/payments", headers={"idempotency-key": "k1"})
                assert (answer.status_code, answer.content) == (201, b"paid")
                return "idempotent-replayed" in answer.headers

            assert [await post(), await post()] == [False, True]
            [(digest,)] = await connection.fetch(
                "UPDATE onefold_record SET expires_at = now() + interval '120 seconds' RETURNING digest"
            )
            gone = cache.forget([digest])
            assert gone is True or await gone
            assert [await post(), await post()] == [True, True]
            await connection.execute("UPDATE onefold_record SET expires_at = '-infinity'")
            assert await post(), "it is not asked before that"
            cache._wall_ms = lambda: time.time() * 1000 + 121_000
            assert not await post()
        assert looks[:5] == ["miss", "hit", "miss", "hit", "hit"]
        assert await connection.fetchval("SELECT count(*) FROM payment") == 2
    finally:
        await connection.close()
        await once.close()


async def test_a_role_that_may_not_read_which_database_it_is_is_told_once_and_gets_its_answers(
    postgres_dsn: str, valkey: PrivateValkey, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, CacheLooked):
            looks.append(event.outcome)

    owner = AsyncOnefold(postgres_dsn, principal=single_principal)
    await owner.migrate()
    await owner.close()
    role = f"shop_{secrets.token_hex(6)}"
    create_login(role, postgres_dsn)
    cache = RedisCache(valkey.url, secret=SECRET, namespace="orders", timeout_s=5.0)
    once = AsyncOnefold(dsn_of(role, postgres_dsn), principal=single_principal, cache=cache, listener=hear)
    connection = await asyncpg.connect(postgres_dsn)
    transport: Any = httpx.ASGITransport(once.asgi(pay, {"POST /payments": once.policy(required=True)}))
    try:
        await connection.execute("CREATE TABLE payment (id integer GENERATED ALWAYS AS IDENTITY)")
        await connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON onefold_record, payment TO {role}")
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

            async def post() -> int:
                return (await client.post("/payments", headers={"idempotency-key": "k1"})).status_code

            assert [await post(), await post()] == [201, 201]
            assert looks == ["skipped", "skipped"]
            assert caplog.text.count("SELECT on onefold_migration (`onefold docs postgres`)") == 1
            await connection.execute(f"GRANT SELECT ON onefold_migration TO {role}")
            assert [await post(), await post()] == [201, 201]
            assert looks[2:] == ["miss", "hit"]
    finally:
        await once.close()
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await connection.close()
