"""Applications that are mounted, or found at a host: the same route of two of them is two operations."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask, request
from starlette.applications import Starlette
from starlette.routing import Host, Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.routing import BaseConverter
from werkzeug.test import Client

from onefold import AsyncOnefold, Onefold
from onefold._http.request_identity import operations_of
from onefold._http.route_policy import mount_template
from onefold._idempotency.fingerprint import RequestContent, canonical_json, earlier_fingerprint
from onefold._idempotency.model import Scope
from tests.http.stages import account_of, calling, replayed

ASKING = {"x-account": "acme", "idempotency-key": '"k"'}


@pytest.fixture
def closing_all() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
async def once(sqlite_path: Path) -> Any:
    once = AsyncOnefold(str(sqlite_path), principal=account_of)
    yield once
    await once.close()


def shop(once: AsyncOnefold, name: str, **settings: Any) -> FastAPI:
    app = FastAPI()

    @app.post("/pay")
    @once.idempotent(**settings, writes=False)
    async def pay() -> str:
        return name

    once.install(app)
    return app


async def post(app: Any, path: str, *, root_path: str = "", host: str = "shop.test") -> tuple[int, Any, bool]:
    async with calling(app, root_path=root_path) as client:
        answer = await client.post(path, {"cents": 5}, key='"k"', headers={"host": host})
    return answer.status_code, answer.json(), replayed(answer)


# --- Starlette and FastAPI ----------------------------------------------------------------------------------------


async def test_two_mounts_do_not_answer_each_others_retries(once: AsyncOnefold) -> None:
    app = FastAPI()
    nested = Starlette(routes=[Mount("/ca", shop(once, "ca"))])
    for path, mounted in (("/eu", shop(once, "eu")), ("/us/deep", nested), ("/us", shop(once, "us"))):
        app.mount(path, mounted)
    for number in range(2):
        for path, name in (("/eu", "eu"), ("/us", "us"), ("/us/deep/ca", "ca")):
            assert await post(app, f"{path}/pay") == (200, name, number > 0)


async def test_the_values_in_a_mount_tell_requests_apart(once: AsyncOnefold) -> None:
    app = Starlette(routes=[Mount("/of/{tenant}", shop(once, "shop"))])
    tenants = ("a", "b", "%00", "{}", "a b")
    found = [await post(app, f"/of/{tenant}/pay") for tenant in (*tenants, *tenants)]
    assert [again for _, _, again in found] == [False] * len(tenants) + [True] * len(tenants)


async def test_the_root_that_a_server_names_is_no_part_of_the_operation(once: AsyncOnefold) -> None:
    app = FastAPI()
    app.mount("/eu", shop(once, "eu"))
    app.mount("/us", shop(once, "us"))
    assert await post(app, "/eu/pay") == (200, "eu", False)
    for root in ("/api", "/v2/api"):
        assert await post(app, f"{root}/eu/pay", root_path=root) == (200, "eu", True)
    assert await post(app, "/api/us/pay", root_path="/api") == (200, "us", False)
    alone = shop(once, "alone")
    ran = [await post(alone, path, root_path=root) for path, root in (("/pay", ""), ("/pay", "/a"), ("/a/pay", "/a"))]
    assert [again for _, _, again in ran] == [False, True, True]


async def test_a_layer_inside_and_a_layer_around_call_a_route_the_same(once: AsyncOnefold) -> None:
    inside, around = FastAPI(), FastAPI()
    inside.mount("/eu", shop(once, "eu"))

    @around.post("/eu/pay")
    @once.idempotent(writes=False)
    async def pay() -> str:
        return "around"

    once.install(around)
    assert await post(inside, "/eu/pay") == (200, "eu", False)
    assert await post(around, "/eu/pay") == (200, "eu", True)


async def test_a_given_operation_is_not_answered_from_another_mount(once: AsyncOnefold) -> None:
    app = FastAPI()
    for name in ("eu", "us"):
        app.mount(f"/{name}", shop(once, name, operation="pay"))
    assert await post(app, "/eu/pay") == (200, "eu", False)
    assert (await post(app, "/us/pay"))[0] == 422
    assert await post(app, "/eu/pay") == (200, "eu", True)


async def test_applications_at_hosts_with_layers_of_their_own(once: AsyncOnefold) -> None:
    app = Starlette(
        routes=[
            Host("a.test", shop(once, "a")),
            Mount("/in", routes=[Host("b.test", shop(once, "b"))]),
            Host("{tenant}.test", shop(once, "any")),
        ]
    )
    sent = (("/pay", "a.test", "a"), ("/in/pay", "b.test", "b"), ("/pay", "c.test", "any"), ("/pay", "d.test", "any"))
    for number in range(2):
        for path, host, name in sent:
            assert await post(app, path, host=host) == (200, name, number > 0), host


# --- Flask and WSGI -----------------------------------------------------------------------------------------------


def flask_shop(
    path: Path, stack: ExitStack, name: str, *, earlier_records: bool | None = None, **settings: Any
) -> Flask:
    app = Flask(name)
    once = Onefold(str(path), principal=account_of, earlier_records=earlier_records)
    stack.callback(once.close)

    @app.post("/pay")
    @once.idempotent(**settings, writes=False)
    def pay() -> str:
        return name

    once.install(app)
    return app


def asked_of(app: Any, path: str, **more: Any) -> tuple[int, str, bool]:
    answer = Client(app).post(path, headers=ASKING, json={"cents": 5}, **more)
    return answer.status_code, answer.text, "Idempotent-Replayed" in answer.headers


@pytest.mark.parametrize(("earlier_records", "status"), [(None, 200), (True, 409)])
def test_one_key_below_two_wsgi_mounts_at_once(
    sqlite_path: Path, closing_all: ExitStack, earlier_records: bool | None, status: int
) -> None:
    """What onefold 0.1 locks for a payload does not tell WSGI mounts apart: where it may run, the second one has to
    come later, and it never gets the other's answer."""
    app = Flask("shop")
    once = Onefold(str(sqlite_path), principal=account_of, earlier_records=earlier_records)
    closing_all.callback(once.close)
    seen: list[tuple[int, str, bool]] = []

    def ask_below_us() -> tuple[int, str, bool]:
        return asked_of(app, "/pay", environ_overrides={"SCRIPT_NAME": "/us"})

    @app.post("/pay")
    @once.idempotent(writes=False)
    def pay() -> str:
        if request.script_root == "/eu":
            with ThreadPoolExecutor(1) as elsewhere:
                seen.append(elsewhere.submit(ask_below_us).result())
        return request.script_root

    once.install(app)
    assert asked_of(app, "/pay", environ_overrides={"SCRIPT_NAME": "/eu"}) == (200, "/eu", False)
    assert [answer[0] for answer in seen] == [status]
    assert ask_below_us() == (200, "/us", status == 200)


