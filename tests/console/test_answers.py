"""Every answer of the console has its headers; and it works under a mount, behind a proxy and for any Host."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onefold import AsyncOnefold
from onefold._console.headers import POLICY
from onefold._console.sections import Visit
from onefold.console import Console, Role, console
from onefold.errors import StoreUnavailable
from tests.console.browsing import ACT, VIEW, Visitor, text_of
from tests.console.page_checks import find_faults, find_links, missing_headers


def check(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, text_of(answer)
    assert list(missing_headers(answer.headers)) == []
    assert find_faults(answer.text) == [] or answer.headers["content-type"].startswith("text/")


async def test_every_answer_has_the_headers(app: Console, visitor: Visitor, viewer: Visitor, actor: Visitor) -> None:
    check(await visitor.get("/"), 303)
    check(await visitor.get("/audit"), 303)
    check(await visitor.get("/login"), 200)
    check(await visitor.get("/static/console.css"), 200)
    check(await visitor.get("/static/console.js"), 200)
    check(await visitor.get("/static/nothing.js"), 404)
    check(await visitor.get("/static/..%2fapp.py"), 404)
    check(await visitor.get("/overview/live", accept="text/event-stream"), 401)
    check(await visitor.get("/nothing"), 404)
    check(await visitor.post("/audit", {}), 405)
    check(await visitor.post("/keys/find", {"key": "k"}), 401)
    check(await visitor.client.request("OPTIONS", "/audit"), 405)
    check(await visitor.client.head("/login"), 200)
    check(await viewer.get("/audit"), 200)
    check(await viewer.get(f"/keys/{'00' * 16}/erase"), 403)
    check(await actor.get("/keys/nothing"), 404)
    check(await actor.post("/keys/find", {"key": "k"}), 403)
    check(await actor.client.post("/keys/find", json={}, headers={"Origin": actor.origin}), 415)
    check(await actor.submit("/keys", "/keys/find", route="x"), 400)


async def test_errors_have_the_headers_too(app: Console, actor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Visit, question: Callable[[str], Any]) -> Any:
        raise errors.pop()

    monkeypatch.setattr(Visit, "run", fail)
    errors: list[Exception] = [ZeroDivisionError("secret"), StoreUnavailable("the database is away")]
    away = await actor.get("/audit")
    check(away, 503)
    assert "the database is away" in text_of(away)
    crashed = await actor.get("/audit")
    check(crashed, 500)
    assert "secret" not in crashed.text


def test_an_answer_without_them_is_found() -> None:
    """The control."""
    assert len(list(missing_headers({}))) >= 6
    assert list(missing_headers({"Content-Security-Policy": POLICY.replace("'self'", "*")}))


async def test_the_policy_allows_no_inline_script_and_no_other_host() -> None:
    allowed = dict(part.strip().split(" ", 1) for part in POLICY.split(";"))
    assert allowed["default-src"] == "'none'"
    assert allowed["script-src"] == allowed["style-src"] == allowed["connect-src"] == "'self'"
    assert allowed["frame-ancestors"] == allowed["base-uri"] == "'none'"
    assert "unsafe" not in POLICY


# Where it is


def host_of(app: Console, path: str) -> FastAPI:
    host = FastAPI()
    host.mount(path, app)
    return host


async def walk(visitor: Visitor, prefix: str) -> None:
    """Sign in, look at every section, sign out: all links and cookies stay below the prefix."""
    sent = await visitor.get("/audit")
    assert sent.headers["location"] == f"{prefix}/login?next=%2Faudit"
    done = await visitor.sign_in(ACT, then="/audit")
    assert done.headers["location"] == f"{prefix}/audit"
    assert f"path={prefix or '/'}" in done.headers["set-cookie"].lower()
    page = await visitor.get("/audit")
    assert page.status_code == 200
    assert 'aria-current="page">Audit' in page.text
    links = [link for link in find_links(page.text) if not link.startswith("#")]
    assert all(link.startswith(f"{prefix}/") for link in links), links
    assert f'action="{prefix}/logout"' in page.text
    assert f'href="{prefix}/static/console.css"' in page.text
    found = await visitor.submit("/keys", "/keys/find", principal="p", route="POST /x", key="k")
    assert re.fullmatch(rf"{prefix}/keys/[0-9a-f.]+\?route=\w+&hash=[0-9a-f]+", found.headers["location"])
    gone = await visitor.submit("/audit", "/logout")
    assert gone.headers["location"] == f"{prefix}/login"


async def test_it_works_under_a_mount(app: Console) -> None:
    await walk(Visitor(host_of(app, "/ops/console"), root="/ops/console"), "/ops/console")


async def test_it_works_alone(app: Console) -> None:
    await walk(Visitor(app), "")


@pytest.mark.parametrize("in_path", [True, False])
async def test_it_works_behind_a_proxy_that_strips_a_path(app: Console, in_path: bool) -> None:
    """The server is told the prefix (uvicorn: --root-path). Servers of today put it in front of the path again, as ASGI
    has it; others do not."""

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if in_path else scope["path"].removeprefix("/tools")
        await app({**scope, "root_path": "/tools", "path": path}, receive, send)

    await walk(Visitor(behind, root="/tools"), "/tools")


async def test_it_works_under_a_mount_behind_a_proxy_that_strips_a_path(app: Console) -> None:
    host = host_of(app, "/console")

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        await host({**scope, "root_path": "/api"}, receive, send)

    await walk(Visitor(behind, root="/api/console"), "/api/console")


@pytest.mark.parametrize("host", ["evil.test", "console.test:9999", "127.0.0.1"])
async def test_the_host_header_leads_nowhere(app: Console, actor: Visitor, host: str) -> None:
    """Addresses are paths: no answer repeats what a client says the host is."""
    for path in ("/", "/audit", "/audit/", "/keys", "//keys", "/login", "/nothing", "/static/console.css/"):
        answer = await actor.client.get(path, headers={"Host": host})
        assert host not in answer.headers.get("location", "")
        assert host not in answer.text
    visitor = Visitor(app)
    csrf = await visitor.csrf_on("/login")
    sent = await visitor.post("/login", {"token": VIEW}, csrf=csrf, headers={"Host": host, "Origin": f"http://{host}"})
    assert sent.headers["location"] == "/"


async def test_a_forwarded_host_or_prefix_is_not_believed(app: Console, actor: Visitor) -> None:
    """Which proxy may be believed is the server's to say (uvicorn: --forwarded-allow-ips)."""
    headers = {"X-Forwarded-Host": "evil.test", "X-Forwarded-Prefix": "//evil.test", "X-Forwarded-Proto": "https"}
    page = await actor.client.get("/audit", headers=headers)
    assert page.status_code == 200
    assert "evil.test" not in page.text


async def test_a_page_may_not_be_kept_by_a_proxy(actor: Visitor) -> None:
    assert (await actor.get("/audit")).headers["cache-control"] == "no-store"


async def test_a_page_cannot_take_a_header_off(once: AsyncOnefold, monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(self: Visit, template: str, /, **values: object) -> Response:
        return Response("x", headers={"Content-Security-Policy": "default-src *", "Cache-Control": "public"})

    monkeypatch.setattr(Visit, "render", weak)
    check(await Visitor(console(once, authorize=lambda request: Role.VIEW)).get("/audit"), 200)


async def test_the_page_before_the_sign_in_tells_nothing_of_what_is_stored(app: Console, visitor: Visitor) -> None:
    page = text_of(await visitor.get("/login"))
    assert "SQLite" not in page
    for section in app._parts.sections:
        assert section.title not in page.split()
