"""An application whose AsyncOnefold is made once, in tests that have an event loop each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.testclient import TestClient

from onefold import AsyncOnefold
from onefold._http.fastapi_dependencies import Tx
from tests.http.stages import account_of

PLACES = ("asyncpg", "sqlalchemy-asyncpg", "sqlalchemy-psycopg", "sqlite3", "sqlalchemy-aiosqlite")


@pytest.mark.parametrize("place", PLACES)
def test_a_test_client_may_be_used_again_and_again(
    place: str, request: pytest.FixtureRequest, sqlite_path: Path
) -> None:
    over_sqlite = "sqlite" in place
    dsn = f"sqlite:///{sqlite_path}" if over_sqlite else request.getfixturevalue("postgres_dsn")
    driver = place.partition("-")[2]
    engine = create_async_engine(dsn.replace("://", f"+{driver}://", 1)) if driver else None
    once = AsyncOnefold(engine if engine is not None else dsn, principal=account_of, source="shop")
    app = FastAPI()
    once.install(app)

    @once.idempotent()
    async def order(tx: Tx[Any]) -> dict[str, int]:
        if engine is not None:
            await tx.connection.execute(text("SELECT 1"))
        else:
            await tx.connection.execute("SELECT 1")
            # Its NOTIFY may be under way when the loop is closed. SQLAlchemy loses a connection then, and says so.
            await tx.publish("ordered", {})
        return {"ordered": 1}

    async def migrate() -> None:
        await once.migrate()

    async def close() -> None:
        await once.close()
        if engine is not None:
            await engine.dispose()

    app.post("/orders")(order)
    app.post("/migrate")(migrate)
    app.post("/close")(close)

    def post(client: TestClient, path: str, key: str = '"k"') -> int:
        found: int = client.post(path, headers={"x-account": "acme", "idempotency-key": key}).status_code
        return found

    client = TestClient(app)
    assert post(client, "/migrate") == 200
    for number in range(3):  # each call has a loop of its own, unless the client is a context manager
        assert post(client, "/orders", f'"{number}"') == 200
        assert post(client, "/orders", '"again"') == 200
        with TestClient(app) as other:
            for _ in range(3):
                assert post(other, "/orders", f'"other {number}"') == 200
    assert post(client, "/close") == 200