def test_two_wsgi_mounts_do_not_answer_each_others_retries(sqlite_path: Path, closing_all: ExitStack) -> None:
    mounts: Any = {f"/{name}": flask_shop(sqlite_path, closing_all, name) for name in ("v1", "v2")}
    app = DispatcherMiddleware(Flask("main"), mounts)
    for number in range(2):
        for name in ("v1", "v2"):
            assert asked_of(app, f"/{name}/pay") == (200, name, number > 0)
    page = Client(app).get("/v2/onefold/specification").text
    assert "POST /v2/pay" in page
    for operation in ("POST /v2/pay", "POST /pay"):
        state = Client(app).get("/v2/onefold/status", query_string={"operation": operation}, headers=ASKING).json
        assert (state or {})["state"] == "done"


def test_a_given_operation_keeps_keys_when_the_prefix_of_a_proxy_changes(
    sqlite_path: Path, closing_all: ExitStack
) -> None:
    app = flask_shop(sqlite_path, closing_all, "shop", operation="pay")
    for number, prefix in enumerate(("/api", "/v2/api", "")):
        assert asked_of(app, "/pay", environ_overrides={"SCRIPT_NAME": prefix}) == (200, "shop", number > 0)


class Tenant(BaseConverter):
    def to_python(self, value: str) -> Any:
        return {"name": value}


@pytest.mark.parametrize("by", ["host", "subdomain"])
def test_flask_views_at_hosts_do_not_answer_each_others_retries(
    sqlite_path: Path, closing_all: ExitStack, by: str
) -> None:
    hosts: dict[str, Any] = {"host_matching": True, "static_host": "static.test"}
    app = Flask("shop", **(hosts if by == "host" else {"subdomain_matching": True}))
    app.config["SERVER_NAME"] = None if by == "host" else "test"
    app.url_map.converters["tenant"] = Tenant
    once = Onefold(str(sqlite_path), principal=account_of)
    closing_all.callback(once.close)
    end = ".test" if by == "host" else ""
    for name, place in (("a", "a"), ("b", "b"), ("of", "<tenant>.of"), ("own", "<tenant:tenant>.own")):

        def pay(tenant: object = None, name: str = name) -> str:
            return f"{name} {tenant}"

        where: dict[str, Any] = {by: place + end, "methods": ["POST"]}
        app.add_url_rule("/pay", name, once.idempotent(writes=False)(pay), **where)
    once.install(app)

    def at(host: str) -> tuple[int, str, bool]:
        return asked_of(app, "/pay", base_url=f"http://{host}.test")

    for number in range(2):
        for host, text in (("a", "a None"), ("b", "b None"), ("x.of", "of x")):
            assert at(host) == (200, text, number > 0)
    assert at("y.of")[0] == 422
    assert [at(host)[2] for host in ("x.own", "y.own", "x.own")] == [False, False, True]
    page = Client(app).get("/onefold/specification", base_url="http://a.test").text
    assert f"POST //a{end or '.*'}/pay" in page


