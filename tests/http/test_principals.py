"""Who asks is settled before anything stored is looked at, with the means of the framework the application has."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import flask
import pytest
import starlette.requests
import werkzeug
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import onefold
from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import authorize_from, principal_from
from onefold.errors import ConfigurationError, StoreUnavailable
from tests.http.stages import calling, problem, replayed

STATUS = "/onefold/status?operation=POST%20/orders"


class Accounts:
    """The tokens that hold at this moment."""

    def __init__(self) -> None:
        self.tokens = {"Bearer t-acme": "acme", "Bearer t-evil": "evil"}

    def of(self, header: str | None) -> str | None:
        return self.tokens.get(header or "")


@pytest.fixture
def accounts() -> Accounts:
    return Accounts()


def bearing(token: str | None, key: str = '"k"') -> dict[str, str]:
    return {"idempotency-key": key} | ({} if token is None else {"authorization": f"Bearer {token}"})


Shop = Callable[..., Any]


@pytest.fixture
async def shop(sqlite_path: Path) -> AsyncIterator[Shop]:
    """Makes a FastAPI application with one idempotent route, and the settings of a test."""
    made: list[AsyncOnefold] = []

    def make(app: FastAPI | None = None, route: dict[str, Any] | None = None, **settings: Any) -> FastAPI:
        once = AsyncOnefold(sqlite_path, **settings)
        made.append(once)
        app = app or FastAPI()
        once.install(app)

        @app.post("/orders")
        @once.idempotent(writes=False, **(route or {}))
        async def order() -> dict[str, str]:
            return {"secret": "of acme"}

        return app

    yield make
    for once in made:
        await once.close()


async def ask(app: Any, token: str | None, *, path: str = "/orders", method: str = "POST", **more: Any) -> Any:
    async with calling(app) as client:
        return await client.http.request(method, path, headers=bearing(token, **more))


async def status_of(app: Any, token: str | None) -> Any:
    return await ask(app, token, path=STATUS, method="GET")


# --- FastAPI and Starlette -----------------------------------------------------------------------------------


async def test_a_principal_that_raises_answers_as_the_framework_would(shop: Shop, accounts: Accounts) -> None:
    def principal(request: starlette.requests.Request) -> str:
        found = accounts.of(request.headers.get("authorization"))
        if found is None:
            raise HTTPException(401, {"reason": "token"}, headers={"WWW-Authenticate": "Bearer"})
        return found

    app = shop(principal=principal)
    assert (await ask(app, "t-acme")).status_code == 200
    assert replayed(await ask(app, "t-acme"))
    for refused in (await ask(app, None), await status_of(app, None)):
        assert (refused.status_code, refused.json()) == (401, {"detail": {"reason": "token"}})
        assert refused.headers["www-authenticate"] == "Bearer"
    del accounts.tokens["Bearer t-acme"]
    assert (await ask(app, "t-acme")).status_code == 401
    assert (await status_of(app, "t-acme")).status_code == 401


async def test_the_application_s_own_exception_handlers_render_the_refusal(shop: Shop) -> None:
    class Unknown(Exception):
        pass

    app = FastAPI()

    @app.exception_handler(StarletteHTTPException)
    async def render(request: starlette.requests.Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"ours": error.detail}, status_code=error.status_code)

    @app.exception_handler(Unknown)
    def render_unknown(request: starlette.requests.Request, error: Unknown) -> JSONResponse:
        return JSONResponse({"ours": "unknown"}, status_code=403)

    def principal(request: onefold.Request) -> str:
        raise HTTPException(401, "who?") if request.header("authorization") is None else Unknown

    shop(app, principal=principal)
    refused = await ask(app, None)
    assert (refused.status_code, refused.json()) == (401, {"ours": "who?"})
    refused = await ask(app, "t")
    assert (refused.status_code, refused.json()) == (403, {"ours": "unknown"})


def sync_failing(request: onefold.Request) -> str:
    raise LookupError("planted secret")


async def async_failing(request: onefold.Request) -> str:
    raise LookupError("planted secret")


@pytest.mark.parametrize("setting", ["principal", "authorize"])
@pytest.mark.parametrize("function", [sync_failing, async_failing], ids=lambda function: function.__name__)
async def test_any_other_exception_is_a_500_that_names_the_function(
    shop: Shop, setting: str, function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()

    @app.exception_handler(Exception)
    async def last_resort(request: starlette.requests.Request, error: Exception) -> PlainTextResponse:
        return PlainTextResponse("hidden", 500)

    shop(app, **({"principal": onefold.single_principal} | {setting: function}))
    for broken in (await ask(app, "t"), await status_of(app, "t")):
        assert (broken.status_code, problem(broken)) == (500, "authentication-broken")
        assert f"{setting} function tests.http.test_principals.{function.__name__}" in broken.json()["detail"]
        assert "LookupError" in broken.json()["detail"]
        assert "planted secret" not in broken.text
    assert "planted secret" in caplog.text  # with its traceback, for who must repair it


async def test_authorize_comes_before_replays_claims_and_the_status_page(shop: Shop, accounts: Accounts) -> None:
    ran: list[str] = []

    async def authorize(request: onefold.Request) -> None:
        ran.append(request.path)
        if accounts.of(request.header("authorization")) is None:
            raise HTTPException(403, "revoked")

    app = shop(principal=onefold.single_principal, authorize=authorize)
    assert (await ask(app, "t-acme")).status_code == 200
    for refused in (await ask(app, "t-old"), await status_of(app, "t-old"), await ask(app, "t-old", key='"new"')):
        assert (refused.status_code, refused.json()) == (403, {"detail": "revoked"})
    async with calling(app) as client:  # also where there is nothing to replay
        assert (await client.http.post("/orders")).status_code == 403
    assert replayed(await ask(app, "t-acme"))
    assert len(ran) == 6


@pytest.mark.parametrize("asked", ["authorize", "principal"])
async def test_a_route_that_runs_without_its_store_does_not_run_without_their_answer(shop: Shop, asked: str) -> None:
    def ask(request: onefold.Request) -> str:
        raise StoreUnavailable("the table of accounts cannot be reached")

    given = {"principal": lambda _: "acme", asked: ask}
    async with calling(shop(**given, route={"store_down": "run"})) as client:
        refused = await client.post("/orders", headers=bearing(None))
    assert (refused.status_code, problem(refused)) == (503, "store-unavailable")


async def test_a_route_may_authorize_for_itself_and_false_is_a_403(shop: Shop) -> None:
    app = shop(principal=onefold.single_principal, route={"authorize": lambda request: False})
    for refused in (await ask(app, None), await status_of(app, None)):
        assert (refused.status_code, problem(refused)) == (403, "not-authorized")


async def test_an_authorize_that_returns_something_else_lets_nobody_in(shop: Shop) -> None:
    app = shop(principal=onefold.single_principal, authorize=lambda request: "acme")
    broken = await ask(app, None)
    assert (broken.status_code, problem(broken)) == (500, "authentication-broken")
    assert "returned 'acme'" not in broken.text
    assert "returned a str" in broken.text


@pytest.mark.parametrize(
    ("found", "said"), [(42, "returned a value of type int"), (b"acme", "returned a value of type bytes")]
)
async def test_a_principal_that_is_not_a_text_is_told_how_to_become_one(shop: Shop, found: object, said: str) -> None:
    broken = await ask(shop(principal=lambda request: found), None)
    assert (broken.status_code, problem(broken)) == (500, "authentication-broken")
    assert said in broken.text
    assert "str(user.id)" in broken.text
    assert str(found) not in broken.text


async def test_a_principal_may_read_the_body_and_leaves_it_to_the_handler(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path)
    app = FastAPI()

    async def signed(request: starlette.requests.Request) -> str:
        signature = hmac.new(b"secret", await request.body(), "sha256").hexdigest()
        if not hmac.compare_digest(signature, request.headers["x-signature"]):
            raise HTTPException(401, "signature")
        return "acme"

    @app.post("/orders")
    @once.idempotent(writes=False, principal=signed)
    async def order(order: dict[str, str]) -> str:
        return order["item"]

    once.install(app)
    async with calling(app) as client:
        signature = hmac.new(b"secret", b'{"item":"book"}', "sha256").hexdigest()
        headers = {"idempotency-key": '"k"', "content-type": "application/json", "x-signature": signature}
        answers = [
            await client.http.post("/orders", content=body, headers=headers)
            for body in ('{"item":"book"}', '{"item":"book"}', '{"item":"pen"}')
        ]
    assert [(answer.status_code, answer.json()) for answer in answers] == [
        (200, "book"),
        (200, "book"),
        (401, {"detail": "signature"}),
    ]
    await once.close()


async def test_what_a_principal_leaves_in_the_state_reaches_the_handler(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path)
    app = FastAPI()

    def principal(request: starlette.requests.Request) -> str:
        request.state.account = "acme"
        return "acme"

    @app.post("/orders")
    @once.idempotent(writes=False, principal=principal)
    async def order(request: starlette.requests.Request) -> str:
        return str(request.state.account)

    once.install(app)
    assert (await ask(app, None)).json() == "acme"
    await once.close()


async def test_sessions_and_users_of_starlette_are_there_where_their_middleware_is_outside(sqlite_path: Path) -> None:
    class Backend(AuthenticationBackend):
        async def authenticate(
            self, connection: starlette.requests.HTTPConnection
        ) -> tuple[AuthCredentials, BaseUser] | None:
            name = connection.session.get("user")
            return None if name is None else (AuthCredentials(), SimpleUser(name))

    once = AsyncOnefold(
        sqlite_path, principal=lambda connection=None: None, defaults={"writes": False}
    )  # every route names its own

    async def login(request: starlette.requests.Request) -> PlainTextResponse:
        request.session["user"] = "acme"
        return PlainTextResponse("in")

    def principal(connection: starlette.requests.HTTPConnection) -> str | None:
        return connection.user.display_name if connection.user.is_authenticated else None

    @once.idempotent(principal=principal)
    async def order(request: starlette.requests.Request) -> PlainTextResponse:
        return PlainTextResponse("ordered")

    app = Starlette(routes=[Route("/login", login, methods=["POST"]), Route("/orders", order, methods=["POST"])])
    once.install(app)
    app.add_middleware(AuthenticationMiddleware, backend=Backend())
    app.add_middleware(SessionMiddleware, secret_key="s" * 32)
    async with calling(app) as client:
        assert (await client.http.post("/orders", headers=bearing(None))).status_code == 401
        await client.http.post("/login")
        answers = [await client.http.post("/orders", headers=bearing(None)) for _ in range(2)]
        assert [(answer.text, replayed(answer)) for answer in answers] == [("ordered", False), ("ordered", True)]
        client.http.cookies.clear()
        assert (await client.http.post("/orders", headers=bearing(None))).status_code == 401
    await once.close()


@pytest.mark.parametrize("wanted", ["session", "user"])
async def test_middleware_that_was_added_before_install_is_told_with_the_way_out(
    shop: Shop, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    def principal(request: starlette.requests.Request) -> str:
        return str(getattr(request, wanted))

    app = FastAPI()
    app.add_middleware(AuthenticationMiddleware, backend=AuthenticationBackend())
    app.add_middleware(SessionMiddleware, secret_key="s" * 32)
    shop(app, principal=principal)
    broken = await ask(app, "t")
    name = "SessionMiddleware" if wanted == "session" else "AuthenticationMiddleware"
    way_out = f"call `once.install(app)` before `app.add_middleware({name}, ...)`"
    assert (broken.status_code, way_out in broken.json()["detail"], way_out in caplog.text) == (500, True, True)


async def test_another_failed_assertion_of_a_principal_is_told_nothing_of_middleware(shop: Shop) -> None:
    def principal(request: onefold.Request) -> str:
        raise AssertionError("a Middleware of ours")

    broken = await ask(shop(principal=principal), "t")
    assert (broken.status_code, "add_middleware" in broken.json()["detail"]) == (500, False)


async def test_an_exception_of_a_framework_is_rendered_where_there_is_no_framework_too(sqlite_path: Path) -> None:
    raised: list[Exception] = [
        StarletteHTTPException(402, "pay first", headers={"X-Plan": "free"}),
        HTTPException(401),
        werkzeug.exceptions.Unauthorized("no badge"),
    ]

    def principal(request: onefold.Request) -> str:
        raise raised.pop(0)

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("reached")

    once = AsyncOnefold(sqlite_path, principal=principal)
    app = once.asgi(plain, {"POST /orders": once.policy()})
    paid, bare, badge = [await ask(app, None) for _ in range(3)]
    assert (paid.status_code, paid.text, paid.headers["x-plan"]) == (402, "pay first", "free")
    assert (bare.status_code, bare.text) == (401, "Unauthorized")
    assert (badge.status_code, "no badge" in badge.text) == (401, True)
    await once.close()


# --- a dependency of FastAPI ---------------------------------------------------------------------------------


class User:
    def __init__(self, name: str) -> None:
        self.name = name


async def bearer_user(
    request: starlette.requests.Request,
    credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())],
    x_region: Annotated[str, Header()] = "eu",
) -> AsyncIterator[User]:
    name = request.app.state.accounts.of(f"Bearer {credentials.credentials}")
    if name is None:
        raise HTTPException(401, f"unknown in {x_region}")
    yield User(name)
    request.app.state.exits += 1


def name_of(user: User) -> str:
    return user.name


async def test_the_principal_is_what_a_dependency_finds(shop: Shop, accounts: Accounts) -> None:
    app = shop(principal=principal_from(bearer_user, name_of))
    app.state.accounts, app.state.exits = accounts, 0
    first, again = await ask(app, "t-acme"), await ask(app, "t-acme")
    assert (first.status_code, replayed(first), again.status_code, replayed(again)) == (200, False, 200, True)
    assert not replayed(await ask(app, "t-evil"))
    for refused in (await ask(app, "t-old"), await status_of(app, "t-old")):
        assert (refused.status_code, refused.json()) == (401, {"detail": "unknown in eu"})
    assert (await ask(app, None)).status_code == 401  # HTTPBearer's own
    assert app.state.exits == 3


async def test_a_dependency_overridden_in_a_test_is_overridden_here_too(shop: Shop) -> None:
    app = shop(principal=principal_from(bearer_user, name_of))
    app.dependency_overrides[bearer_user] = lambda: User("tester")
    assert (await ask(app, None)).status_code == 200
    app.dependency_overrides[bearer_user] = lambda: User("")
    assert problem(await ask(app, None)) == "principal-missing"


async def test_a_dependency_may_read_the_path_of_its_route(sqlite_path: Path) -> None:
    async def member(tenant: Annotated[str, PathParameter()], authorization: Annotated[str, Header()]) -> str:
        if authorization != f"Bearer {tenant}":
            raise HTTPException(403, f"no member of {tenant}")
        return tenant

    once = AsyncOnefold(sqlite_path, principal=principal_from(member))
    app = FastAPI()

    @app.post("/tenants/{tenant}/orders")
    @once.idempotent(writes=False)
    async def order(tenant: str) -> str:
        return tenant

    once.install(app)
    assert (await ask(app, "acme", path="/tenants/acme/orders")).json() == "acme"
    refused = await ask(app, "evil", path="/tenants/acme/orders")
    assert (refused.status_code, refused.json()) == (403, {"detail": "no member of acme"})
    async with calling(app) as client:
        invalid = await client.http.post("/tenants/acme/orders", headers={"idempotency-key": '"k"'})
    assert (invalid.status_code, invalid.json()["detail"][0]["loc"]) == (422, ["header", "authorization"])
    await once.close()


async def test_authorize_may_be_a_dependency(shop: Shop, accounts: Accounts) -> None:
    def require(authorization: Annotated[str | None, Header()] = None) -> str:
        if accounts.of(authorization) is None:
            raise HTTPException(403, "may not")
        return "whatever a dependency returns"

    app = shop(principal=onefold.single_principal, authorize=authorize_from(require))
    assert (await ask(app, "t-acme")).status_code == 200
    assert (await ask(app, None)).json() == {"detail": "may not"}


async def test_a_dependency_that_breaks_is_named(shop: Shop) -> None:
    def broken_dependency() -> str:
        raise LookupError

    app = shop(principal=principal_from(broken_dependency))
    broken = await ask(app, None)
    assert (broken.status_code, problem(broken)) == (500, "authentication-broken")
    assert "broken_dependency" in broken.json()["detail"]


# --- Flask ---------------------------------------------------------------------------------------------------


@pytest.fixture
def flask_shop(sqlite_path: Path) -> Iterator[Callable[..., flask.Flask]]:
    made: list[Onefold] = []

    def make(**settings: Any) -> flask.Flask:
        once = Onefold(sqlite_path, **settings)
        made.append(once)
        app = flask.Flask("shop")
        app.secret_key = "s" * 32

        @app.post("/orders")
        @once.idempotent(writes=False)
        def order() -> dict[str, Any]:
            return {"item": flask.request.get_json(silent=True)}

        @app.post("/login")
        def login() -> str:
            flask.session["user"] = "acme"
            return "in"

        once.install(app)
        return app

    yield make
    for once in made:
        once.close()


FlaskShop = Callable[..., flask.Flask]


def of_session() -> str | None:
    return flask.session.get("user")


def of_current_request(request: onefold.Request) -> str | None:
    assert flask.request.endpoint in ("order", None)
    return flask.session.get("user")


def of_flask_request(request: flask.Request) -> str | None:
    assert request.method in ("POST", "GET")
    return flask.session.get("user")


@pytest.mark.parametrize("principal", [of_session, of_current_request, of_flask_request], ids=lambda f: f.__name__)
def test_a_principal_runs_inside_a_request_of_flask(flask_shop: FlaskShop, principal: Any) -> None:
    app = flask_shop(principal=principal)
    closed: list[object] = []
    app.teardown_appcontext(closed.append)
    client, stranger = app.test_client(), app.test_client()
    client.post("/login")
    closed.clear()
    answers = [client.post("/orders", json="tea", headers=bearing(None)) for _ in range(2)]
    assert [(answer.get_json(), "idempotent-replayed" in answer.headers) for answer in answers] == [
        ({"item": "tea"}, False),
        ({"item": "tea"}, True),
    ]
    assert closed == [None] * 3  # two principals, one view: what they opened is closed
    assert client.get(STATUS, headers=bearing(None)).get_json()["state"] == "done"
    assert stranger.post("/orders", json="tea", headers=bearing(None)).status_code == 401
    assert stranger.get(STATUS, headers=bearing(None)).status_code == 401


def test_a_principal_of_flask_may_abort(flask_shop: FlaskShop) -> None:
    def principal(request: werkzeug.Request) -> str:
        if request.get_json() != "tea":
            flask.abort(403, "tea only")
        return "acme"

    app = flask_shop(principal=principal)

    @app.errorhandler(403)
    def forbidden(error: werkzeug.exceptions.HTTPException) -> tuple[dict[str, str | None], int, dict[str, str]]:
        return {"ours": error.description}, 403, {"X-Ours": "yes"}

    client = app.test_client()
    assert client.post("/orders", json="tea", headers=bearing(None)).status_code == 200
    refused = client.post("/orders", json="coffee", headers=bearing(None))
    assert (refused.status_code, refused.get_json(), refused.headers["x-ours"]) == (403, {"ours": "tea only"}, "yes")


def test_a_refusal_of_flask_without_a_handler_is_flask_s_own(flask_shop: FlaskShop) -> None:
    def login_first() -> None:
        flask.abort(flask.redirect("/login"))

    app = flask_shop(principal=of_session, authorize=login_first)
    client = app.test_client()
    for refused in (client.post("/orders", headers=bearing(None)), client.get(STATUS, headers=bearing(None))):
        assert (refused.status_code, refused.headers["location"]) == (302, "/login")


def test_any_other_exception_in_flask_is_a_500_that_names_the_function(flask_shop: FlaskShop) -> None:
    app = flask_shop(principal=sync_failing)
    app.register_error_handler(Exception, lambda error: ("hidden", 400))
    broken = app.test_client().post("/orders", headers=bearing(None))
    assert broken.status_code == 500
    assert "principal function tests.http.test_principals.sync_failing" in broken.get_json()["detail"]


def test_an_async_principal_on_threads_is_refused_by_name(flask_shop: FlaskShop) -> None:
    app = flask_shop(principal=async_failing)
    broken = app.test_client().post("/orders", headers=bearing(None))
    assert broken.status_code == 500
    assert "principal function tests.http.test_principals.async_failing is async" in broken.get_json()["detail"]


# --- what is wrong with a function is said where it is written ------------------------------------------------


def of_two(request: onefold.Request, table: dict[str, str]) -> str:
    return table[request.path]


def of_token(token: Annotated[str, Depends(HTTPBearer())]) -> str:
    return token


@pytest.mark.parametrize("setting", ["principal", "authorize"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("acme", r"='acme' is not a function"),
        (of_two, r"of_two takes 2 parameters"),
        (of_token, r"of_token.*principal_from|of_token.*authorize_from"),
    ],
)
def test_a_function_that_cannot_be_asked_is_refused_where_it_is_written(
    sqlite_path: Path, setting: str, function: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Onefold(sqlite_path, **{setting: function})
    once = Onefold(sqlite_path, principal=onefold.single_principal)
    with pytest.raises(ConfigurationError, match=said):
        once.idempotent(**{setting: function})
    once.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Depends(of_token), r"Depends\(.*\) is not a dependency's function; .*without Depends: {setting}\(of_token\)"),
        ("current_user", r"'current_user' is not a dependency's function"),
        (None, r"None is not a dependency's function"),
    ],
)
@pytest.mark.parametrize("make", [principal_from, authorize_from])
def test_what_is_no_dependency_is_refused_where_it_is_written(make: Callable[..., Any], given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.format(setting=make.__name__)):
        make(given)


def test_a_name_of_principal_from_that_is_no_function_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match=r"name='id' is not a function.*lambda user: user.id"):
        principal_from(bearer_user, "id")  # type: ignore[arg-type]


def test_a_request_of_flask_is_not_for_asyncio(sqlite_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"of_flask_request.*flask.*AsyncOnefold"):
        AsyncOnefold(sqlite_path, principal=of_flask_request)


def test_a_request_of_starlette_is_not_for_flask(flask_shop: FlaskShop) -> None:
    def principal(request: starlette.requests.Request) -> str:
        return "acme"

    with pytest.raises(ConfigurationError, match=r"principal.*starlette"):
        flask_shop(principal=principal)


async def test_a_header_that_is_there_twice_names_nobody(shop: Shop) -> None:
    app = shop(principal=lambda request: request.header("authorization"))
    async with calling(app) as client:
        lines = [("authorization", "a"), ("authorization", "b"), ("idempotency-key", '"k"')]
        refused = await client.http.post("/orders", headers=lines)
    assert (refused.status_code, problem(refused)) == (400, "header-repeated")
    assert "authorization" in refused.json()["detail"]


async def test_the_status_page_tells_a_stranger_nothing(shop: Shop, accounts: Accounts) -> None:
    app = shop(principal=lambda request: accounts.of(request.header("authorization")))
    told = []
    for query in ("operation=POST%20/orders", "operation=POST%20/unknown", "", "operation=POST%20/orders&x=%FF"):
        async with calling(app) as client:
            for headers in ({}, {"idempotency-key": '"k"'}, {"idempotency-key": '"bad'}):
                answer = await client.http.get(f"/onefold/status?{query}", headers=headers)
                told.append((answer.status_code, answer.text))
    assert len(set(told)) == 1
    assert (told[0][0], "orders" in told[0][1]) == (401, False)


async def test_where_only_routes_know_principals_an_unknown_operation_is_not_told_the_others(shop: Shop) -> None:
    app = shop(route={"principal": onefold.single_principal})
    async with calling(app) as client:
        answer = await client.http.get("/onefold/status?operation=POST%20/x", headers=bearing(None))
    assert (answer.status_code, "POST /orders" in answer.text) == (404, False)
