"""Who may see an answer is settled before it is looked up: on a retry, and on the status resource."""

from __future__ import annotations

import pytest

from onefold import Request
from tests.contract.backends import Backend, account_of
from tests.contract.plans import Plan
from tests.contract.wire import Answer

STATUS = "operation=POST%20/orders"


class Tokens:
    """The accounts whose tokens are revoked."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    def allow(self, request: Request) -> bool:
        return account_of(request) not in self.revoked


def status(backend: Backend, query: str = STATUS, **how: str) -> Answer:
    return backend.get("/onefold/status", query=query, key='"k"', **how)


@pytest.mark.contract("C39")
def test_c39_a_revoked_caller_gets_neither_the_stored_answer_nor_its_status(backend: Backend) -> None:
    tokens = Tokens()
    backend.serve(settings={"authorize": tokens.allow})
    assert backend.post(key='"k"', plan=Plan(body=b"secret")).body == b"secret"
    tokens.revoked.add("acme")
    for refused in (backend.post(key='"k"'), status(backend)):
        assert (refused.status, refused.problem, refused.replayed) == (403, "not-authorized", False)
        assert b"secret" not in refused.body
    tokens.revoked.clear()
    assert (backend.post(key='"k"').body, status(backend).json["state"]) == (b"secret", "done")
    assert len(backend.calls) == 1


@pytest.mark.contract("C39")
@pytest.mark.parametrize("key", ['"k"', None])
def test_c39_a_refused_caller_s_request_does_not_run(backend: Backend, key: str | None) -> None:
    tokens = Tokens()
    tokens.revoked.add("acme")
    backend.serve(settings={"authorize": tokens.allow})
    assert backend.post(key=key).problem == "not-authorized"
    assert (backend.calls, backend.records()) == ([], [])


@pytest.mark.contract("C39")
def test_c39_a_caller_without_credentials_is_told_nothing(backend: Backend) -> None:
    backend.post(key='"k"', plan=Plan(body=b"secret"))
    refusals = [
        backend.post(key='"k"', account=""),
        status(backend, account=""),
        status(backend, "operation=POST%20/nothing", account=""),
        status(backend, "", account=""),
    ]
    assert {refused.problem for refused in refusals} == {"principal-missing"}
    assert {refused.body for refused in refusals} == {refusals[0].body}
    assert b"/orders" not in refusals[0].body


@pytest.mark.contract("C39")
def test_c39_another_principal_sees_nothing_of_it(backend: Backend) -> None:
    backend.post(key='"k"', plan=Plan(body=b"secret"))
    assert status(backend, account="evil").json["state"] == "unknown"
    assert backend.post(key='"k"', account="evil", plan=Plan(body=b"its own")).body == b"its own"


@pytest.mark.contract("C39")
def test_c39_a_principal_that_fails_names_itself_and_shows_nothing(backend: Backend) -> None:
    def failing_principal(request: Request) -> str:
        raise LookupError("planted secret")

    backend.serve(settings={"principal": failing_principal})
    for broken in (backend.post(key='"k"'), status(backend)):
        assert (broken.status, broken.problem) == (500, "authentication-broken")
        assert (broken.json["retryable"], broken.header("retry-after")) == (True, "1")
        assert "principal function" in broken.json["detail"]
        assert "failing_principal" in broken.json["detail"]
        assert b"planted secret" not in broken.body
