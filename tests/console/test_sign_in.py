"""Signing in with a token, and the sessions that begin so."""

from __future__ import annotations

import pytest

from tests.console.browsing import ACT, VIEW, Visitor, text_of


async def test_a_page_is_shown_after_signing_in(visitor: Visitor) -> None:
    sent = await visitor.get("/audit?after=3")
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Faudit%3Fafter%3D3")
    done = await visitor.sign_in(VIEW, name="Vera", then="/audit?after=3")
    assert (done.status_code, done.headers["location"]) == (303, "/audit?after=3")
    page = await visitor.get("/audit")
    assert page.status_code == 200
    assert "Vera · view" in text_of(page)


@pytest.mark.parametrize(("token", "role"), [(VIEW, "view"), (ACT, "act")])
async def test_the_token_says_the_role(visitor: Visitor, token: str, role: str) -> None:
    await visitor.sign_in(token)
    assert f"console ({role} token) · {role}" in text_of(await visitor.get("/audit"))


async def test_a_wrong_token_is_told_and_not_let_in(visitor: Visitor) -> None:
    answer = await visitor.sign_in("another-token-of-the-tests")
    assert answer.status_code == 401
    assert "not one of this console" in text_of(answer)
    assert (await visitor.get("/audit")).status_code == 303


async def test_signing_out_ends_the_session(viewer: Visitor) -> None:
    assert (await viewer.get("/audit")).status_code == 200
    await viewer.submit("/audit", "/logout")
    assert (await viewer.get("/audit")).status_code == 303


@pytest.mark.parametrize(
    "address", ["/dead-letters/letter?consumer=x&id=%00", "/outbox/trace?id=%00", "/dead-letters/jobs/%00"]
)
async def test_a_nul_character_is_refused_before_a_database_would(viewer: Visitor, address: str) -> None:
    assert (await viewer.get(address)).status_code == 400


async def test_a_nul_character_in_a_form_is_refused(actor: Visitor) -> None:
    answer = await actor.submit("/audit", "/dead-letters/redrive", consumer="a\0", rate="1", limit="1", reason="why")
    assert answer.status_code == 400
