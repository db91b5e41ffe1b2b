"""Metrics of requests: each is moved by requests that are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request

from onefold import AsyncOnefold, single_principal
from onefold._idempotency.cache.memory_cache import MemoryAnswers
from onefold.caches import MemoryCache
from onefold.fastapi import Tx
from tests.observe.measured import Measured

PAY = "POST /payments/{account}"


class Shop:
    """An application whose handler does as the request's body says."""

    def __init__(self, path: Path, measured: Measured, **settings: Any) -> None:
        self.once = AsyncOnefold(
            str(path),
            principal=settings.pop("principal", single_principal),
            listener=measured.listeners,
            cache=settings.pop("cache", None),
        )
        self.app = FastAPI()
        self.begun, self.go = asyncio.Event(), asyncio.Event()

        @self.app.post("/payments/{account}", status_code=201)
        @self.once.idempotent(**settings)
        async def pay(account: str, order: dict[str, str], tx: Tx[Any]) -> dict[str, str]:
            match order.get("do"):
                case "wait":
                    self.begun.set()
                    await self.go.wait()
                case "raise":
                    raise LookupError(order["card"])
                case "hook":
                    tx.after_commit(self.hang)
                case _:
                    pass
            return order

        self.once.install(self.app)

    async def hang(self) -> None:
        self.begun.set()
        await self.go.wait()


