"""The driver's own connection, which SQLAlchemy hands out and onefold's guards do not see: a COMMIT or ROLLBACK through
it is found out at the end of the request, and said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import flask
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from tests.http.stages import calling
from tests.sessions.stages import Stage, staged

F = TypeVar("F", bound=Callable[..., Any])

INSERT = text("INSERT INTO orders (item, tenant) VALUES ('tea', 'acme')")


@pytest.fixture(params=["sync-sqlite", "sync-postgres", "async-sqlite", "async-postgres", "async-psycopg"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


def end(connection: Any, way: str) -> None:
    """On SQLAlchemy's `Connection`, for asyncio inside of `run_sync`."""
    raw = connection.connection
    match way:
        case "COMMIT" | "ROLLBACK":
            raw.cursor().execute(way)
        case "commit()":
            raw.commit()
        case _:
            raw.rollback()


async def answer_to(stage: Stage, way: str, key: str | None) -> tuple[int, Any]:
    once = await stage.migrated()
    marked: Callable[[F], F] = once.idempotent()
    app: Any
    if stage.asynchronous:
        app = FastAPI()

        @marked
        async def buy(tx: Tx[Any]) -> None:
            await tx.connection.execute(INSERT)
            if way == "driver":
                raw = await tx.connection.get_raw_connection()
                await raw.driver_connection.execute("COMMIT")
            else:
                await tx.connection.run_sync(end, way)

        app.post("/orders", status_code=201)(buy)
        once.install(app)
        async with calling(app) as client:
            answer = await client.post("/orders", key=key)
            return answer.status_code, answer.json()

    app = flask.Flask("shop")

    @marked
    def sell() -> Any:
        connection = current_transaction().connection
        connection.execute(INSERT)
        if way == "driver":
            connection.connection.driver_connection.execute("COMMIT")
        else:
            end(connection, way)
        return {}, 201

    app.post("/orders")(sell)
    once.install(app)
    headers = {"X-Account": "acme", **({} if key is None else {"Idempotency-Key": key})}
    flask_answer = app.test_client().post("/orders", headers=headers)
    return flask_answer.status_code, flask_answer.get_json()


@pytest.mark.parametrize("key", ["k-1", None])
@pytest.mark.parametrize("way", ["driver", "COMMIT", "ROLLBACK", "commit()", "rollback()"])
async def test_who_ends_the_transaction_through_the_raw_connection_is_told_and_nothing_is_stored(
    stage: Stage, way: str, key: str | None
) -> None:
    status, told = await answer_to(stage, way, key)
    assert (status, told["type"]) == (500, "urn:onefold:problem:handler-broken")
    assert "the handler committed or rolled back its transaction by itself" in told["detail"]
    with stage.outside.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM onefold_record")).scalar_one() == 0
