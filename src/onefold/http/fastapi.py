"""FastAPI: the request's transaction as a dependency.

@app.post("/payments", status_code=201)
@once.idempotent(required=True)
async def pay(body: Payment, tx: Tx[asyncpg.Connection]) -> Receipt: ...
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from onefold._kernel.transaction import Transaction
from onefold.errors import ProgrammerError
from onefold.http.asgi import TRANSACTION

H = TypeVar("H")


async def transaction_of(connection: HTTPConnection) -> Transaction[Any]:
    """The transaction of the request, for `Depends`. Async, so that FastAPI spends no thread on it."""
    tx = connection.scope.get(TRANSACTION)
    if isinstance(tx, Transaction):
        return tx
    raise ProgrammerError(
        f"{connection.url.path} has no transaction: mark the endpoint with @once.idempotent(...), below "
        "@app.post(...), and call once.install(app)"
    )


Tx: TypeAlias = Annotated[Transaction[H], Depends(transaction_of)]
"""The request's transaction: `Tx[asyncpg.Connection]`, `Tx[sqlite3.Connection]`, ..."""
