"""C10: what FastAPI's OpenAPI document says about idempotent operations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Header
from pydantic import BaseModel

from onefold import Onefold, single_principal


class Order(BaseModel):
    item: str


@pytest.fixture
def once(sqlite_path: Path) -> Iterator[Onefold]:
    found = Onefold(sqlite_path, principal=single_principal)
    yield found
    found.close()


def described(once: Onefold) -> dict[str, Any]:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent(required=True, retention_s=7200, expiry="refuse", wait_s=3)
    def buy(order: Order) -> None: ...

    @app.put("/files/{name:path}", responses={409: {"description": "Sold out"}})
    @once.idempotent()
    def upload(name: str, idempotency_key: Annotated[str | None, Header(description="mine")] = None) -> None: ...

    @app.post("/search")
    def search(order: Order) -> None: ...

    once.install(app)
    assert app.openapi() is app.openapi()
    document: dict[str, Any] = app.openapi()
    return document


def test_the_header_is_a_parameter_that_names_the_retention(once: Onefold) -> None:
    operation = described(once)["paths"]["/orders"]["post"]
    [parameter] = operation["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("Idempotency-Key", "header", True)
    assert "7200 s" in parameter["description"]
    assert "UUIDv7" in parameter["description"]
    assert operation["x-idempotency"] == {
        "required": True,
        "retention_s": 7200,
        "expiry": "refuse",
        "in_flight_wait_s": 3,
    }


def test_the_problems_and_the_replay_mark_stand_beside_what_the_framework_says(once: Onefold) -> None:
    document = described(once)
    responses = document["paths"]["/orders"]["post"]["responses"]
    assert {"201", "400", "409", "410", "413", "422", "503"} <= responses.keys()
    assert "Idempotent-Replayed" in responses["201"]["headers"]
    assert "Retry-After" in responses["409"]["headers"]
    assert "Retry-After" in responses["503"]["headers"]
    assert responses["422"]["content"].keys() == {"application/json", "application/problem+json"}
    reference = responses["400"]["content"]["application/problem+json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert {"type", "title", "status", "detail", "retryable"} <= schema["properties"].keys()


def test_nothing_the_author_wrote_is_replaced(once: Onefold) -> None:
    operation = described(once)["paths"]["/files/{name}"]["put"]
    headers = [parameter for parameter in operation["parameters"] if parameter["in"] == "header"]
    assert [parameter["description"] for parameter in headers] == ["mine"]
    assert operation["responses"]["409"]["description"].startswith("Sold out")
    assert operation["x-idempotency"]["required"] is False


def test_an_operation_that_is_not_idempotent_is_not_described(once: Onefold) -> None:
    operation = described(once)["paths"]["/search"]["post"]
    assert "x-idempotency" not in operation
    assert "parameters" not in operation
    assert "409" not in operation["responses"]
