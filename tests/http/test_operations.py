"""What a route's keys belong to: its operation, which no refactoring changes that its clients do not see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask

from onefold import AsyncOnefold, Onefold
from onefold._http.request_identity import operations_of
from onefold._http.route_policy import Settings
from onefold._http.routes import routes_of
from onefold.errors import ConfigurationError
from tests.http.stages import account_of, calling, problem, replayed


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("template", "given", "operations"),
    [
        ("/orders", None, ("POST /orders",)),
        ("/orders/{id}", None, ("POST /orders/{}", "POST /orders/{id}")),
        ("/orders/{id:int}/x/{y}", None, ("POST /orders/{}/x/{}", "POST /orders/{id:int}/x/{y}")),
        ("/orders/<int:id>", None, ("POST /orders/{}", "POST /orders/<int:id>")),
        ('/o/<any("a>b", c):kind>', None, ("POST /o/{}", 'POST /o/<any("a>b", c):kind>')),
        ("/orders", "order", ("POST order", "POST /orders")),
        ("/orders/{id}", "order", ("POST order", "POST /orders/{id}", "POST /orders/{}")),
        ("/orders/{order_id}", "/orders/{id}", ("POST /orders/{}", "POST /orders/{id}", "POST /orders/{order_id}")),
        ("/v2/{n}", "/orders/{id}", ("POST /orders/{}", "POST /v2/{n}", "POST /orders/{id}", "POST /v2/{}")),
        ("/orders/{id}", "/orders/{}", ("POST /orders/{}", "POST /orders/{id}")),
        ("//shop.test/orders", None, ("POST //shop.test/orders",)),
    ],
)
def test_operations(template: str, given: str | None, operations: tuple[str, ...]) -> None:
    assert operations_of("POST", template, given) == operations


async def in_fastapi(path: Path, template: str, url: str, **settings: Any) -> tuple[int, bool, Any]:
    """One retry, after a deploy with this template."""
    app = FastAPI()
    once = AsyncOnefold(str(path), principal=account_of)

    # One function for any name of its parameter.
    @app.post(template)
    @once.idempotent(**settings, writes=False)
    async def refund() -> dict[str, str]:
        return {"from": template}

    once.install(app)
    async with calling(app) as client:
        answer = await client.post(url, {"cents": 5}, key='"k"')
        asking = {"x-account": "acme", "idempotency-key": '"k"'}
        state = await client.http.get(f"/onefold/status?operation=POST {template}", headers=asking)
    await once.close()
    return answer.status_code, replayed(answer), state


async def test_fastapi_keeps_keys_when_a_parameter_is_renamed_or_typed(sqlite_path: Path) -> None:
    for number, name in enumerate(("id", "order_id", "id:int", "id:float", "id:path")):
        found = await in_fastapi(sqlite_path, f"/orders/{{{name}}}/refunds", "/orders/17/refunds")
        assert found[:2] == (200, number > 0), name
    status, _, _ = await in_fastapi(sqlite_path, "/orders/{id}/refunds", "/orders/18/refunds")
    assert status == 422


async def test_fastapi_keeps_the_keys_of_a_route_that_moves(sqlite_path: Path) -> None:
    first = await in_fastapi(sqlite_path, "/orders/{id}/refunds", "/orders/17/refunds", operation="refund")
    moved = await in_fastapi(sqlite_path, "/v2/{a}/refund", "/v2/17/refund", operation="refund")
    assert (first[:2], moved[:2]) == ((200, False), (200, True))


def in_flask(path: Path, closing: ExitStack, rule: str, url: str, **settings: Any) -> tuple[int, bool]:
    app = Flask("shop")
    once = Onefold(str(path), principal=account_of)
    closing.callback(once.close)

    @app.post(rule)
    @once.idempotent(**settings, writes=False)
    def refund(**values: object) -> str:
        return rule

    once.install(app)
    answer = app.test_client().post(url, headers={"x-account": "acme", "idempotency-key": '"k"'}, json={"cents": 5})
    return answer.status_code, "Idempotent-Replayed" in answer.headers


def test_flask_keeps_keys_when_a_parameter_is_renamed_or_typed(sqlite_path: Path, closing: ExitStack) -> None:
    for number, parameter in enumerate(("<id>", "<order_id>", "<int:id>", "<path:id>", "<any('17', '18'):id>")):
        found = in_flask(sqlite_path, closing, f"/orders/{parameter}/refunds", "/orders/17/refunds")
        assert found == (200, number > 0), parameter
    assert in_flask(sqlite_path, closing, "/orders/<id>/refunds", "/orders/18/refunds")[0] == 422


def test_flask_keeps_the_keys_of_a_route_that_moves(sqlite_path: Path, closing: ExitStack) -> None:
    settings: Settings = {"operation": "refund"}
    assert in_flask(sqlite_path, closing, "/orders/<id>/refunds", "/orders/17/refunds", **settings) == (200, False)
    assert in_flask(sqlite_path, closing, "/v2/<int:a>/refund", "/v2/17/refund", **settings) == (200, True)


async def test_the_status_of_a_key_is_found_by_the_template(sqlite_path: Path) -> None:
    for name in ("id", "order"):
        _, _, state = await in_fastapi(sqlite_path, f"/orders/{{{name}}}", "/orders/17")
        assert (state.status_code, state.json()["state"], problem(state)) == (200, "done", "")


# --- what is refused where it is written --------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["", "two words", "tab\t", "x" * 201, "é"])
def test_an_operation_that_is_no_name_is_refused(sqlite_path: Path, closing: ExitStack, operation: str) -> None:
    once = Onefold(str(sqlite_path), principal=account_of)
    closing.callback(once.close)
    with pytest.raises(ConfigurationError, match=re.escape(f"operation={operation!r} must be 1 to 200")):
        once.idempotent(operation=operation)


def test_two_handlers_cannot_have_one_operation(sqlite_path: Path, closing: ExitStack) -> None:
    once = Onefold(str(sqlite_path), principal=account_of)
    closing.callback(once.close)

    def pay() -> None: ...
    def refund() -> None: ...

    once.idempotent(operation="pay")(pay)
    once.idempotent(operation="pay")(pay)  # an application factory that is called again
    with pytest.raises(ConfigurationError, match=r"operation='pay' is given to .*refund and was given to .*pay"):
        once.idempotent(operation="pay")(refund)
    policies = [once.policy(operation="pay") for _ in range(2)]
    with pytest.raises(ConfigurationError, match="'POST /b' and 'POST /a' both have operation='pay'"):
        routes_of({"POST /a": policies[0], "POST /b": policies[1]})
    routes_of({"POST /a": policies[0], "POST /b": policies[0], "PUT /a": policies[1]})
    with pytest.raises(ConfigurationError, match="'POST /b' and 'POST /a' both have operation='/a'"):
        routes_of({"POST /a": once.policy(), "POST /b": once.policy(operation="/a")})
    routes_of({"POST /a/{id:int}": once.policy(), "POST /a/{name}": once.policy()})
    with pytest.raises(ConfigurationError, match="cannot stand in the defaults"):
        Onefold(str(sqlite_path), principal=account_of, defaults={"operation": "pay"})


def test_earlier_strategies_are_a_tuple_of_functions(sqlite_path: Path, closing: ExitStack) -> None:
    once = Onefold(str(sqlite_path), principal=account_of)
    closing.callback(once.close)
    wrong: Any = ("raw",)
    with pytest.raises(ConfigurationError, match=r"fingerprint_before=\('raw',\) must be a tuple of strategies"):
        once.policy(fingerprint_before=wrong)
