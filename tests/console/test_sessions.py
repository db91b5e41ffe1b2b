"""Sessions that others made, stole or kept let no one in, and signing in cannot be guessed or led astray."""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode

import pytest

from onefold import AsyncOnefold
from onefold._console.access import COOKIE, SESSION_S
from onefold.console import Console, console
from tests.console.browsing import ACT, VIEW, Visitor, text_of

OTHER = "another-act-token-of-the-tests"


def cookie_of(visitor: Visitor) -> str:
    return str(visitor.client.cookies[COOKIE])


def with_cookie(app: Console, cookie: str) -> Visitor:
    found = Visitor(app)
    found.client.cookies.set(COOKIE, cookie, domain="console.test", path="/")
    return found


async def is_let_in(visitor: Visitor) -> bool:
    answer = await visitor.get("/audit")
    assert answer.status_code in (200, 303)
    assert answer.status_code == 200 or answer.headers["location"].startswith("/login")
    return bool(answer.status_code == 200)


async def test_a_session_as_it_was_given_lets_in(app: Console, viewer: Visitor) -> None:
    """The control: what the tests below change is what lets in."""
    assert await is_let_in(with_cookie(app, cookie_of(viewer)))


@pytest.mark.parametrize(
    "forge",
    [
        lambda cookie: "",
        lambda cookie: "x",
        lambda cookie: "...",
        lambda cookie: cookie[:-1] + ("0" if cookie[-1] != "0" else "1"),
        lambda cookie: cookie.rpartition(".")[0],
        lambda cookie: cookie.rpartition(".")[0] + ".",
        lambda cookie: "9" + cookie,
        lambda cookie: cookie.replace(".", "..", 1),
        lambda cookie: cookie + "a" * 5000,
        lambda cookie: cookie.rpartition(".")[0] + "." + "0" * 64,
        lambda cookie: cookie.rpartition(".")[0] + "." + "é" * 32,
    ],
)
async def test_a_forged_session_lets_no_one_in(app: Console, viewer: Visitor, forge: object) -> None:
    assert callable(forge)
    cookie = forge(cookie_of(viewer))
    assert app._parts.access.read(cookie, app._parts.now()) is None  # type: ignore[union-attr]
    if cookie.isascii():
        assert not await is_let_in(with_cookie(app, cookie))


