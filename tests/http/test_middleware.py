"""Middleware around and inside of the layer: compression and CORS in each order, and the prefix a server may leave."""

from __future__ import annotations

import gzip

import httpx
import pytest
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from onefold import AsyncOnefold
from onefold._http.fastapi_dependencies import Tx
from onefold.db.sqlite import AsyncSqlite
from tests.http.stages import Orders, calling, problem, replayed

TEXT = "a long text " * 100
ORIGIN = "https://shop.example"
EXPOSED = ["Idempotent-Replayed", "Retry-After", "Link"]


def shop(once: AsyncOnefold, order: str) -> FastAPI:
    """An application whose middleware was added in this order: what comes later is further out."""
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent(required=True)
    async def buy(item: str, tx: Tx[AsyncSqlite]) -> dict[str, str]:
        await tx.connection.execute("INSERT INTO orders (item) VALUES (?)", (item,))
        return {"text": TEXT}

    for name in order.split():
        match name:
            case "once":
                once.install(app)
            case "gzip":
                app.add_middleware(GZipMiddleware, minimum_size=100)
            case _:
                app.add_middleware(
                    CORSMiddleware,
                    allow_origins=[ORIGIN],
                    allow_methods=["POST"],
                    allow_headers=["Idempotency-Key", "Content-Type"],
                    expose_headers=EXPOSED,
                )
    return app


ORDERS = ["once gzip cors", "once cors gzip", "gzip once cors", "cors once gzip", "gzip cors once", "cors gzip once"]


async def raw_body(answer: httpx.Response) -> bytes:
    return b"".join([chunk async for chunk in answer.aiter_raw()])


@pytest.mark.parametrize("order", ORDERS)
async def test_whatever_the_order_a_replay_is_in_a_coding_its_caller_accepts(once: AsyncOnefold, order: str) -> None:
    headers = {"x-account": "acme", "idempotency-key": '"k"', "origin": ORIGIN}
    async with calling(shop(once, order)) as client:
        for accepted in ("gzip", "identity", "gzip", "br"):
            asked = client.http.build_request(
                "POST", "/orders?item=book", headers=headers | {"accept-encoding": accepted}
            )
            answer = await client.http.send(asked, stream=True)
            body = await raw_body(answer)
            encoding = answer.headers.get("content-encoding")
            assert answer.status_code == 200
            assert encoding == ("gzip" if accepted == "gzip" else None)
            assert (gzip.decompress(body) if encoding else body) == b'{"text":"%b"}' % TEXT.encode()
            assert answer.headers["content-length"] == str(len(body))
            assert "accept-encoding" in answer.headers["vary"].lower()


@pytest.mark.parametrize("order", ORDERS)
async def test_cors_headers_are_on_replays_and_refusals_where_cors_was_added_after_the_layer(
    once: AsyncOnefold, order: str
) -> None:
    outside = order.index("cors") > order.index("once")
    async with calling(shop(once, order)) as client:

        async def ask(key: str | None, item: str = "book") -> httpx.Response:
            return await client.post(f"/orders?item={item}", key=key, headers={"origin": ORIGIN})

        first = await ask('"k"')
        assert first.headers["access-control-allow-origin"] == ORIGIN
        retry, reused, missing = await ask('"k"'), await ask('"k"', "pen"), await ask(None)
        assert (replayed(retry), problem(reused), problem(missing)) == (True, "key-reused", "key-missing")
        for answer in (retry, reused, missing):
            assert answer.headers.get("access-control-allow-origin") == (ORIGIN if outside else None)
            assert answer.headers.get("access-control-expose-headers") == (", ".join(EXPOSED) if outside else None)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_browser_may_send_the_key(once: AsyncOnefold, order: str) -> None:
    async with calling(shop(once, order)) as client:
        preflight = await client.http.options(
            "/orders",
            headers={
                "origin": ORIGIN,
                "access-control-request-method": "POST",
                "access-control-request-headers": "idempotency-key",
            },
        )
        assert preflight.status_code == 200
        assert "Idempotency-Key" in preflight.headers["access-control-allow-headers"]


# --- root_path -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["/orders", "/shops/{shop}/orders", "/files/{path:path}"])
async def test_a_prefix_in_the_path_or_taken_away_is_one_request(
    once: AsyncOnefold, orders: Orders, template: str
) -> None:
    app = FastAPI()

    @app.post(template)
    @once.idempotent()
    async def buy(tx: Tx[AsyncSqlite]) -> str:
        await tx.connection.execute("INSERT INTO orders (item) VALUES ('book')")
        return "done"

    once.install(app)
    path = template.replace("{shop}", "7").replace("{path:path}", "a/b")
    async with calling(app, root_path="/api") as client:
        answers = [await client.post(asked, key='"k"') for asked in (f"/api{path}", path, f"/api{path}")]
        query = {"operation": f"POST {template}"}
        headers = {"x-account": "acme", "idempotency-key": '"k"'}
        for page in ("/api/onefold/status", "/onefold/status"):
            status = await client.http.get(page, params=query, headers=headers)
            assert (status.status_code, status.json().get("state")) == (200, "done"), status.text
    assert [(answer.status_code, replayed(answer)) for answer in answers] == [(200, False), (200, True), (200, True)]
    assert orders.items == ["book"]
