"""Events of HTTP requests: they commit with the key, and share the fate of the rows they tell of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.fastapi_sessions import AsyncSessionTx, SessionTx
from onefold._http.flask_views import current_transaction
from onefold._outbox.request_names import read_headers
from onefold.telemetry import hash_key
from tests.http.stages import account_of, calling, replayed
from tests.outbox.test_write import Refused, Stage, void
from tests.upgrade.places import rows
from tests.worker.consuming import until


def fastapi_app(once: AsyncOnefold) -> FastAPI:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent()
    async def place(tx: Tx[Any], status: int = 201) -> dict[str, str]:
        event_id = await tx.publish("order.placed", {"status": status}, key="ord-1", headers={"tenant": "acme"})
        if status >= 400:
            raise HTTPException(status)
        return {"event": event_id}

    once.install(app)
    return app


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Stage]:
    address = request.getfixturevalue("postgres_dsn") if request.param == "postgres" else str(sqlite_path)
    once = AsyncOnefold(address, source="shop", principal=account_of, development=True)
    await once.migrate()
    yield Stage(once, address)
    await once.close()


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
async def test_an_event_commits_with_its_request(stage: Stage, key: str | None) -> None:
    assert isinstance(stage.once, AsyncOnefold)
    async with calling(fastapi_app(stage.once)) as client:
        answer = await client.post("/orders", key=key)
        assert answer.status_code == 201
        assert stage.rows("id, topic, key, version") == [(answer.json()["event"], "order.placed", "ord-1", 1)]
    [(stored,)] = stage.rows("headers")
    headers, request = read_headers(stored)
    assert headers == {"tenant": "acme"}
    assert (request is None) == (key is None)
    if request is not None:
        assert request.key_hash == hash_key("k")
        [(digest,)] = rows(stage.address, "SELECT digest FROM onefold_record")
        assert bytes(digest).hex() == request.digest


async def test_which_request_it_was_stays_in_the_database(stage: Stage) -> None:
    """The digest of a record can be guessed by those who can guess principal and key."""
    once = AsyncOnefold(stage.address, source="shop", principal=account_of, broker="local")
    seen: list[Any] = []

    @once.consumer("billing", topic="order.placed")
    async def bill(message: Any) -> None:
        seen.append(message.headers)

    async with calling(fastapi_app(once)) as client, once.relaying(), once.consuming():
        await client.post("/orders", key='"k"')
        await until(lambda: bool(seen))
    assert seen == [{"tenant": "acme"}]
    await once.close()


async def test_a_replay_publishes_nothing(stage: Stage) -> None:
    assert isinstance(stage.once, AsyncOnefold)
    async with calling(fastapi_app(stage.once)) as client:
        first = await client.post("/orders", key='"k"')
        again = await client.post("/orders", key='"k"')
        assert (replayed(again), again.content) == (True, first.content)
    assert len(stage.rows()) == 1


@pytest.mark.parametrize("status", [402, 403, 500])
async def test_a_refused_or_failed_request_publishes_nothing(stage: Stage, status: int) -> None:
    assert isinstance(stage.once, AsyncOnefold)
    async with calling(fastapi_app(stage.once)) as client:
        assert (await client.post(f"/orders?status={status}", key='"k"')).status_code == status
        assert (await client.post(f"/orders?status={status}", key=None)).status_code == status
    assert stage.rows() == []


async def test_trace_and_correlation_are_carried_from_the_request_to_its_events(stage: Stage) -> None:
    assert isinstance(stage.once, AsyncOnefold)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given = {"traceparent": trace, "tracestate": "a=1", "x-correlation-id": "c-1", "cookie": "secret"}
    async with calling(fastapi_app(stage.once)) as client:
        await client.post("/orders", key='"k"', headers=given)
        odd = {"traceparent": "x" * 600, "correlation-id": "caf\xe9"}
        await client.post("/orders", key='"l"', headers={name: value.encode("latin-1") for name, value in odd.items()})
    [carried, nothing] = [read_headers(headers)[0] for (headers,) in stage.rows("headers")]
    assert carried == {"traceparent": trace, "tracestate": "a=1", "correlation-id": "c-1", "tenant": "acme"}
    assert nothing == {"tenant": "acme"}


async def test_a_relay_in_the_process_is_told_after_commit_and_only_then(stage: Stage) -> None:
    assert isinstance(stage.once, AsyncOnefold)
    seen: list[int] = []
    stage.once._outbox.committed.append(lambda: seen.append(len(stage.rows())))
    async with calling(fastapi_app(stage.once)) as client:
        await client.post("/orders?status=402", key='"k"')
        await client.post("/orders?status=500", key='"l"')
        await client.post("/orders", key='"m"')
        await client.post("/orders", key='"m"')
    assert seen == [1]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_flask_view_publishes_too(request: pytest.FixtureRequest, sqlite_path: Path, database: str) -> None:
    address = request.getfixturevalue("postgres_dsn") if database == "postgres" else str(sqlite_path)
    once = Onefold(address, source="shop", principal=account_of, development=True)
    once.migrate()
    app = flask.Flask(__name__)

    @app.post("/orders")
    @once.idempotent()
    def place() -> tuple[dict[str, str], int]:
        return {"event": current_transaction().publish("order.placed", {"total": 1}, key=7)}, 201

    once.install(app)
    client = app.test_client()
    sent = {"x-account": "acme", "idempotency-key": '"k"', "correlation-id": "c-1"}
    answers = [client.post("/orders", headers=sent) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    stage = Stage(once, address)
    [(key, version, headers)] = stage.rows("key, version, headers")
    assert (key, version, read_headers(headers)[0]) == ("7", 1, {"correlation-id": "c-1"})
    once.close()


@pytest.mark.parametrize("colour", ["session", "async session"])
async def test_events_share_the_fate_of_the_session_s_nested_parts(sqlite_path: Path, colour: str) -> None:
    app = FastAPI()
    engine: Any
    if colour == "session":
        engine = create_engine(f"sqlite:///{sqlite_path}")
        once = Onefold(engine, source="shop", principal=account_of)
        once.migrate()

        @app.post("/orders")
        @once.idempotent()
        def place(tx: Tx[Any], session: SessionTx) -> None:
            void(tx.publish("kept.first", 1))
            session.execute(text("SELECT 1"))
            try:
                with session.begin_nested():
                    void(tx.publish("gone.nested", 1))
                    raise Refused
            except Refused:
                pass
            with session.begin_nested():
                void(tx.publish("kept.nested", 1))
            session.commit()
            void(tx.publish("gone", 1))
            session.execute(text("SELECT 1"))
            session.rollback()
            void(tx.publish("kept.last", 1))

        once.install(app)
    else:
        engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
        async_once = AsyncOnefold(engine, source="shop", principal=account_of)
        await async_once.migrate()

        @app.post("/orders")
        @async_once.idempotent()
        async def place_async(tx: Tx[Any], session: AsyncSessionTx) -> None:
            await tx.publish("kept.first", 1)
            await session.execute(text("SELECT 1"))
            try:
                async with session.begin_nested():
                    await tx.publish("gone.nested", 1)
                    raise Refused
            except Refused:
                pass
            async with session.begin_nested():
                await tx.publish("kept.nested", 1)
            await session.commit()
            await tx.publish("gone", 1)
            await session.execute(text("SELECT 1"))
            await session.rollback()
            await tx.publish("kept.last", 1)

        async_once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 200
    stage = Stage(Onefold(sqlite_path), str(sqlite_path))
    assert [topic for (topic,) in stage.rows("topic")] == ["kept.first", "kept.nested", "kept.last"]
    disposed = engine.dispose()
    if disposed is not None:
        await disposed


async def test_a_handler_that_commits_by_itself_publishes_nothing(postgres_dsn: str) -> None:
    once = AsyncOnefold(postgres_dsn, source="shop", principal=account_of)
    await once.migrate()
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    async def place(tx: Tx[Any]) -> None:
        await tx.publish("order.placed", 1)
        await tx.connection.execute("COMMIT")

    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 500
        assert (await client.post("/orders")).status_code == 500
    assert Stage(once, postgres_dsn).rows() == []
    await once.close()