# --- names, and records of onefold 0.1 ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mount", "template", "name"),
    [
        ("", "/pay", "/pay"),
        ("/eu", "/pay", "/eu/pay"),
        ("/eu", "//a.test/pay", "//a.test/eu/pay"),
        ("//a.test/eu", "/pay", "//a.test/eu/pay"),
        ("/eu", "//<tenant>.*/pay", "//<tenant>.*/eu/pay"),
    ],
)
def test_names_begin_with_the_host_and_the_prefix(mount: str, template: str, name: str) -> None:
    assert mount_template(mount, template) == name


def test_the_operations_of_a_place() -> None:
    assert operations_of("POST", "/eu/o/{id}", None, earlier_release=False) == ("POST /eu/o/{}",)
    assert operations_of("POST", "/eu/o/{id}", "pay", earlier_release=False) == ("POST pay", "POST /eu/o/{}")
    assert operations_of("POST", "//<tenant>.*/pay", None, earlier_release=False) == ("POST //{}.*/pay",)


def store_as_0_1(path: Path, asked_path: str, operation: str = "POST /pay") -> None:
    """The record that onefold 0.1 made of `POST /pay`, wherever its application was."""
    digest = Scope("acme", operation).digest("k")
    content = RequestContent(asked_path, b"", "application/json", b'{"cents":5}')
    printed = earlier_fingerprint(content, canonical_json, key=digest)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(
            "INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, "
            "expires_at_ms) VALUES (?, ?, 'POST /pay', 1, 200, ?, ?, 32472144000000)",
            (digest, printed, b"\0content-type:application/json", b'\0"of 0.1"'),
        )


@pytest.mark.parametrize("earlier_records", [True, False])
async def test_a_record_of_0_1_is_found_below_its_own_mount_only(sqlite_path: Path, earlier_records: bool) -> None:
    once = AsyncOnefold(str(sqlite_path), principal=account_of, earlier_records=earlier_records)
    await once.migrate()
    store_as_0_1(sqlite_path, "/eu/pay")
    app = FastAPI()
    for name in ("eu", "us"):
        app.mount(f"/{name}", shop(once, name))
    found = [await post(app, f"/{name}/pay") for name in ("us", "eu", "us")]
    own = (200, "of 0.1", True) if earlier_records else (200, "eu", False)
    assert found == [(200, "us", False), own, (200, "us", True)]
    await once.close()


@pytest.mark.parametrize(("operation", "replayed"), [("/pay/{id}", True), ("/pay/{}", False)])
async def test_a_record_of_0_1_is_found_below_its_mount_by_the_name_its_parameter_had(
    sqlite_path: Path, operation: str, replayed: bool
) -> None:
    once = AsyncOnefold(str(sqlite_path), principal=account_of, earlier_records=True)
    await once.migrate()
    store_as_0_1(sqlite_path, "/eu/pay/17", "POST /pay/{id}")
    inner, app = FastAPI(), FastAPI()

    @inner.post("/pay/{order_id}")
    @once.idempotent(writes=False, operation=operation)
    async def pay() -> str:
        return "new"

    once.install(inner)
    app.mount("/eu", inner)
    assert await post(app, "/eu/pay/17") == (200, "of 0.1" if replayed else "new", replayed)
    await once.close()


def test_a_record_of_0_1_that_may_be_of_another_wsgi_mount_is_neither_replayed_nor_run_again(
    sqlite_path: Path, closing_all: ExitStack
) -> None:
    app = flask_shop(sqlite_path, closing_all, "shop", earlier_records=True)
    assert asked_of(app, "/pay", environ_overrides={"SCRIPT_NAME": "/migrates"})[0] == 200
    store_as_0_1(sqlite_path, "/pay")
    for prefix, status in (("/eu", 409), ("/us", 409), ("", 200)):
        answer = asked_of(app, "/pay", environ_overrides={"SCRIPT_NAME": prefix})
        assert (answer[0], answer[2]) == (status, status == 200)
