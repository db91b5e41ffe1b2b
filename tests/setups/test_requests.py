"""What a newcomer's application does wrong about its requests is told: where it is written, at install, or by name."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import flask
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from starlette.requests import Request as StarletteRequest
from starlette.testclient import TestClient

import onefold
from onefold import AsyncOnefold, Onefold, Request, Steps, Transaction
from onefold._http.fastapi_dependencies import Tx
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
    assert all(word in said for word in ("'x-account'", "onefold docs principals", "trusted_header('x-account')"))


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


def read_rates() -> dict[str, float]:
    return {}


async def bare_session(session: AsyncSession) -> None: ...
def bare_plain_session(session: Session) -> None: ...
async def bare_in_dependency(rates: Annotated[Any, Depends(bare_session)]) -> None: ...
async def of_a_consumer(rates: Annotated[Any, onefold.Depends(read_rates)]) -> None: ...
async def of_a_consumer_as_default(rates: Any = onefold.Depends(read_rates)) -> None: ...
async def of_a_consumer_inside(rates: Annotated[Any, Depends(of_a_consumer)]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (bare_in_dependency, r"'session' of \S+bare_in_dependency \(in bare_session\)"),
        (of_a_consumer, r"'rates' of \S+of_a_consumer has onefold.Depends.*from fastapi import Depends"),
        (of_a_consumer_as_default, r"has onefold.Depends"),
        (of_a_consumer_inside, r"'rates' of \S+of_a_consumer_inside \(in of_a_consumer\) has onefold.Depends"),
    ],
)
def test_what_only_consumers_take_is_refused_where_an_endpoint_is_marked(
    handler: Callable[..., Any], says: str, sqlite_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        AsyncOnefold(sqlite_path, principal=onefold.single_principal).idempotent()(handler)


@pytest.mark.parametrize(
    ("kind", "handler", "says"),
    [
        (
            AsyncOnefold,
            bare_session,
            r"'session' of \S+bare_session .*`session: AsyncSessionTx`, with `from onefold.fas",
        ),
        (Onefold, bare_plain_session, r"'session' of \S+bare_plain_session .*`session: SessionTx`"),
    ],
)
def test_a_session_that_fastapi_cannot_give_is_refused_where_the_route_is_declared(
    kind: Any, handler: Callable[..., Any], says: str, sqlite_path: Path
) -> None:
    marked = kind(sqlite_path, principal=onefold.single_principal).idempotent()(handler)
    with pytest.raises(ConfigurationError, match=says):
        FastAPI().post("/orders")(marked)


def with_a_session(handler: Callable[[Session], str]) -> Callable[[], str]:
    """A decorator as applications have it. It keeps the mark of the handler, and not its parameters."""

    @functools.wraps(handler)
    def give() -> str:
        with Session() as session:
            return handler(session)

    return give


def test_a_session_that_a_decorator_gives_is_not_refused_in_a_process_that_also_has_fastapi(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, principal=onefold.single_principal)
    app = flask.Flask("shop")

    @app.post("/orders")
    @with_a_session
    @once.idempotent()
    def order(session: Session) -> str:
        return type(session).__name__

    once.install(app)
    once.migrate()
    answer = app.test_client().post("/orders", headers={"Idempotency-Key": '"k"'})
    once.close()
    assert "fastapi" in sys.modules
    assert (answer.status_code, answer.text) == (200, "Session")


async def test_a_session_that_something_else_gives_is_not_refused(sqlite_path: Path) -> None:
    async def by_default(session: AsyncSession | None = None) -> None: ...
    async def by_a_mark(session: Annotated[AsyncSession, "injected"]) -> None: ...

    once = AsyncOnefold(sqlite_path, principal=onefold.single_principal)
    for handler in (by_default, by_a_mark):
        once.idempotent()(handler)


# --- a transaction for a route that is not marked --------------------------------------------------------


async def in_repository(tx: Tx[Any]) -> object:
    return tx


async def with_tx(tx: Tx[Any]) -> None: ...
async def through_dependency(found: Annotated[object, Depends(in_repository)]) -> None: ...
async def with_session(session: AsyncSessionTx) -> None: ...
async def with_request_session(session: AsyncRequestSession) -> None: ...


@pytest.mark.parametrize(
    ("handler", "parameter"),
    [(with_tx, "'tx'"), (through_dependency, "'tx' (in in_repository)"), (with_session, "'tx' (in session_of)")],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_transaction_of_an_unmarked_route_is_refused_at_install(
    handler: Callable[..., Any], parameter: str, method: str, sqlite_path: Path
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
    app = FastAPI()
    app.add_api_route("/orders", handler, methods=[method])
    once = AsyncOnefold(engine, principal=onefold.single_principal)
    with pytest.raises(ConfigurationError) as refused:
        once.install(app)
    said = str(refused.value)
    for word in (f"{method} /orders", f".{handler.__name__} ", parameter, "@once.idempotent(...)"):
        assert word in said
    await once.close()
    await engine.dispose()


async def test_a_route_that_came_after_install_is_refused_when_the_application_starts(sqlite_path: Path) -> None:
    app = FastAPI()
    once = AsyncOnefold(sqlite_path, principal=onefold.single_principal)
    once.install(app)
    app.add_api_route("/orders", with_tx, methods=["POST"])
    with pytest.raises(ConfigurationError, match=r"POST /orders .*with_tx .*'tx'"), TestClient(app):
        pass  # pragma: no cover
    await once.close()


async def test_what_a_marked_route_and_a_session_of_its_own_need_is_not_refused(sqlite_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
    app = FastAPI()
    once = AsyncOnefold(engine, principal=onefold.single_principal)
    app.add_api_route("/own", with_request_session, methods=["GET"])
    for handler in (with_tx, through_dependency, with_session):
        app.add_api_route(f"/{handler.__name__}", once.idempotent()(handler), methods=["POST"])
    once.install(app)
    await once.migrate()
    async with calling(app) as client:
        assert (await client.post("/through_dependency", key='"k"')).status_code == 200
    await once.close()
    await engine.dispose()


async def test_decorators_in_the_wrong_order_are_told_as_such(sqlite_path: Path) -> None:
    app = FastAPI()
    once = AsyncOnefold(sqlite_path, principal=onefold.single_principal)

    @once.idempotent()
    @app.post("/orders")
    async def order(tx: Tx[Any]) -> None: ...

    once.install(app)
    with pytest.raises(ConfigurationError, match="wrong order"), TestClient(app):
        pass  # pragma: no cover
    await once.close()


def of_a_transaction(tx: Transaction[Any]) -> str:
    return ""


def of_fastapi(tx: Tx[Any]) -> str:
    return ""


@pytest.mark.parametrize("view", [of_a_transaction, of_fastapi])
@pytest.mark.parametrize("marked", [False, True])
def test_a_transaction_as_a_parameter_of_a_flask_view_is_refused_at_install(
    view: Callable[..., Any], marked: bool, sqlite_path: Path
) -> None:
    app = flask.Flask("shop")
    once = Onefold(sqlite_path, principal=onefold.single_principal)
    app.add_url_rule("/orders", view_func=once.idempotent()(view) if marked else view, methods=["POST"])
    with pytest.raises(ConfigurationError, match=rf"/orders .*{view.__name__} .*'tx'.*current_transaction\(\)"):
        once.install(app)
    once.close()


def test_steps_of_an_unmarked_view_are_refused_at_install(sqlite_path: Path) -> None:
    app = flask.Flask("shop")
    once = Onefold(sqlite_path, principal=onefold.single_principal)

    @app.post("/rides")
    def ride(work: Steps) -> str:
        return ""

    with pytest.raises(ConfigurationError, match=r"POST /rides .*ride .*'work'.*@once.idempotent"):
        once.install(app)
    once.close()