@asynccontextmanager
async def serving(shop: Shop) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(shop.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client
    await shop.once.close()


async def pay(client: httpx.AsyncClient, key: str, account: str = "acme", **order: str) -> int:
    answer = await client.post(f"/payments/{account}", json=order, headers={"Idempotency-Key": key})
    return answer.status_code


async def test_claims_are_counted_by_outcome_and_replays_as_duplicates(sqlite_path: Path, measured: Measured) -> None:
    shop = Shop(sqlite_path, measured)
    async with serving(shop) as client:
        running = asyncio.create_task(pay(client, "a", do="wait"))
        await shop.begun.wait()
        assert await pay(client, "a", do="wait") == 409
        shop.go.set()
        assert await running == 201
        assert await pay(client, "a", do="wait") == 201
        assert await pay(client, "a", do="wait") == 201
        assert await pay(client, "a", do="other") == 422
        assert await pay(client, "b", do="raise", card="4242") == 500
    assert measured.values("onefold_requests_total") == {
        (PAY, "run"): 2,
        (PAY, "in_flight"): 1,
        (PAY, "replay"): 2,
        (PAY, "mismatch"): 1,
    }
    assert measured.value("onefold_duplicates_total", hop="http") == 2


@pytest.mark.parametrize("asked", ["principal", "authorize"])
async def test_a_principal_or_authorize_that_fails_is_counted_and_one_that_refuses_is_not(
    sqlite_path: Path, measured: Measured, asked: str
) -> None:
    def answer(request: Request) -> str | None:
        match request.headers["idempotency-key"]:
            case "raises":
                raise ConnectionError("the session store is away")
            case "is-away":
                raise HTTPException(503)
            case "returns-no-answer":
                return b"acme"  # type: ignore[return-value]
            case "refuses":
                raise HTTPException(401)
            case _:
                pass
        return "acme" if asked == "principal" else None

    async with serving(Shop(sqlite_path, measured, **{asked: answer})) as client:
        statuses = [await pay(client, key) for key in ("raises", "is-away", "returns-no-answer", "refuses", "passes")]
    assert statuses == [500, 503, 500, 401, 201]
    assert measured.values("onefold_authentication_failures_total") == {(PAY,): 3}
    assert measured.values("onefold_requests_total") == {(PAY, "run"): 1}


async def test_looks_into_the_answer_cache_are_counted(sqlite_path: Path, measured: Measured) -> None:
    shop = Shop(sqlite_path, measured, cache=MemoryCache())
    async with serving(shop) as client:
        assert [await pay(client, key) for key in ("a", "a", "a", "b")] == [201] * 4
    assert measured.values("onefold_cache_looks_total") == {(PAY, "miss"): 2, (PAY, "hit"): 2}
    assert measured.values("onefold_cache_stores_total") == {(PAY, "stored"): 2}
    assert measured.value("onefold_duplicates_total", hop="http") == 2


async def test_the_time_in_flight_is_measured_by_how_it_ended(sqlite_path: Path, measured: Measured) -> None:
    shop = Shop(sqlite_path, measured)
    async with serving(shop) as client:
        await pay(client, "a")
        await pay(client, "b", do="raise", card="4242")
    assert measured.values("onefold_request_duration_seconds_count") == {("released", PAY): 1, ("stored", PAY): 1}
    assert all(0 < seconds < 60 for seconds in measured.values("onefold_request_duration_seconds_sum").values())
    assert measured.values("onefold_requests_released_total") == {(PAY, "LookupError"): 1}


@pytest.mark.parametrize("in_what", ["cache", "hook"])
async def test_a_request_that_is_cancelled_after_its_commit_is_counted_as_stored(
    sqlite_path: Path, measured: Measured, in_what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(sqlite_path, measured, cache=MemoryCache())
    if in_what == "cache":
        monkeypatch.setattr(MemoryAnswers, "store", lambda *_: shop.hang())
    async with serving(shop) as client:
        running = asyncio.create_task(pay(client, "a", do=in_what))
        await shop.begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        monkeypatch.undo()
        assert await pay(client, "a", do=in_what) == 201
    assert measured.values("onefold_requests_total") == {(PAY, "run"): 1, (PAY, "replay"): 1}
    assert measured.values("onefold_request_duration_seconds_count") == {("stored", PAY): 1}


async def test_a_request_that_is_cancelled_in_its_handler_is_counted_as_released(
    sqlite_path: Path, measured: Measured
) -> None:
    shop = Shop(sqlite_path, measured)
    async with serving(shop) as client:
        running = asyncio.create_task(pay(client, "a", do="wait"))
        await shop.begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        shop.go.set()
        assert await pay(client, "a", do="wait") == 201
    assert measured.values("onefold_requests_total") == {(PAY, "run"): 2}
    assert measured.values("onefold_request_duration_seconds_count") == {("released", PAY): 1, ("stored", PAY): 1}
    assert measured.values("onefold_requests_released_total") == {(PAY, "CancelledError"): 1}


async def test_what_is_deleted_after_its_retention_is_counted(sqlite_path: Path, measured: Measured) -> None:
    shop = Shop(sqlite_path, measured)
    async with serving(shop) as client:
        await pay(client, "a")
        async with shop.once.transaction() as tx:
            await tx.connection.execute("UPDATE onefold_record SET expires_at_ms = 1")
        reaped = await shop.once.reap()
    assert measured.value("onefold_reaped_total", what="records") == reaped.records > 0


async def test_no_label_says_whose_request_it_was_or_what_was_in_it(sqlite_path: Path, measured: Measured) -> None:
    """What a label has is what the route's author has written."""

    secrets = ("key-5ecret", "acct-5ecret", "body-5ecret", "card-5ecret", "token-5ecret", "query-5ecret")
    shop = Shop(sqlite_path, measured, principal=lambda request: request.header("authorization"))
    async with serving(shop) as client:
        client.headers["authorization"] = "token-5ecret"
        client.params = httpx.QueryParams(q="query-5ecret")
        await pay(client, "key-5ecret", "acct-5ecret", note="body-5ecret")
        await pay(client, "key-5ecret", "acct-5ecret", note="body-5ecret")
        await pay(client, "key-5ecret", "acct-5ecret", note="other")
        await pay(client, "key-5ecret-2", "acct-5ecret", do="raise", card="card-5ecret")
    assert measured.value("onefold_requests_total", operation=PAY, outcome="run") == 2
    assert not [secret for secret in secrets if secret in measured.exposition]
    assert "LookupError" in measured.exposition, "the search must be able to find something"
