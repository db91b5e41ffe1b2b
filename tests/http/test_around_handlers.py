"""What is raised around a handler, and answered as a success by an exception handler or middleware: nothing is kept."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.exceptions import ResponseValidationError
from flask import Flask
from flask import Response as FlaskResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from onefold import AsyncOnefold, Onefold
from onefold._http import asgi
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold.db.sqlite import AsyncSqlite
from tests.http.stages import Client, Orders, account_of, calling, replayed


class Late(Exception):
    """Raised when the handler has returned."""


INSERT = "INSERT INTO orders (item) VALUES ('book')"


async def rescue(request: Request, error: Exception) -> Response:
    return JSONResponse({"rescued": type(error).__name__})


async def see_other(request: Request, error: Exception) -> Response:
    return Response(status_code=303, headers={"location": "/sorry"})


async def rescue_in_parts(request: Request, error: Exception) -> Response:
    """Sent by a task of its own, as servers of today have it."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"resc"
        yield b"ued"

    return StreamingResponse(parts())


class Rescuing:
    """A handler that is an object."""

    async def __call__(self, request: Request, error: Exception) -> Response:
        return JSONResponse({"rescued": type(error).__name__})


def rescue_plainly(request: Request, error: Exception) -> Response:
    return JSONResponse({"rescued": type(error).__name__})


async def check_nothing_kept(client: Client, orders: Orders, *, status: int = 200, path: str = "/orders") -> None:
    for key in ('"k"', '"k"', None):
        answer = await client.post(path, key=key)
        assert (answer.status_code, replayed(answer)) == (status, False)
    assert (orders.items, orders.records) == ([], 0)


async def pass_on(request: Request, call_next: Any) -> Any:
    return await call_next(request)


@pytest.mark.parametrize("in_between", [False, True], ids=["", "behind-middleware"])
@pytest.mark.parametrize(
    ("handler", "status"),
    [(rescue, 200), (see_other, 303), (rescue_plainly, 200), (rescue_in_parts, 200), (Rescuing(), 200)],
)
async def test_a_response_that_is_not_what_it_must_be(
    once: AsyncOnefold, orders: Orders, handler: Any, status: int, in_between: bool
) -> None:
    app = FastAPI(exception_handlers={ResponseValidationError: handler})
    if in_between:
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)

    @app.post("/orders")
    @once.idempotent()
    async def order(tx: Tx[AsyncSqlite]) -> dict[str, int]:
        await tx.connection.execute(INSERT)
        return {"id": "no number"}  # type: ignore[dict-item]

    once.install(app)
    async with calling(app) as client:
        await check_nothing_kept(client, orders, status=status)


async def audited() -> AsyncIterator[None]:
    yield
    raise Late


async def test_a_dependency_whose_exit_raises(once: AsyncOnefold, orders: Orders) -> None:
    app = FastAPI(exception_handlers={Late: rescue})

    @app.post("/orders")
    @once.idempotent()
    async def order(tx: Tx[AsyncSqlite], audit: Annotated[None, Depends(audited, scope="function")]) -> None:
        await tx.connection.execute(INSERT)

    once.install(app)
    async with calling(app) as client:
        await check_nothing_kept(client, orders)


def raising(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    async def raising(*args: Any) -> Any:
        await function(*args)
        raise Late

    return raising


def redirecting(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    async def redirecting(*args: Any) -> Any:
        await function(*args)
        raise HTTPException(303, headers={"location": "/sorry"})

    return redirecting


def write_and_answer(once: AsyncOnefold) -> Any:
    @once.idempotent()
    async def order(request: Request) -> Response:
        await request.scope[asgi.TRANSACTION].connection.execute(INSERT)
        return Response()

    return order


@pytest.mark.parametrize(("around", "status"), [(raising, 200), (redirecting, 303)])
async def test_a_decorator_around_the_mark(once: AsyncOnefold, orders: Orders, around: Any, status: int) -> None:
    routes = [Route("/orders", around(write_and_answer(once)), methods=["POST"])]
    app = Starlette(routes=routes, exception_handlers={Late: rescue})
    once.install(app)
    async with calling(app) as client:
        await check_nothing_kept(client, orders, status=status)


async def test_an_application_below_a_mount_with_handlers_and_middleware_of_its_own(
    once: AsyncOnefold, orders: Orders
) -> None:
    below = Starlette(
        routes=[Route("/orders", raising(write_and_answer(once)), methods=["POST"])], exception_handlers={Late: rescue}
    )
    below.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    app = Starlette(routes=[Mount("/api", below)])
    once.install(app)
    async with calling(app) as client:
        await check_nothing_kept(client, orders, path="/api/orders")


async def test_a_middleware_that_answers_whatever_is_raised(once: AsyncOnefold, orders: Orders) -> None:
    async def answer_all(request: Request, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except Late:
            return JSONResponse({"ok": False})

    app = Starlette(routes=[Route("/orders", raising(write_and_answer(once)), methods=["POST"])])
    app.add_middleware(BaseHTTPMiddleware, dispatch=answer_all)
    once.install(app)
    async with calling(app) as client:
        await check_nothing_kept(client, orders)


async def test_what_is_raised_and_dealt_with_on_the_way_in_changes_nothing(once: AsyncOnefold, orders: Orders) -> None:
    """A control: a request that is served while an exception of somebody else's is being handled."""

    class Cache:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                raise KeyError("not in the cache")
            except KeyError:
                await self._app(scope, receive, send)

    app = Starlette(routes=[Route("/orders", write_and_answer(once), methods=["POST"])])
    app.add_middleware(Cache)
    once.install(app)
    app.add_middleware(Cache)
    async with calling(app) as client:
        assert [replayed(await client.post("/orders", key='"k"')) for _ in range(2)] == [False, True]
    assert orders.items == ["book"]


@pytest.mark.parametrize("where", ["a decorator", "after_request", "no response"])
def test_flask(orders: Orders, where: str) -> None:
    once = Onefold(orders.path, principal=account_of)
    app = Flask("shop")

    def around(view: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(view)
        def late() -> Any:
            view()
            if where == "a decorator":
                raise Late
            return None if where == "no response" else "done"

        return late

    @app.post("/orders")
    @around
    @once.idempotent()
    def order() -> str:
        current_transaction().connection.execute(INSERT)
        return "done"

    @app.after_request
    def check(response: FlaskResponse) -> FlaskResponse:
        if where == "after_request" and response.data == b"done":
            raise Late
        return response

    @app.errorhandler(Exception)
    def rescue(error: Exception) -> str:
        return "rescued"

    once.install(app)
    for key in ('"k"', '"k"', ""):
        headers = {"x-account": "acme", **({"idempotency-key": key} if key else {})}
        answer = app.test_client().post("/orders", headers=headers)
        assert (answer.status_code, answer.text, "idempotent-replayed" in answer.headers) == (200, "rescued", False)
    assert (orders.items, orders.records) == ([], 0)
    once.close()
