"""Handlers that cannot work in steps as they are written: told where they are marked, with the way out."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Flask

from onefold import AsyncOnefold, Keyring, Onefold, Transaction, single_principal
from onefold.errors import ConfigurationError, ProgrammerError
from onefold.fastapi import Steps, Tx
from onefold.flask import current_transaction


@pytest.fixture
def once(sqlite_path: Path) -> AsyncOnefold:
    return AsyncOnefold(str(sqlite_path), principal=single_principal)


async def by_tx(tx: Tx[Any]) -> Any:
    return tx


async def plain(work: Steps) -> None: ...
async def with_tx(work: Steps, tx: Tx[Any]) -> None: ...
async def through_dependency(work: Steps, found: Annotated[Any, Depends(by_tx)]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "settings", "told"),
    [
        (plain, {}, r"its key is optional.*@once\.idempotent\(required=True\)"),
        (plain, {"required": True, "store_down": "run"}, "store_down='run'"),
        (with_tx, {"required": True}, r"has the parameter 'tx'.*work\.phase"),
        (through_dependency, {"required": True}, r"'tx' \(in by_tx\)"),
    ],
)
def test_what_cannot_work_in_steps_is_refused_where_it_is_marked(
    once: AsyncOnefold, handler: Callable[..., Any], settings: Any, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        once.idempotent(**settings)(handler)


def test_an_async_handler_of_onefold_is_refused(sqlite_path: Path) -> None:
    once = Onefold(str(sqlite_path), principal=single_principal)
    with pytest.raises(ConfigurationError, match=r"an async function that works in steps, and Onefold\("):
        once.idempotent(required=True)(plain)
    once.close()


def test_steps_of_a_handler_that_is_not_marked_are_refused_by_fastapi() -> None:
    app = FastAPI()
    with pytest.raises(ConfigurationError, match=r"mark the handler with @once\.idempotent\(required=True\)"):
        app.post("/rides")(plain)


def test_steps_are_no_parameter_of_the_documented_request(once: AsyncOnefold) -> None:
    app = FastAPI()
    app.post("/rides")(once.idempotent(required=True)(plain))
    once.install(app)
    [operation] = [each["post"] for path, each in app.openapi()["paths"].items() if path == "/rides"]
    assert [each["name"] for each in operation["parameters"]] == ["Idempotency-Key"]


def test_the_transaction_of_the_request_outside_of_a_step_is_refused(sqlite_path: Path) -> None:
    once = Onefold(str(sqlite_path), principal=single_principal)
    app = Flask(__name__)
    found: list[str] = []

    def inside(tx: Transaction[Any]) -> None:
        assert current_transaction() is tx

    @app.post("/rides")
    @once.idempotent(required=True)
    def create(work: Steps) -> Any:
        with pytest.raises(ProgrammerError, match=r"works in steps, and tx is open inside of them only") as refused:
            _ = current_transaction().connection
        found.append(str(refused.value))
        work.phase("first", inside)
        return {}

    once.install(app)
    assert app.test_client().post("/rides", headers={"Idempotency-Key": "k"}).status_code == 200
    assert len(found) == 1
    once.close()


def test_what_is_recorded_is_encrypted_where_there_is_a_keyring(sqlite_path: Path) -> None:
    ring = Keyring({"a": b"k" * 32}, write="a")
    once = AsyncOnefold(str(sqlite_path), principal=lambda: "the principal", sealer=ring)
    app, breaks = FastAPI(), [True]

    async def secret(tx: Transaction[Any]) -> str:
        return "the result"

    @app.post("/rides")
    @once.idempotent(required=True)
    async def create(body: dict[str, str], work: Steps) -> dict[str, str]:
        found = await work.phase("first", secret)
        if breaks.pop():
            raise RuntimeError
        return {"found": found}

    once.install(app)
    with TestClient(app, raise_server_exceptions=False) as client:
        post = {"json": {"note": "the request"}, "headers": {"Idempotency-Key": "k", "Authorization": "the credential"}}
        assert client.post("/rides", **post).status_code == 500  # type: ignore[arg-type]
        with sqlite3.connect(sqlite_path) as file:
            kept = (
                file.execute("SELECT * FROM onefold_work").fetchall()
                + file.execute("SELECT * FROM onefold_step").fetchall()
            )
        file.close()
        for planted in ("the request", "the result", "the principal", "the credential"):
            assert planted not in repr(kept)
        breaks.append(False)
        assert client.post("/rides", **post).json() == {"found": "the result"}  # type: ignore[arg-type]


def test_no_credential_is_kept_with_an_interrupted_request_that_is_not_encrypted(sqlite_path: Path) -> None:
    once = AsyncOnefold(str(sqlite_path), principal=single_principal)
    app = FastAPI()

    async def nothing(tx: Transaction[Any]) -> None: ...

    @app.post("/rides")
    @once.idempotent(required=True)
    async def create(work: Steps) -> None:
        await work.phase("first", nothing)
        raise RuntimeError

    once.install(app)
    secrets = {"Authorization": "Bearer secret-1", "Cookie": "session=secret-2", "X-Api-Key": "secret-3"}
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/rides", headers={"Idempotency-Key": "k", **secrets}).status_code == 500
        asked = client.get("/onefold/status?operation=POST /rides", headers={"Idempotency-Key": "k"})
        assert asked.json()["state"] == "interrupted"
    with sqlite3.connect(sqlite_path) as file:
        [(kept,)] = file.execute("SELECT request FROM onefold_work").fetchall()
    file.close()
    assert b"secret-" not in kept
    assert b"/rides" in kept
