"""A handler that swallows a serialization failure of its session and refuses: the answer goes out and is not stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from onefold._http.fastapi_dependencies import Tx
from tests.contract.plans import driven
from tests.http.stages import calling, replayed
from tests.sessions.stages import Order, Stage, settle, staged


@pytest.fixture(params=["async-postgres", "sync-postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


async def sell(stage: Stage, tx: Any, by: str) -> JSONResponse:
    """Change what another has changed meanwhile, and have an answer for that."""
    target = tx.session() if by == "session" else tx.connection
    await settle(target.execute(select(Order.tenant)))
    with stage.outside.begin() as other:
        other.execute(update(Order).values(tenant="other"))
    try:
        await settle(target.execute(update(Order).values(tenant="mine")))
    except DBAPIError:
        if by == "session":
            await settle(target.rollback())  # which makes the transaction whole again, as far as the server tells
        return JSONResponse("sold to another", 409)
    raise AssertionError("the transaction saw what it must not see")


def serve(stage: Stage, once: Any, by: str) -> FastAPI:
    app = FastAPI()

    async def sell_async(tx: Tx[Any]) -> JSONResponse:
        return await sell(stage, tx, by)

    def sell_on_a_thread(tx: Tx[Any]) -> JSONResponse:
        return driven(sell(stage, tx, by))

    endpoint = sell_async if stage.asynchronous else sell_on_a_thread
    app.post("/orders", response_model=None)(once.idempotent(isolation="repeatable read")(endpoint))
    once.install(app)
    return app


@pytest.mark.parametrize("by", ["session", "connection"])
async def test_a_refusal_that_hides_a_serialization_failure_is_not_stored(stage: Stage, by: str) -> None:
    once = await stage.migrated()
    with Session(stage.outside) as session:
        session.add(Order(item="old"))
        session.commit()
    async with calling(serve(stage, once, by)) as client:
        for _ in range(2):
            answer = await client.post("/orders", key='"k"')
            assert (answer.status_code, answer.json(), replayed(answer)) == (409, "sold to another", False)
    with stage.outside.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM onefold_record")).scalar_one() == 0
