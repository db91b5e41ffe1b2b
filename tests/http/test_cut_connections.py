"""A handler that finds its connection closed by the server fails for a reason that a retry may not meet: a 503, with a
key and without, on every driver."""

from __future__ import annotations

from typing import Any

import flask
import psycopg
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from tests.db.drivers import POSTGRES, POSTGRES_ASYNC
from tests.http.stages import account_of, calling, problem

WRITE = "INSERT INTO orders VALUES ('book')"

#: Waits until each is gone (milliseconds), so that nothing here depends on when its client hears of it.
CUT = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND state = 'idle in transaction'
"""


class Server:
    """The database from outside."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.cuts = True
        self.sql("CREATE TABLE orders (item text)")

    def sql(self, statement: str) -> Any:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(statement.encode())

    def cut(self) -> None:
        """Once."""
        if self.cuts:
            self.cuts = False
            self.sql(CUT)

    @property
    def orders(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            return len(connection.execute(b"SELECT FROM orders").fetchall())


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
@pytest.mark.parametrize("driver", POSTGRES_ASYNC)
async def test_a_connection_that_the_server_closes_under_a_handler_is_a_503(
    postgres_dsn: str, driver: str, key: str | None
) -> None:
    server = Server(postgres_dsn)
    async with POSTGRES_ASYNC[driver](postgres_dsn, 60.0) as subject:
        once = AsyncOnefold(subject.database, principal=account_of)
        await once.migrate()
        app = FastAPI()

        @app.post("/orders", status_code=201)
        @once.idempotent()
        async def buy(tx: Tx[Any]) -> None:
            await subject.execute(tx.connection, WRITE)
            server.cut()
            await subject.execute(tx.connection, WRITE)

        once.install(app)
        async with calling(app) as client:
            answer = await client.post("/orders", key=key)
            assert (answer.status_code, problem(answer)) == (503, "store-unavailable")
            assert answer.headers["retry-after"]
            assert server.orders == 0
            assert (await client.post("/orders", key=key)).status_code == 201
    assert server.orders == 2


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
@pytest.mark.parametrize("driver", POSTGRES)
def test_the_same_on_threads(postgres_dsn: str, driver: str, key: str | None) -> None:
    server = Server(postgres_dsn)
    with POSTGRES[driver](postgres_dsn, 60.0) as subject:
        once = Onefold(subject.database, principal=account_of)
        once.migrate()
        app = flask.Flask(__name__)

        @app.post("/orders")
        @once.idempotent()
        def buy() -> str:
            subject.execute(current_transaction().connection, WRITE)
            server.cut()
            subject.execute(current_transaction().connection, WRITE)
            return ""

        once.install(app)
        headers = {"x-account": "acme", **({} if key is None else {"idempotency-key": key})}
        assert app.test_client().post("/orders", headers=headers).status_code == 503
        assert server.orders == 0
        assert app.test_client().post("/orders", headers=headers).status_code == 200
    assert server.orders == 2
