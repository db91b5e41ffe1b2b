"""A response that fails half-way is no answer: nothing is committed, stored or passed off as whole, whatever middleware
stands between the layer and the endpoint (Starlette's BaseHTTPMiddleware ends the body before the exception rises)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response, StreamingResponse

from onefold import AsyncOnefold
from onefold._http.fastapi_dependencies import Tx
from onefold.db.sqlite import AsyncSqlite
from tests.http.stages import Orders, account_of, calling, replayed
from tests.http.test_background import Buffering, PassingOn, Rewriting

BETWEEN: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "BaseHTTPMiddleware": (PassingOn,),
    "two of them": (PassingOn, PassingOn),
    "one that rewrites": (Rewriting,),
    "one that buffers": (PassingOn, Buffering),
    "one below GZip": (PassingOn, GZipMiddleware),
    "one above GZip": (GZipMiddleware, PassingOn),
}


class Shop:
    """An endpoint whose answer is made while it is sent, and fails as often as it is told to."""

    def __init__(self, orders: Orders, *between: Any) -> None:
        self.failures = 0
        self.chunk = b"x" * 1000
        self.once = AsyncOnefold(orders.path, principal=account_of)
        self.app = FastAPI()
        for middleware in between:
            self.app.add_middleware(middleware)
        self.once.install(self.app)
        self._add_endpoints()

    def fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("disk full")

    def _add_endpoints(self) -> None:
        shop = self

        class OwnWay(Response):
            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": shop.chunk, "more_body": True})
                shop.fail()
                await send({"type": "http.response.body", "body": b"end"})

        @self.app.post("/stream")
        @self.once.idempotent()
        async def stream(tx: Tx[AsyncSqlite]) -> Response:
            async def rows() -> AsyncIterator[bytes]:
                await tx.connection.execute("INSERT INTO orders (item) VALUES ('book')")
                yield shop.chunk
                shop.fail()
                yield b"end"

            return StreamingResponse(rows())

        @self.app.post("/own")
        @self.once.idempotent()
        async def own(tx: Tx[AsyncSqlite]) -> Response:
            await tx.connection.execute("INSERT INTO orders (item) VALUES ('book')")
            return OwnWay()


@pytest.fixture
async def shop(orders: Orders, request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    found = Shop(orders, *BETWEEN[request.param])
    yield found
    await found.once.close()


#: What is too large to be kept is sent while it is made; compressed it is not too large.
CASES = [(name, 10) for name in BETWEEN] + [(name, 2_000_000) for name in BETWEEN if "GZip" in name]


@pytest.mark.parametrize(("shop", "chunk_bytes"), CASES, indirect=["shop"])
@pytest.mark.parametrize("path", ["/stream", "/own"])
async def test_half_an_answer_is_neither_sent_nor_stored(
    shop: Shop, orders: Orders, path: str, chunk_bytes: int
) -> None:
    shop.chunk, shop.failures = b"x" * chunk_bytes, 1
    async with calling(shop.app) as client:
        failed = await client.post(path, key='"k"')
        assert (failed.status_code, orders.items) == (500, [])
        second = await client.post(path, key='"k"')
        assert (second.status_code, second.content, replayed(second)) == (200, shop.chunk + b"end", False)
        third = await client.post(path, key='"k"')
    assert (third.content, replayed(third)) == (shop.chunk + b"end", True)
    assert orders.items == ["book"]


async def test_middleware_that_hides_the_failure_does_not_make_an_answer_of_a_half(orders: Orders) -> None:
    class Hiding:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                await self.app(scope, receive, send)
            except OSError:
                await send({"type": "http.response.body", "body": b""})

    shop = Shop(orders, PassingOn, Hiding)
    shop.failures = 1
    async with calling(shop.app) as client:
        assert (await client.post("/stream", key='"k"')).status_code == 500
        assert orders.items == []
        assert (await client.post("/stream", key='"k"')).status_code == 200
    await shop.once.close()


async def test_the_kind_of_a_response_stays_what_it_was(orders: Orders, tmp_path: Path) -> None:
    (tmp_path / "receipt").write_bytes(b"receipt")
    kinds: list[bool] = []
    kept = FileResponse(tmp_path / "receipt")
    once, app = AsyncOnefold(orders.path, principal=account_of), FastAPI()
    once.install(app)

    @once.idempotent()
    async def buy(tx: Tx[AsyncSqlite]) -> Response:
        return kept

    @app.post("/orders")
    async def looked_at(tx: Tx[AsyncSqlite]) -> Response:
        answer = await buy(tx)
        kinds.append(isinstance(answer, FileResponse) and type(answer).__name__ == "FileResponse")
        return answer

    looked_at.__dict__.update(buy.__dict__)
    async with calling(app) as client:
        for key in ('"1"', '"2"'):
            assert (await client.post("/orders", key=key)).content == b"receipt"
    await once.close()
    assert kinds == [True, True]
