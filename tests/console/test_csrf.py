"""Forms of other sites, other browsers and other sessions change nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._kernel.audit import list_audit
from onefold.console import Console, Operator, Role, console
from tests.console.browsing import ACT, ORIGIN, Visitor

HERE = {"Origin": ORIGIN}


async def is_done(visitor: Visitor, csrf: str | None, headers: Mapping[str, str]) -> bool:
    """Whether a form is taken: that of signing out, which every session has."""
    answer = await visitor.post("/logout", {"reason": ""}, csrf=csrf, headers=headers)
    assert answer.status_code in (303, 403)
    assert (await visitor.get("/audit")).status_code == (303 if answer.status_code == 303 else 200)
    return answer.status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        HERE,
        {"Sec-Fetch-Site": "same-origin"},
        # A proxy that changes the host: the browser's word counts.
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://public.test"},
        {"Origin": "http://CONSOLE.test"},
    ],
)
async def test_a_form_of_the_console_itself_is_taken(actor: Visitor, headers: dict[str, str]) -> None:
    """The control of the ones below."""
    assert await is_done(actor, await actor.csrf_on("/audit"), headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.test"},
        {"Origin": "http://console.test.evil.test"},
        {"Origin": "http://console.test:8080"},
        {"Origin": "http://evil.test/http://console.test"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", **HERE},
        {"Sec-Fetch-Site": "none", **HERE},
        {"Sec-Fetch-Site": "cross-site", **HERE},
        {"Referer": f"{ORIGIN}/audit"},
    ],
)
async def test_a_form_from_another_site_is_refused(actor: Visitor, headers: dict[str, str]) -> None:
    assert not await is_done(actor, await actor.csrf_on("/audit"), headers)


@pytest.mark.parametrize("csrf", [None, "", "0" * 64, "é"])
async def test_a_form_without_its_token_is_refused(actor: Visitor, csrf: str | None) -> None:
    assert not await is_done(actor, csrf, HERE)


async def test_a_token_of_another_browser_is_refused(app: Console, actor: Visitor) -> None:
    other = Visitor(app)
    await other.sign_in(ACT, name="Anna")
    assert not await is_done(actor, await other.csrf_on("/audit"), HERE)


async def test_a_token_from_before_signing_in_again_is_refused(actor: Visitor) -> None:
    csrf = await actor.csrf_on("/audit")
    await actor.sign_in(ACT, name="Anna")
    assert not await is_done(actor, csrf, HERE)
    assert await is_done(actor, await actor.csrf_on("/audit"), HERE)


async def test_signing_in_is_a_form_too(app: Console) -> None:
    visitor = Visitor(app)
    csrf = await visitor.csrf_on("/login")
    fields = {"token": ACT}
    assert (await visitor.post("/login", fields, csrf=csrf, headers={"Origin": "http://evil.test"})).status_code == 403
    assert (await visitor.post("/login", fields)).status_code == 403
    assert (await Visitor(app).post("/login", fields, csrf=csrf)).status_code == 403
    assert (await visitor.post("/login", fields, csrf=csrf)).status_code == 303, "the control"


@pytest.mark.parametrize(
    ("body", "media_type", "status"),
    [
        ("csrf={csrf}", "text/plain", 415),
        ("csrf={csrf}", "multipart/form-data; boundary=x", 415),
        ('{{"csrf":"{csrf}"}}', "application/json", 415),
        ("csrf={csrf}&a=" + "x" * 70_000, "application/x-www-form-urlencoded", 413),
        ("&".join(["a=1"] * 200), "application/x-www-form-urlencoded", 400),
        ("csrf={csrf}é", "application/x-www-form-urlencoded", 400),
        ("csrf={csrf}", "application/x-www-form-urlencoded; charset=utf-8", 303),
    ],
)
async def test_only_what_a_form_sends_is_read(actor: Visitor, body: str, media_type: str, status: int) -> None:
    csrf = await actor.csrf_on("/audit")
    answer = await actor.client.post(
        "/logout", content=body.format(csrf=csrf), headers={"Content-Type": media_type, **HERE}
    )
    assert answer.status_code == status


async def test_forms_are_bound_to_the_operator_where_the_host_application_authorizes(once: AsyncOnefold) -> None:
    """Two users of one browser, one after the other: the second does not send the first one's form."""
    user = "ada"
    app = console(once, authorize=lambda request: Operator(role=Role.ACT, name=user))
    visitor = Visitor(app)
    csrf = await visitor.csrf_on("/keys")
    fields = {"principal": "p", "route": "POST /x", "key": "k"}
    assert (await visitor.post("/keys/find", fields, csrf=csrf)).status_code == 303, "the control"
    user = "grace"
    assert (await visitor.post("/keys/find", fields, csrf=csrf)).status_code == 403


# GET changes nothing


async def test_every_action_is_a_post_with_role_act_or_changes_nothing(once: AsyncOnefold, app: Console) -> None:
    pages = [page for section in app._parts.sections for page in section.pages]
    acting = {page.path for page in pages if page.method == "POST" and page.role is Role.ACT}
    looking = {page.path for page in pages if page.method == "POST" and page.role is Role.VIEW}
    assert looking == {"/keys/find"}, "a POST for the role view is a search that keeps a secret out of the address"
    assert acting >= {"/keys/{names}/erase", "/keys/{names}/answer"}


async def test_the_role_view_cannot_act_whatever_it_sends(once: AsyncOnefold, app: Console, viewer: Visitor) -> None:
    pages = [page for section in app._parts.sections for page in section.pages if page.role is Role.ACT]
    csrf = await viewer.csrf_on("/audit")
    for page in pages:
        path = page.path.replace("{", "").replace("}", "")
        send = viewer.get(path) if page.method == "GET" else viewer.post(path, {"reason": "because"}, csrf=csrf)
        assert (await send).status_code == 403, page.path
    assert len(pages) > 5
    assert await run_flow(once, list_audit) == []


async def test_no_page_is_shown_and_no_form_taken_without_an_operator(app: Console) -> None:
    visitor = Visitor(app)
    csrf = await visitor.csrf_on("/login")
    for section in app._parts.sections:
        for page in section.pages:
            path = page.path.replace("{", "").replace("}", "")
            if page.method == "GET":
                assert (await visitor.get(path)).status_code in (303, 401), page.path
            else:
                assert (await visitor.post(path, {"reason": "because"}, csrf=csrf)).status_code == 401, page.path
