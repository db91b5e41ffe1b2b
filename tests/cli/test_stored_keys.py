"""`onefold keys` for requests that are done: what became of a key, and erasing its answer, as the console says it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.cli.commands import one_line, onefold, told

APPLICATION = """
from fastapi import FastAPI
from onefold import AsyncOnefold, Keyring
from onefold.fastapi import Tx
from onefold.policies import trusted_header

once = AsyncOnefold({path!r}, principal=trusted_header("x-account"), sealer={sealer})
app, inner = FastAPI(), FastAPI()


@app.post("/orders/{{number}}", status_code=201)
@once.idempotent(required=True)
async def order(number: str, tx: Tx) -> dict[str, str]:
    return {{"secret": "4711"}}


@inner.post("/refunds", status_code=201)
@once.idempotent(required=True)
async def refund(tx: Tx) -> dict[str, str]:
    return {{"refunded": "yes"}}


app.mount("/v1", inner)
once.install(app)
"""
ORDER = ("--principal", "acme", "--route", "POST /orders/{number}")


class Shop:
    """An application in a file, as --app names it, and its requests."""

    def __init__(self, folder: Path, *, sealer: str = "None") -> None:
        self.folder, self.database = folder, folder / "shop.db"
        code = APPLICATION.format(path=str(self.database), sealer=sealer)
        (folder / "shop.py").write_text(code)
        names: dict[str, Any] = {"__name__": "shop"}
        exec(compile(code, "shop.py", "exec"), names)
        self.once, self.client = names["once"], TestClient(names["app"])

    def post(self, path: str, key: str) -> int:
        return self.client.post(path, headers={"Idempotency-Key": f'"{key}"', "x-account": "acme"}).status_code

    def keys(self, *words: str, app: bool = False) -> Any:
        place = ("--app", "shop:once") if app else ("-d", str(self.database))
        return onefold("keys", *words, *place, cwd=self.folder)

    def show(self, *words: str, app: bool = False) -> Any:
        return told(self.keys("show", *words, "--json", app=app))


@pytest.fixture(params=["None", 'Keyring({"k": bytes(32)}, write="k")'], ids=["plain", "sealed"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, sealer=request.param)
    with shop.client:
        assert shop.post("/orders/7", "order-7") == 201
        yield shop
    asyncio.run(shop.once.close())


def test_what_became_of_a_key_is_told_by_principal_route_and_key_and_by_its_id(shop: Shop) -> None:
    by_key = shop.show("order-7", *ORDER)
    assert shop.show("order-7", "--principal", "acme", "--route", "post /orders/{number}") == by_key
    assert by_key["state"] == "Done: answered 201"
    assert (by_key["operation"], by_key["status"]) == ("POST /orders/{}", 201)
    assert by_key["retry_gets"].startswith("The stored answer, 201, marked Idempotent-Replayed: true.")
    assert by_key["expires"] is not None
    assert by_key["body_bytes"] > 0
    [listed] = told(shop.keys("list", "--stored", "--json"))
    assert listed["id"] in by_key["ids"]
    by_id = shop.show(listed["id"])
    assert {name: by_id[name] for name in ("state", "status", "expires")} == {
        name: by_key[name] for name in ("state", "status", "expires")
    }
    with closing(sqlite3.connect(shop.database)) as database:
        [[written]] = database.execute("SELECT count(*) FROM onefold_audit").fetchall()
    page = shop.keys("show", "order-7", *ORDER).stdout
    assert "4711" not in page, "bodies are hidden"
    assert "Done: answered 201" in page
    assert written == 0, "a look changes nothing"


def test_the_application_knows_the_routes_below_mounts_too_and_when_an_answer_was_stored(shop: Shop) -> None:
    assert shop.post("/v1/refunds", "refund-1") == 201
    found = shop.show("order-7", "--principal", "acme", app=True)
    assert found["status"] == 201
    assert found["stored"] < found["expires"]
    for words in ((), ("--route", "POST /v1/refunds")):
        assert shop.show("refund-1", "--principal", "acme", *words, app=True)["status"] == 201
    assert shop.show("refund-1", "--principal", "acme", "--route", "POST /v1/refunds")["status"] == 201
    unknown = shop.keys("show", "refund-1", "--principal", "acme", "--route", "POST /refunds", app=True)
    assert "no route with keys that fits" in unknown.stdout
    assert "none of 2 routes" in one_line(shop.keys("show", "order-7", "--principal", "another", app=True))


def test_an_erased_answer_is_forgotten_with_a_reason_and_the_request_runs_again(shop: Shop) -> None:
    assert "--why" in shop.keys("erase", "order-7", *ORDER, "--yes").stderr
    done = told(shop.keys("erase", "order-7", *ORDER, "--yes", "--why", "refunded", "--actor", "ada", "--json"))
    assert done["operation"] == "POST /orders/{}"
    found = shop.show("order-7", *ORDER)
    assert (found["state"], found["erased"]["actor"], found["erased"]["why"]) == ("Erased", "ada", "refunded")
    assert "there is nothing to erase" in one_line(shop.keys("erase", "order-7", *ORDER, "--yes", "--why", "again"))
    with closing(sqlite3.connect(shop.database)) as database:
        rows = database.execute("SELECT actor, action, details FROM onefold_audit").fetchall()
    assert [(actor, action, json.loads(details)["why"]) for actor, action, details in rows] == [
        ("ada", "keys erase", "refunded")
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("order-7", "--principal", "acme"),
            "Give the route (POST /orders; --route on the command line), or the application (--app)",
        ),
        (("order-7", "--route", "POST /orders/{number}"), "what the application calls the caller"),
        (("order-7", "--principal", "acme", "--route", "orders"), "The route is a method and a path"),
        (("a,b", *ORDER), "This is not an Idempotency-Key"),
    ],
)
def test_what_names_no_key_is_told(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    shop = Shop(tmp_path)
    with shop.client:
        assert said in one_line(shop.keys("show", *words))


def test_the_size_of_a_body_is_the_one_that_its_client_had(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.client:
        headers = {"Idempotency-Key": '"order-7"', "x-account": "acme"}
        sent = shop.client.post("/orders/7", headers=headers)
    assert shop.show("order-7", *ORDER)["body_bytes"] == len(sent.content)
    asyncio.run(shop.once.close())


def test_a_key_under_which_nothing_is_stored_is_told_and_ends_with_1(shop: Shop) -> None:
    for words in (("--principal", "acmee", *ORDER[2:]), (*ORDER[:2], "--route", "POST /orderz/{number}")):
        ended = shop.keys("show", "order-7", *words, app=True)
        assert ended.returncode == 1
        assert "Nothing is stored" in ended.stdout
    unnamed = shop.keys("show", "order-7", app=True)
    assert unnamed.returncode == 1
    assert "--principal" in unnamed.stderr