async def test_a_session_ends_by_itself(app: Console, viewer: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    now = app._parts.now()
    monkeypatch.setattr(app._parts, "now", lambda: now + SESSION_S - 60)
    assert await is_let_in(viewer)
    monkeypatch.setattr(app._parts, "now", lambda: now + SESSION_S + 1)
    assert not await is_let_in(viewer)


async def test_the_end_and_the_name_of_a_session_cannot_be_changed(app: Console, viewer: Visitor) -> None:
    ends, nonce, name, signature = cookie_of(viewer).split(".")
    mallory = urlsafe_b64encode(b"Mallory").decode().rstrip("=")
    for forged in ((str(int(ends) + 1), nonce, name), (ends, nonce + "a", name), (ends, nonce, mallory)):
        assert not await is_let_in(with_cookie(app, ".".join((*forged, signature))))


async def test_another_token_ends_all_sessions(once: AsyncOnefold, app: Console, actor: Visitor) -> None:
    cookie = cookie_of(actor)
    changed = console(once, view_token=VIEW, act_token=OTHER)
    assert not await is_let_in(with_cookie(changed, cookie))
    assert await is_let_in(with_cookie(console(once, act_token=ACT), cookie)), "the control: the same token"


async def test_a_session_of_view_is_not_one_of_act_where_the_tokens_change_places(
    once: AsyncOnefold, viewer: Visitor
) -> None:
    swapped = console(once, view_token=ACT, act_token=VIEW)
    assert not await is_let_in(with_cookie(swapped, cookie_of(viewer)))


async def test_signing_out_ends_a_session_that_was_stolen_before(app: Console, actor: Visitor) -> None:
    stolen = cookie_of(actor)
    assert await is_let_in(with_cookie(app, stolen)), "the control"
    await actor.submit("/audit", "/logout")
    assert not await is_let_in(with_cookie(app, stolen))


async def test_signing_out_ends_a_session_in_every_process(once: AsyncOnefold, app: Console, actor: Visitor) -> None:
    other = console(once, view_token=VIEW, act_token=ACT)  # as another worker has it
    stolen = cookie_of(actor)
    assert await is_let_in(with_cookie(other, stolen)), "the control"
    await actor.submit("/audit", "/logout")
    assert not await is_let_in(with_cookie(other, stolen))
    await actor.sign_in(ACT, name="Anna")
    assert await is_let_in(with_cookie(other, cookie_of(actor)))
    page = text_of(await actor.get("/audit"))
    assert "console sign out" in page
    assert stolen not in page


async def test_each_sign_in_is_a_session_of_its_own(app: Console, actor: Visitor) -> None:
    before = cookie_of(actor)
    await actor.sign_in(ACT, name="Anna")
    assert cookie_of(actor) != before


async def test_a_stolen_session_does_not_bring_the_forms_of_its_browser(app: Console, actor: Visitor) -> None:
    """Both cookies are needed for a form, and the token that belongs to both."""
    csrf = await actor.csrf_on("/audit")
    thief = with_cookie(app, cookie_of(actor))
    assert (await thief.post("/logout", {}, csrf=csrf)).status_code == 403


@pytest.mark.parametrize(("origin", "secure"), [("http://console.test", False), ("https://console.test", True)])
async def test_cookies_are_kept_from_scripts_other_sites_and_plain_http(
    app: Console, origin: str, secure: bool
) -> None:
    visitor = Visitor(app, origin=origin)
    page = await visitor.get("/login")
    signed = await visitor.sign_in(ACT)
    lines = [*page.headers.get_list("set-cookie"), *signed.headers.get_list("set-cookie")]
    assert len(lines) == 2
    for line in lines:
        parts = {part.strip().lower() for part in line.split(";")}
        assert {"httponly", "samesite=strict", "path=/"} <= parts
        assert ("secure" in parts) == secure
        assert not any(part.startswith("domain") for part in parts)


# Signing in


async def test_wrong_tokens_are_slowed_and_few_at_once(
    app: Console, caplog: pytest.LogCaptureFixture, gated_throttle: list[float]
) -> None:
    caplog.set_level(logging.WARNING, "onefold.console")
    answers = [(await Visitor(app).sign_in("wrong-token-of-the-tests")).status_code for _ in range(2)]
    assert answers == [401, 401]
    assert gated_throttle == [1.0, 1.0], "each failure was made to wait"
    assert caplog.text.count("sign-in from 127.0.0.1 failed") == 2
    assert "wrong-token" not in caplog.text


async def test_while_failures_are_pending_no_further_token_is_compared(app: Console) -> None:
    throttle = app._parts.throttle
    throttle._pending["127.0.0.1"] = 3
    answer = await Visitor(app).sign_in(ACT)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
    throttle._pending["127.0.0.1"] = 2
    assert (await Visitor(app).sign_in(ACT)).status_code == 303, "the control"


async def test_an_address_that_is_attacked_from_does_not_lock_others_out(app: Console) -> None:
    app._parts.throttle._pending["203.0.113.9"] = 3
    assert (await Visitor(app).sign_in(ACT)).status_code == 303
    for number in range(10):
        app._parts.throttle._pending[f"203.0.113.{number}"] = 3
    assert (await Visitor(app).sign_in(ACT)).status_code == 429, "unless all together are too many"


@pytest.fixture
def gated_throttle(app: Console) -> list[float]:
    """What failed sign-ins waited for, without waiting."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    app._parts.throttle._sleep = sleep
    return waited


@pytest.mark.parametrize("name", ["x" * 256, "Eve\u202e", "a\x00b"])
async def test_a_name_that_cannot_stand_in_the_audit_is_refused(visitor: Visitor, name: str) -> None:
    answer = await visitor.sign_in(ACT, name=name)
    assert answer.status_code == 400
    assert "at most 255 printable characters" in text_of(answer)


async def test_the_token_in_an_address_fills_the_form_and_does_nothing_else(visitor: Visitor) -> None:
    page = await visitor.get(f"/login?token={ACT.replace('!', '%21')}")
    assert f'value="{ACT}"' in page.text
    assert COOKIE not in visitor.client.cookies
    assert not await is_let_in(visitor)


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.test/",
        "/\\evil.test",
        "https://evil.test/",
        "javascript:alert(1)",
        "/\t/evil.test",
        "/%0d%0aset-cookie:a=b",
        "evil.test",
        "/a\r\nx: y",
        "\\/evil.test",
        "///evil.test",
        "/" + "a" * 2000,
    ],
)
async def test_signing_in_leads_nowhere_but_into_the_console(app: Console, wanted: str) -> None:
    visitor = Visitor(app)
    answer = await visitor.sign_in(ACT, then=wanted)
    assert answer.status_code == 303
    location = answer.headers["location"]
    assert location == "/" or (location.startswith("/%0d%0a") and "\r" not in location)
    assert "evil" not in location


async def test_signing_in_leads_to_the_page_that_was_asked_for(app: Console) -> None:
    """The control of the one above."""
    answer = await Visitor(app).sign_in(ACT, then="/dead-letters?consumer=billing&after=1-a%2Fb")
    assert answer.headers["location"] == "/dead-letters?consumer=billing&after=1-a%2Fb"


async def test_two_consoles_on_one_host_leave_each_others_sessions_alone(once: AsyncOnefold) -> None:
    first, second = (
        Visitor(console(once, act_token=f"{ACT}{port}"), origin=f"http://console.test:{port}") for port in (8787, 8788)
    )
    second.client._cookies = first.client._cookies  # of one browser, which does not look at ports
    for visitor, port in ((first, 8787), (second, 8788)):
        assert (await visitor.sign_in(f"{ACT}{port}")).status_code == 303
    assert [(await each.get("/audit")).status_code for each in (first, second)] == [200, 200]


async def test_a_host_that_is_none_is_no_session(actor: Visitor) -> None:
    assert (await actor.get("/audit", host="console.test:port")).status_code < 500
