"""The host application's own `authorize`: what it may return and raise; and what is refused at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from starlette.requests import Request

from onefold import AsyncOnefold
from onefold.console import Operator, Role, console
from onefold.errors import ConfigurationError
from tests.console.browsing import ACT, VIEW, Visitor, text_of


def visiting(once: AsyncOnefold, authorize: Callable[[Request], Any]) -> Visitor:
    return Visitor(console(once, authorize=authorize))


async def later(value: Any) -> Any:
    return value


@pytest.mark.parametrize("wrap", [lambda value: value, later])
async def test_a_role_lets_in(once: AsyncOnefold, wrap: Callable[[Any], Any | Awaitable[Any]]) -> None:
    page = await visiting(once, lambda request: wrap(Role.VIEW)).get("/audit")
    assert page.status_code == 200
    assert "console · view" in text_of(page)
    assert "Sign out" not in text_of(page)


async def test_an_operator_has_a_name_in_the_audit(once: AsyncOnefold) -> None:
    page = await visiting(once, lambda request: Operator(role=Role.ACT, name="ada@example.org")).get("/audit")
    assert "ada@example.org · act" in text_of(page)


async def test_none_is_refused(once: AsyncOnefold) -> None:
    page = await visiting(once, lambda request: None).get("/audit")
    assert page.status_code == 403


@pytest.mark.parametrize("verdict", [True, False, "act", "view", 1, {"role": "act"}, object(), Role, ["act"]])
async def test_what_is_no_role_lets_no_one_in(
    once: AsyncOnefold, verdict: Any, caplog: pytest.LogCaptureFixture
) -> None:
    page = await visiting(once, lambda request: verdict).get("/audit")
    assert page.status_code == 500
    assert "could not identify the operator" in text_of(page)
    assert "must return Role.VIEW, Role.ACT, an Operator, or None" in caplog.text


@pytest.mark.parametrize("make", [lambda: Operator(role=Role.ACT, name=""), lambda: Operator(role="act")])  # type: ignore[arg-type]
async def test_an_operator_that_is_none_lets_no_one_in(
    once: AsyncOnefold, make: Callable[[], Operator], caplog: pytest.LogCaptureFixture
) -> None:
    page = await visiting(once, lambda request: make()).get("/audit")
    assert page.status_code == 500
    assert "could not identify the operator" in text_of(page)
    assert "must" in caplog.text


async def test_an_error_of_authorize_lets_no_one_in_and_tells_nothing(once: AsyncOnefold) -> None:
    def fail(request: Request) -> Role:
        raise LookupError("the password is hunter2")

    page = await visiting(once, fail).get("/audit")
    assert page.status_code == 500
    assert "hunter2" not in page.text


async def test_the_frameworks_refusals_are_answered_as_they_are(once: AsyncOnefold) -> None:
    def refuse(request: Request) -> Role:
        raise HTTPException(401, "<b>who?</b>", {"WWW-Authenticate": "Basic"})

    def send_away(request: Request) -> Role:
        raise HTTPException(303, headers={"Location": "https://login.example.org/"})

    page = await visiting(once, refuse).get("/audit")
    assert (page.status_code, page.headers["www-authenticate"]) == (401, "Basic")
    assert "<b>who?" not in page.text
    sent = await visiting(once, send_away).get("/audit")
    assert (sent.status_code, sent.headers["location"]) == (303, "https://login.example.org/")


async def test_there_is_no_sign_in_beside_authorize(once: AsyncOnefold) -> None:
    visitor = visiting(once, lambda request: Role.ACT)
    assert (await visitor.get("/login")).status_code == 404
    assert (await visitor.post("/login", {"token": ACT})).status_code == 404


async def test_authorize_gets_the_request_of_the_host_application(once: AsyncOnefold) -> None:
    seen: list[tuple[str, str | None]] = []

    def look(request: Request) -> Role:
        seen.append((request.url.path, request.headers.get("x-user")))
        return Role.VIEW

    host = FastAPI()
    host.mount("/ops/console", console(once, authorize=look))
    await Visitor(host, root="/ops/console").get("/audit", x_user="ada")
    assert seen == [("/ops/console/audit", "ada")]


# Where the console is made


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "would be open to everyone who reaches it"),
        ({"authorize": lambda request: Role.ACT, "act_token": ACT}, "both authorize and a token"),
        ({"authorize": "admin"}, "authorize='admin' must be a function of the request"),
        ({"view_token": VIEW, "act_token": VIEW}, "are the same"),
        ({"act_token": "short"}, "act_token has 5 characters; it must have at least 16"),
        ({"view_token": ""}, "view_token has 0 characters"),
        ({"act_token": " " * 20}, "no blank at its ends"),
        ({"act_token": b"bytes-of-a-token-of-tests"}, "act_token is a bytes; it must be a str"),
    ],
)
def test_a_console_that_would_be_open_or_cannot_work_is_refused(
    once: AsyncOnefold, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        console(once, **settings)
    assert ACT not in str(refused.value)


def test_what_is_no_onefold_is_refused() -> None:
    given: Any = "app.db"
    with pytest.raises(ConfigurationError, match="console\\(\\) got a str; its first argument is the AsyncOnefold"):
        console(given, act_token=ACT)
