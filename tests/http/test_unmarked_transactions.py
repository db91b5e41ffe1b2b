"""A transaction that FastAPI cannot give: refused where the handler is written, naming the annotation that it can."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onefold import AsyncOnefold, Onefold, Transaction, single_principal
from onefold._http.fastapi_dependencies import Tx
from onefold.db.sqlite import AsyncSqlite
from onefold.errors import ConfigurationError
from tests.http.stages import calling

OFFERED = r"tx: Tx\[\.\.\.\].*onefold\.fastapi"


def bare_annotation(once: AsyncOnefold | Onefold) -> FastAPI:
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    async def order(tx: Transaction[Any]) -> None: ...

    return app


def stock(tx: Transaction[Any]) -> None: ...


def in_a_dependency(once: AsyncOnefold | Onefold) -> FastAPI:
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    async def order(found: Annotated[None, Depends(stock)]) -> None: ...

    return app


def no_annotation(once: AsyncOnefold | Onefold) -> FastAPI:
    app = FastAPI()

    async def order(tx: Any) -> None: ...

    del order.__annotations__["tx"]
    app.post("/orders")(once.idempotent()(order))
    return app


@pytest.mark.parametrize("write", [bare_annotation, in_a_dependency, no_annotation])
@pytest.mark.parametrize("kind", [AsyncOnefold, Onefold])
def test_a_transaction_that_fastapi_cannot_give_is_refused(kind: Any, write: Any, sqlite_path: Path) -> None:
    once = kind(sqlite_path, principal=single_principal)
    with pytest.raises(ConfigurationError, match=OFFERED):
        once.install(write(once))


def test_other_parameters_and_other_frameworks_are_none_of_it(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, principal=single_principal)
    app = FastAPI()

    @app.post("/orders/{tx}")
    @once.idempotent()
    async def by_path(tx: str) -> None: ...

    @app.post("/orders")
    @once.idempotent()
    async def by_query(tx: str) -> None: ...

    @app.put("/orders")
    @once.idempotent()
    async def given(tx: Tx[AsyncSqlite]) -> None: ...

    once.install(app)

    flask = Flask("shop")
    threaded = Onefold(sqlite_path, principal=single_principal)

    @flask.post("/orders/<tx>")
    @threaded.idempotent()
    def order(tx: Any) -> str:
        return str(tx)

    threaded.install(flask)
    threaded.close()


async def test_a_handler_of_starlette_calls_its_request_as_it_likes(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, principal=single_principal)

    @once.idempotent()
    async def order(tx: Request) -> Response:
        return JSONResponse(None)

    app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 200
    await once.close()
