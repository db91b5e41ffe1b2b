"""Secrets are planted wherever a user has some, and searched for wherever onefold leaves something: tables, files, log
lines, answers to others and pages. What a user stores on purpose (its own rows, an event's data) is not searched."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from fastapi import FastAPI, Response

from onefold import AsyncOnefold, Keyring, Request, Retrying, RetryPolicy, intent
from onefold._http.fastapi_dependencies import Tx
from onefold.fastapi import Steps

BEARER = "bearer-hunter2"
COOKIE = "cookie-hunter2"
CARD = "4242424242424242"
KEY = "key-hunter2"
ANSWER = "answer-hunter2"
QUERY = "query-hunter2"
PASSWORD = "password-hunter2"

SECRETS = (BEARER, COOKIE, CARD, KEY, ANSWER, QUERY, PASSWORD)


def who(request: Request) -> str | None:
    return "acme" if request.header("authorization") == f"Bearer {BEARER}" else None


@asynccontextmanager
async def application(database: Any, *, sealed: bool) -> AsyncIterator[httpx.AsyncClient]:
    sealer = Keyring({"1": b"k" * 32}, write="1") if sealed else None
    once = AsyncOnefold(database, source="shop", principal=who, sealer=sealer)
    await once.migrate()
    app = FastAPI()
    once.install(app)

    @app.post("/payments", status_code=201)
    @once.idempotent(required=True, writes=False)
    async def pay(body: dict[str, Any], response: Response, tx: Tx[Any]) -> dict[str, str]:
        response.set_cookie("session", COOKIE)
        if body.get("fails"):
            raise RuntimeError("the handler failed")
        return {"token": ANSWER}

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client
    await once.close()


async def use(client: httpx.AsyncClient) -> list[str]:
    """A request, its replay, a failure, a mismatch; and what a caller without rights, and anyone, gets to see."""
    headers = {"Authorization": f"Bearer {BEARER}", "Idempotency-Key": f'"{KEY}"', "Cookie": COOKIE}
    url = f"/payments?token={QUERY}"
    assert (await client.post(url, json={"card": CARD}, headers=headers)).status_code == 201
    replayed = await client.post(url, json={"card": CARD}, headers=headers)
    assert (replayed.headers["idempotent-replayed"], replayed.json()) == ("true", {"token": ANSWER})
    assert COOKIE not in str(replayed.headers)
    failing = headers | {"Idempotency-Key": f'"{KEY}-2"'}
    assert (await client.post(url, json={"card": CARD, "fails": True}, headers=failing)).status_code == 500
    assert (await client.post(url, json={"card": f"{CARD}0"}, headers=headers)).status_code == 422
    strange = {"Idempotency-Key": f'"{KEY}"'}
    shown = [
        await client.post(url, json={"card": CARD}, headers=strange),
        await client.get("/onefold/status?operation=POST%20/payments", headers=strange),
        await client.get("/onefold/specification"),
        await client.get("/openapi.json"),
    ]
    return [f"{each.headers} {each.text}" for each in shown]


def found_in(place: str, text: str | bytes, *, but: tuple[str, ...] = ()) -> list[str]:
    """Where a secret is, in clear, as hex or as base64."""
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    lower = raw.lower()
    return [
        f"{secret} is in {place}"
        for secret in SECRETS
        if secret not in but
        and (
            secret.encode() in raw
            or secret.encode().hex().encode() in lower
            or base64.b64encode(secret.encode())[:-4] in raw
        )
    ]


def bytes_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def rows_of(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'onefold%'")
        assert len(tables) > 3
        rows = [await connection.fetch(f"SELECT t::text FROM {table['relname']} t") for table in tables]
        return "\n".join(row[0] for table in rows for row in table)
    finally:
        await connection.close()


@pytest.mark.parametrize("sealed", [True, False])
async def test_on_sqlite_no_secret_is_left_anywhere(
    sqlite_path: Path, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "onefold")
    async with application(sqlite_path, sealed=sealed) as client:
        shown = await use(client)
    files = bytes_in(sqlite_path.parent)
    kept = () if sealed else (ANSWER,)  # a stored answer is stored: whoever must not read it is kept out by a key
    assert found_in("a file", files, but=kept) == []
    assert found_in("the log", caplog.text) == []
    assert [line for page in shown for line in found_in("a page", page)] == []


@pytest.mark.parametrize("sealed", [True, False])
async def test_on_postgres_no_secret_is_left_anywhere(
    postgres_dsn: str, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "onefold")
    async with application(postgres_dsn, sealed=sealed) as client:
        shown = await use(client)
    assert found_in("a table", await rows_of(postgres_dsn), but=() if sealed else (ANSWER,)) == []
    assert found_in("the log", caplog.text) == []
    assert [line for page in shown for line in found_in("a page", page)] == []


@asynccontextmanager
async def stepping(database: Any, *, sealed: bool) -> AsyncIterator[tuple[AsyncOnefold, httpx.AsyncClient]]:
    """The same, with a handler that works in steps and breaks after the first."""
    sealer = Keyring({"1": b"k" * 32}, write="1") if sealed else None
    once = AsyncOnefold(database, principal=who, sealer=sealer)
    await once.migrate()
    app = FastAPI()

    async def charge(card: str) -> str:
        return ANSWER

    @app.post("/payments", status_code=201)
    @once.idempotent(required=True)
    async def pay(body: dict[str, Any], work: Steps) -> dict[str, str]:
        await work.call("charge", charge, body["card"])
        raise RuntimeError("the process breaks here")

    once.install(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield once, client
    await once.close()


@pytest.mark.parametrize("sealed", [True, False])
async def test_of_a_request_that_is_left_no_credential_is_kept(
    postgres_dsn: str, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The request itself is kept until it is done, for the completer: under a key of the application, if it has one."""
    caplog.set_level(logging.DEBUG, "onefold")
    headers = {"Authorization": f"Bearer {BEARER}", "Idempotency-Key": f'"{KEY}"', "Cookie": COOKIE, "X-Key": PASSWORD}
    async with stepping(postgres_dsn, sealed=sealed) as (once, client):
        for url in ("/payments", f"/payments?token={QUERY}"):
            assert (await client.post(url, json={"card": CARD}, headers=headers)).status_code == 500
            headers["Idempotency-Key"] = f'"{KEY}-2"'
        kept = () if sealed else (KEY, CARD, ANSWER)
        rows = await rows_of(postgres_dsn)
        assert rows.count("POST /payments") == 2
        assert found_in("a table", rows, but=kept) == []
        assert (await once.complete(abandoned_after_s=0, attempts_max=2)).parked == 1
        assert found_in("a table", await rows_of(postgres_dsn), but=kept) == []
    assert found_in("the log", caplog.text) == []


async def test_a_client_leaves_none_of_them_in_its_journal_and_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "onefold")
    answers = iter([503, 503, 201])
    mock = httpx.MockTransport(lambda _: httpx.Response(next(answers), text=ANSWER))
    retrying = Retrying(RetryPolicy(budget=None, breaker=None), journal=tmp_path / "journal.db")

    class Async(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return mock.handle_request(request)

    transport: Any = retrying.around(Async())
    async with httpx.AsyncClient(transport=transport) as client:
        with intent("pay:ord-42"):
            response = await client.post(
                f"http://ann:{PASSWORD}@shop/payments?token={QUERY}",
                json={"card": CARD},
                headers={"Authorization": f"Bearer {BEARER}", "Cookie": COOKIE},
            )
    assert response.status_code == 201
    files = bytes_in(tmp_path)
    assert b"pay:ord-42" in files
    assert found_in("a file", files) == []
    assert found_in("the log", caplog.text) == []


def test_control_a_secret_is_found_however_it_was_written() -> None:
    for text in (CARD, CARD.encode().hex(), base64.b64encode(CARD.encode()).decode()):
        assert found_in("here", f"x{text}y") == [f"{CARD} is in here"]
