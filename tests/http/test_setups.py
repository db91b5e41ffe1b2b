"""Wrong set-ups are refused, with the way out: where they are written, at install, or when the application starts."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import APIRouter, BackgroundTasks, FastAPI
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Host, Mount, Route

import onefold
from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold.errors import ConfigurationError, ProgrammerError
from onefold.policies import Quota
from tests.http.stages import calling, replayed


@pytest.fixture
async def once(sqlite_path: Path) -> AsyncIterator[AsyncOnefold]:
    found = AsyncOnefold(sqlite_path, principal=onefold.single_principal)
    yield found
    await found.close()


@pytest.fixture
def threads(sqlite_path: Path) -> Iterator[Onefold]:
    found = Onefold(sqlite_path, principal=onefold.single_principal)
    yield found
    found.close()


async def order() -> dict[str, str]:
    raise AssertionError("an unprotected handler ran")


def flask_order() -> str:
    raise AssertionError("an unprotected handler ran")


async def started(app: Any) -> list[dict[str, Any]]:
    """What a server hears when it starts an application, and stops it."""
    heard: list[dict[str, Any]] = []
    steps = iter(("lifespan.startup", "lifespan.shutdown"))

    async def receive() -> dict[str, Any]:
        return {"type": next(steps)}

    async def send(message: dict[str, Any]) -> None:
        heard.append(message)

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    return heard


async def refused_at_start(app: Any) -> str:
    """Refused by the lifespan, and by the first request where a server has none: the same words."""
    with pytest.raises(ConfigurationError) as at_start:
        await started(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 500
        assert (await client.get("/anything")).status_code == 500
    return str(at_start.value)


def refused_by_flask(app: flask.Flask) -> str:
    with pytest.raises(ConfigurationError) as refused:
        app.test_client().post("/orders", headers={"idempotency-key": '"k"'})
    return str(refused.value)


# --- a marked handler outside of a guarded request -------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"required": True}])
async def test_a_handler_whose_layer_is_not_installed_does_not_run(sqlite_path: Path, settings: Any) -> None:
    once = AsyncOnefold(sqlite_path, principal=onefold.single_principal, development=True)
    app = FastAPI()
    ran: list[str] = []

    @app.post("/orders")
    @once.idempotent(**settings)
    async def place() -> None:
        ran.append("place")

    async with calling(app) as client:
        for key in ('"k"', None):
            assert (await client.post("/orders", key=key)).status_code == 500
    assert ran == []
    await once.close()


def test_a_view_whose_layer_is_not_installed_does_not_run(threads: Onefold) -> None:
    app = flask.Flask("shop")
    app.testing = True
    app.post("/orders")(threads.idempotent()(flask_order))
    with pytest.raises(ProgrammerError, match=r"flask_order .*once\.install.*flask_order\.__wrapped__"):
        app.test_client().post("/orders")


async def test_a_marked_handler_called_as_a_function_raises_and_its_function_is_at_hand(once: AsyncOnefold) -> None:
    async def double(number: int) -> int:
        return 2 * number

    marked = once.idempotent()(double)
    with pytest.raises(ProgrammerError, match=r"__wrapped__"):
        await marked(2)
    assert await marked.__wrapped__(2) == 4  # type: ignore[attr-defined]


# --- a marked handler without a route ------------------------------------------------------------------------


async def test_decorators_in_the_wrong_order_are_refused(once: AsyncOnefold) -> None:
    app = FastAPI()
    once.install(app)
    marked = once.idempotent(required=True)(app.post("/orders")(order))
    said = await refused_at_start(app)
    assert "tests.http.test_setups.order" in said
    assert "wrong order" in said
    assert f"test_setups.py:{order.__code__.co_firstlineno}" in said
    assert marked is not order


def test_decorators_in_the_wrong_order_are_refused_in_flask(threads: Onefold) -> None:
    app = flask.Flask("shop")
    marked = threads.idempotent(required=True)(app.post("/orders")(flask_order))
    threads.install(app)
    assert "wrong order" in refused_by_flask(app)
    assert marked is not flask_order


async def test_a_handler_that_no_application_serves_is_refused_by_name(once: AsyncOnefold) -> None:
    app, forgotten = FastAPI(), APIRouter()
    once.install(app)
    forgotten.post("/orders")(once.idempotent()(order))
    said = await refused_at_start(app)
    assert "tests.http.test_setups.order" in said
    assert "no application" in said
    app.include_router(forgotten)  # repaired
    assert (await started(app))[-1]["type"] == "lifespan.shutdown.complete"


def test_a_view_that_no_application_serves_is_refused_by_name(threads: Onefold) -> None:
    app = flask.Flask("shop")
    marked = threads.idempotent()(flask_order)
    threads.install(app)
    assert "flask_order" in refused_by_flask(app)
    app.post("/orders")(marked)
    app.post("/other", endpoint="other")(threads.idempotent()(lambda: "fine"))
    assert app.test_client().post("/other").text == "fine"


async def test_a_server_is_told_why_the_application_does_not_start(once: AsyncOnefold) -> None:
    closed: list[str] = []

    async def lifespan(app: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            closed.append("down")

    app = FastAPI(lifespan=asynccontextmanager(lifespan))
    once.install(app)
    lost = once.idempotent()(order)
    heard: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        heard.append(message)

    with pytest.raises(ConfigurationError):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert [message["type"] for message in heard] == ["lifespan.startup.failed"]
    assert "no application" in heard[0]["message"]
    assert closed == ["down"]
    assert lost is not order


async def test_routes_that_come_with_the_lifespan_are_in_time(once: AsyncOnefold) -> None:
    marked = once.idempotent()(order)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.post("/orders")(marked)
        yield

    app = FastAPI(lifespan=lifespan)
    once.install(app)
    assert (await started(app))[-1]["type"] == "lifespan.shutdown.complete"


async def test_every_way_to_a_marked_handler_is_known(once: AsyncOnefold) -> None:
    async def place() -> str:
        return "placed"

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    class Shop:
        @once.idempotent(writes=False)
        async def place(self) -> str:
            return "placed"

    class Endpoint(HTTPEndpoint):
        @once.idempotent(writes=False)
        async def post(self, request: Request) -> JSONResponse:
            return JSONResponse("placed")

        async def get(self, request: Request) -> JSONResponse:
            return JSONResponse("shown")

    app, mounted = FastAPI(), FastAPI()
    app.post("/wrapped")(logged(once.idempotent(writes=False)(place)))
    app.post("/bound")(Shop().place)
    app.router.routes.append(Route("/class", Endpoint))
    mounted.post("/mounted")(once.idempotent(writes=False)(place))
    app.mount("/sub", mounted)
    app.router.routes.append(Host("other.test", FastAPI(routes=[Route("/class", Endpoint)])))
    once.install(app)
    assert (await started(app))[-1]["type"] == "lifespan.shutdown.complete"
    async with calling(app) as client:
        assert (await client.get("/class")).json() == "shown"
        for path in ("/wrapped", "/bound", "/class", "/sub/mounted"):
            answers = [await client.post(path, key='"k"') for _ in range(2)]
            assert [(answer.json(), replayed(answer)) for answer in answers] == [("placed", False), ("placed", True)]


async def test_one_onefold_may_serve_several_applications(once: AsyncOnefold) -> None:
    first, second = FastAPI(), FastAPI()
    for app in (first, second):
        once.install(app)
        app.post("/orders")(once.idempotent()(order))
    assert (await started(first))[-1]["type"] == (await started(second))[-1]["type"] == "lifespan.shutdown.complete"


async def test_handlers_of_an_application_that_is_gone_are_not_missed(once: AsyncOnefold) -> None:
    def make() -> FastAPI:
        async def local() -> None: ...

        app = FastAPI()
        once.install(app)
        app.post("/orders")(once.idempotent()(local))
        return app

    make()
    gc.collect()
    assert (await started(make()))[-1]["type"] == "lifespan.shutdown.complete"


# --- a def under AsyncOnefold --------------------------------------------------------------------------------


def test_a_def_under_async_onefold_is_refused_where_it_is_written(once: AsyncOnefold) -> None:
    with pytest.raises(ConfigurationError, match=r"flask_order is a def.*async def.*Onefold"):
        once.idempotent()(flask_order)

    def pay(tx: Tx[Any]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"pay is a def"):
        FastAPI().post("/orders")(once.idempotent()(pay))


def test_a_coroutine_s_partial_and_a_callable_object_are_async(once: AsyncOnefold, threads: Onefold) -> None:
    class Later:
        async def __call__(self) -> None: ...

    async def pay(amount: int) -> None: ...

    assert once.idempotent()(partial(pay, 1)) is not None
    assert once.idempotent()(Later()) is not None
    assert threads.idempotent()(flask_order) is not None


# --- two layers ----------------------------------------------------------------------------------------------


def test_two_onefolds_on_an_application_are_refused_naming_both(once: AsyncOnefold, tmp_path: Path) -> None:
    other = AsyncOnefold(tmp_path / "other.db", principal=onefold.single_principal)
    app = FastAPI()
    once.install(app)
    with pytest.raises(ConfigurationError, match=r"AsyncOnefold\('.*other\.db'\).*AsyncOnefold\('.*\.db'\)"):
        other.install(app)


def test_installing_twice_is_refused(once: AsyncOnefold, threads: Onefold) -> None:
    app, views = FastAPI(), flask.Flask("shop")
    once.install(app)
    with pytest.raises(ConfigurationError, match=r"AsyncOnefold\(.*\) is installed.* already: once is enough"):
        once.install(app)
    threads.install(views)
    with pytest.raises(ConfigurationError, match=r"Onefold\(.*\) is installed.* already: once is enough"):
        threads.install(views)


def test_wrapping_what_has_a_layer_is_refused(once: AsyncOnefold, threads: Onefold) -> None:
    app = FastAPI()
    once.install(app)
    with pytest.raises(ConfigurationError, match=r"already"):
        once.asgi(app, {})
    wrapped = threads.wsgi(lambda environ, start_response: (), {})
    with pytest.raises(ConfigurationError, match=r"already"):
        threads.wsgi(wrapped, {})


@pytest.mark.parametrize("mount", [Mount, lambda path, app: Host("shop.test", app)], ids=["mount", "host"])
async def test_a_layer_on_a_parent_and_on_its_mount_is_refused(
    once: AsyncOnefold, tmp_path: Path, mount: Callable[[str, Any], Any]
) -> None:
    other = AsyncOnefold(tmp_path / "other.db", principal=onefold.single_principal)
    inner = FastAPI()
    other.install(inner)
    outer = Starlette(routes=[Mount("/deep", routes=[mount("/shop", inner)])])
    with pytest.raises(ConfigurationError, match=r"AsyncOnefold\('.*\.db'\).*AsyncOnefold\('.*other\.db'\).*/deep"):
        once.install(outer)
    late = Starlette()
    once.install(late)
    late.router.routes.append(mount("/shop", inner))
    assert "other.db" in await refused_at_start(late)


async def test_a_handler_marked_by_another_onefold_is_refused(once: AsyncOnefold, tmp_path: Path) -> None:
    other = AsyncOnefold(tmp_path / "other.db", principal=onefold.single_principal)
    app = FastAPI()
    app.post("/orders")(other.idempotent()(order))
    with pytest.raises(ConfigurationError, match=r"order at /orders was marked with AsyncOnefold\(.*other\.db"):
        once.install(app)


def test_a_name_shows_no_password() -> None:
    once = Onefold("postgresql://me:s3cret@localhost/shop", source="orders")
    assert repr(once) == "Onefold('postgresql://localhost/shop', source='orders')"
    once.close()


# --- settings ------------------------------------------------------------------------------------------------

WRONG = [
    ({"principal": "acme"}, r"principal='acme' is not a function"),
    ({"fingerprint": "raw"}, r"fingerprint='raw'.*raw_bytes"),
    ({"headers_kept": "x-request-id"}, r"headers_kept='x-request-id'.*\{'x-request-id'\}"),
    ({"headers_kept": [1]}, r"headers_kept=\[1\]"),
    ({"required": "no"}, r"required='no'.*True or False"),
    ({"strict": 1}, r"strict=1.*True or False"),
    ({"writes": None}, r"writes=None.*True or False"),
    ({"retention_s": "1d"}, r"retention_s='1d'.*number"),
    ({"lease_s": True}, r"lease_s=True.*number"),
    ({"body_bytes_max": 1.5}, r"body_bytes_max=1\.5.*whole number"),
    ({"expiry": ["new"]}, r"expiry=\['new'\]"),
    ({"requierd": True}, r"'requierd' is not a setting.*'required'"),
    ({"wait": 1}, r"'wait' is not a setting"),
]


@pytest.mark.parametrize(("settings", "said"), WRONG, ids=[str(settings) for settings, _ in WRONG])
def test_a_wrong_setting_is_a_clear_error_where_it_is_written(
    sqlite_path: Path, threads: Onefold, settings: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        threads.idempotent(**settings)
    with pytest.raises(ConfigurationError, match=said):
        threads.policy(**settings)
    with pytest.raises(ConfigurationError, match=said):
        Onefold(sqlite_path, defaults=settings)


@pytest.mark.parametrize("onefold_type", [Onefold, AsyncOnefold])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"pricipal": onefold.single_principal},
            r"'pricipal' is not a setting of \w*Onefold; did you mean 'principal'",
        ),
        (
            {"retention_s": 5},
            r"'retention_s' is not a setting of \w*Onefold; it is one of routes: defaults=\{'retention_s': ",
        ),
        ({"nonsense": 1}, r"'nonsense' is not a setting of \w*Onefold; there are activity, authorize, broker"),
        ({"broker": "nat://x"}, r"broker 'nat://x' is unknown.*nats://"),
        ({"broker": "https://shop.test"}, r"webhooks are signed"),
        ({"broker": 7}, r"broker=int\(\.\.\.\) is not an address"),
    ],
)
def test_what_an_application_cannot_be_made_with_is_refused_where_it_is_made(
    sqlite_path: Path, onefold_type: Any, given: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        onefold_type(sqlite_path, **given)


def test_a_consumer_whose_name_is_taken_is_refused_where_it_is_written(threads: Onefold) -> None:
    def first(message: object) -> None: ...
    def second(message: object) -> None: ...

    threads.consumer("mailer", topic="order.placed")(first)
    with pytest.raises(ConfigurationError, match=r"two consumers are named 'mailer', .*first and .*second"):
        threads.consumer("mailer", topic="order.paid")(second)


def test_a_setting_that_no_consumer_has_is_refused_by_name(threads: Onefold) -> None:
    with pytest.raises(
        ConfigurationError, match="'atempts' is not a setting of consumer 'mailer'; did you mean 'attempts'"
    ):
        threads.consumer("mailer", topic="order.placed", atempts=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("kept", [["X-Request-Id"], ("x-request-id",), {"x-request-id"}])
def test_headers_kept_may_be_any_collection_of_names(threads: Onefold, kept: Any) -> None:
    assert threads.policy(headers_kept=kept).headers_kept == frozenset({"x-request-id"})


@pytest.mark.parametrize("name", ["principal", "authorize", "quota"])
def test_a_wrong_default_is_refused_also_where_another_argument_replaces_it(sqlite_path: Path, name: str) -> None:
    wrong: Any = {name: "p"}
    valid: Any = {"principal": onefold.single_principal, "authorize": lambda request: None, "quota": Quota(in_flight=1)}
    with pytest.raises(ConfigurationError, match=f"{name}.*'p'"):
        Onefold(sqlite_path, defaults=wrong, **valid)


@pytest.mark.parametrize("defaults", ["required", [("required", True)]])
def test_defaults_are_a_dictionary(sqlite_path: Path, defaults: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"defaults=.*dictionary"):
        Onefold(sqlite_path, defaults=defaults)


def test_a_decorator_without_parentheses_is_refused(once: AsyncOnefold, threads: Onefold) -> None:
    for marker, function in ((once.idempotent, order), (threads.idempotent, flask_order)):
        with pytest.raises(ConfigurationError, match=r"parentheses.*@once\.idempotent\(\)"):
            marker(function)  # type: ignore[arg-type]


def test_a_class_is_refused(once: AsyncOnefold) -> None:
    class Endpoint(HTTPEndpoint): ...

    with pytest.raises(ConfigurationError, match=r"Endpoint.*methods"):
        once.idempotent()(Endpoint)


def test_a_mark_on_a_mark_is_refused(threads: Onefold) -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        threads.idempotent()(threads.idempotent()(flask_order))


@pytest.mark.parametrize("methods", [["GET"], ["GET", "POST"], ["HEAD", "GET"], ["QUERY"]])
async def test_a_marked_get_is_refused(once: AsyncOnefold, methods: list[str]) -> None:
    app = FastAPI()
    app.api_route("/orders", methods=methods)(once.idempotent()(order))
    with pytest.raises(
        ConfigurationError, match=rf"order is marked.*serves {'QUERY' if 'QUERY' in methods else 'GET'} "
    ):
        once.install(app)
    late = FastAPI()
    once.install(late)
    late.api_route("/orders", methods=methods)(once.idempotent()(order))
    assert "/orders" in await refused_at_start(late)


async def test_a_marked_websocket_is_refused(once: AsyncOnefold) -> None:
    app = FastAPI()
    app.websocket("/orders")(once.idempotent()(order))
    with pytest.raises(ConfigurationError, match=r"order is marked.*serves the WebSocket /orders"):
        once.install(app)


def test_a_marked_get_is_refused_in_flask(threads: Onefold) -> None:
    app = flask.Flask("shop")

    class View(MethodView):
        @threads.idempotent()
        def get(self) -> str:
            return "shown"

    app.add_url_rule("/orders", view_func=View.as_view("orders"))
    with pytest.raises(ConfigurationError, match=r"get is marked.*serves GET /orders"):
        threads.install(app)
    posts = flask.Flask("shop")
    posts.post("/orders")(threads.idempotent()(flask_order))
    threads.install(posts)  # OPTIONS, which Flask answers itself, does not count


# --- a transaction inside a handler --------------------------------------------------------------------------


async def test_a_second_transaction_inside_a_handler_is_refused(once: AsyncOnefold) -> None:
    app = FastAPI()
    once.install(app)
    said: list[str] = []

    @app.post("/orders")
    @once.idempotent(writes=False)
    async def place(item: str) -> str:
        with pytest.raises(ProgrammerError) as refused:
            async with once.transaction():
                pass
        said.append(str(refused.value))
        with pytest.raises(ProgrammerError):
            async with once.handling("mailer", "m-1"):
                pass
        return "placed"

    async with calling(app) as client:
        assert (await client.post("/orders?item=tea", key='"k"')).json() == "placed"
    assert "POST /orders" in said[0]
    assert "Tx" in said[0]
    async with once.transaction():  # outside it is what it is for
        pass


def test_a_second_transaction_inside_a_view_is_refused(threads: Onefold) -> None:
    app = flask.Flask("shop")

    @app.post("/orders")
    @threads.idempotent(writes=False)
    def place() -> str:
        with pytest.raises(ProgrammerError, match="current_transaction"), threads.transaction():
            pass
        with pytest.raises(ProgrammerError), threads.handling("mailer", "m-1"):
            pass
        return "placed"

    threads.install(app)
    assert app.test_client().post("/orders", headers={"idempotency-key": '"k"'}).text == "placed"
    with threads.transaction():
        pass


async def test_background_work_of_a_handler_may_have_a_transaction(once: AsyncOnefold) -> None:
    app = FastAPI()
    once.install(app)
    done: list[str] = []

    async def work() -> None:
        async with once.transaction():
            done.append("worked")

    @app.post("/orders")
    @once.idempotent(writes=False)
    async def place(tasks: BackgroundTasks) -> None:
        tasks.add_task(work)

    async with calling(app) as client:
        await client.post("/orders", key='"k"')
    assert done == ["worked"]
