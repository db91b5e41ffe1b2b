"""What a newcomer's application does wrong about its requests is told: where it is written, at install, or by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import flask
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from starlette.requests import Request as StarletteRequest

import onefold
from onefold import AsyncOnefold, Onefold, Request
from onefold._http.fastapi import Tx
from onefold._http.fastapi_sessions import AsyncRequestSession, AsyncSessionTx, SessionTx
from onefold.errors import ConfigurationError
from onefold.policies import trusted_header
from tests.http.stages import calling

ACCOUNTS = {"Bearer sk-1": "acme"}


# --- principals ------------------------------------------------------------------------------------------


async def test_a_request_without_a_principal_is_told_nothing_and_the_log_names_its_route(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="onefold")
    once = AsyncOnefold(sqlite_path, principal=lambda request: ACCOUNTS.get(request.header("authorization") or ""))
    app = FastAPI()
    once.install(app)

    @app.post("/orders/{order}/refunds")
    @once.idempotent(required=True)
    async def refund(order: str) -> None: ...

    async with calling(app) as client:
        answer = await client.post("/orders/7/refunds", key='"k"')
    await once.close()
    assert answer.status_code == 401
    assert "orders" not in answer.text
    [said] = [record.getMessage() for record in caplog.records if "no principal" in record.getMessage()]
    assert said.startswith("POST /orders/{order}/refunds got 401: the principal function ")


def of_onefold(request: Request) -> str | None:
    return request.header("x-account")


def of_starlette(request: StarletteRequest) -> str | None:
    return request.headers.get("x-account")


async def awaited(request: StarletteRequest) -> str:
    return request.headers["x-account"].strip()


def of_flask() -> str | None:
    return flask.request.headers.get("X-Account")


def by_table(request: Request) -> str | None:
    return ACCOUNTS.get(request.header("authorization") or "")


def by_comparison(request: Request) -> str | None:
    return "acme" if request.header("authorization") == "Bearer sk-1" else None


def touching(request: Request) -> str | None:
    raise AssertionError(f"called although nobody asked: {request.header('x-account')}")


def _install(principal: Callable[..., Any], path: Path, **settings: Any) -> None:
    once: Any
    if principal is of_flask:
        once = Onefold(path, principal=principal, **settings)
        once.install(flask.Flask("shop"))
        once.close()
        return
    once = AsyncOnefold(path, principal=principal, **settings)
    app = FastAPI()
    once.install(app)
    once.asgi(FastAPI(), {"POST /orders": once.policy()})


@pytest.mark.parametrize("principal", [of_onefold, of_starlette, awaited, of_flask, lambda r: r.header("x-account")])
def test_a_principal_that_anyone_can_write_is_told_once_at_install(
    principal: Callable[..., Any], sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _install(principal, sqlite_path)
    [line] = [record for record in caplog.records if record.name == "onefold.requests"]
    assert line.levelno == logging.WARNING
    said = line.getMessage().lower()
    assert all(word in said for word in ("'x-account'", "docs/principals.md", "trusted_header('x-account')"))


@pytest.mark.parametrize(
    ("principal", "settings"),
    [
        (by_table, {}),
        (by_comparison, {}),
        (touching, {}),
        (onefold.single_principal, {}),
        (trusted_header("x-account"), {}),
        (of_onefold, {"authorize": lambda request: request.header("authorization") == "Bearer sk-1"}),
    ],
)
def test_a_principal_that_is_authenticated_or_trusted_is_accepted_silently(
    principal: Callable[..., Any], settings: dict[str, Any], sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _install(principal, sqlite_path, **settings)
    assert not [record for record in caplog.records if record.name == "onefold.requests"]


async def test_a_trusted_header_is_the_principal(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, principal=trusted_header("X-Account"))
    app = FastAPI()
    once.install(app)

    @app.post("/orders")
    @once.idempotent(required=True)
    async def order() -> str:
        return "ordered"

    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 200
        assert (await client.http.post("/orders", headers={"idempotency-key": '"k"'})).status_code == 401
    await once.close()
    with pytest.raises(ConfigurationError, match="trusted_header"):
        trusted_header("x account")


# --- handlers --------------------------------------------------------------------------------------------


async def test_a_marked_handler_of_an_application_without_onefold_is_told_to_install(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, principal=onefold.single_principal)
    app = FastAPI()
    errors: list[str] = []

    @app.exception_handler(Exception)
    async def note(request: StarletteRequest, error: Exception) -> None:
        errors.append(str(error))

    @app.post("/orders")
    @once.idempotent(required=True)
    async def order(tx: Tx[Any]) -> None: ...

    async with calling(app) as client:
        await client.post("/orders", key='"k"')
    await once.close()
    assert all(word in errors[0] for word in ("order", "is marked", "Call once.install(app)", str(sqlite_path)))
    assert "mark the endpoint" not in errors[0]


def a_session(session: AsyncSessionTx) -> AsyncSession:
    return session


async def direct(session: AsyncSessionTx) -> None: ...
async def nested(session: Annotated[AsyncSession, Depends(a_session)]) -> None: ...
async def default(session: AsyncSession = Depends(a_session)) -> None: ...
async def wrong_kind(session: SessionTx) -> None: ...


@pytest.mark.parametrize("handler", [direct, nested, default, wrong_kind])
def test_a_session_that_a_plain_file_cannot_give_is_refused_where_the_handler_is_marked(
    handler: Callable[..., Any], sqlite_path: Path
) -> None:
    once = AsyncOnefold(sqlite_path, principal=onefold.single_principal)
    with pytest.raises(ConfigurationError) as refused:
        once.idempotent()(handler)
    said = str(refused.value)
    assert all(word in said for word in ("'session'", handler.__name__, str(sqlite_path), "engine(...)"))


async def test_a_session_of_the_other_kind_is_refused_and_the_right_one_is_not(sqlite_path: Path) -> None:
    engine, async_engine = (
        create_engine(f"sqlite:///{sqlite_path}"),
        create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}"),
    )
    with pytest.raises(ConfigurationError, match="it has sessions of type Session"):
        Onefold(engine, principal=onefold.single_principal).idempotent()(direct)
    once = AsyncOnefold(async_engine, principal=onefold.single_principal)
    with pytest.raises(ConfigurationError, match="it has sessions of type AsyncSession"):
        once.idempotent()(wrong_kind)
    for handler in (direct, nested, default):
        once.idempotent()(handler)
    engine.dispose()
    await async_engine.dispose()


def test_a_session_of_an_unmarked_route_is_refused_at_install(sqlite_path: Path) -> None:
    app = FastAPI()

    @app.get("/orders")
    async def orders(session: AsyncRequestSession) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'session' of .*orders"):
        AsyncOnefold(sqlite_path, principal=onefold.single_principal).install(app)
