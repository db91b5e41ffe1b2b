"""A payments API that may be retried as often as you like. The whole program.

uvicorn examples.payments.app:app

curl -i localhost:8000/payments -H 'Idempotency-Key: "first"' -H 'X-Account: acme' --json '{"amount": 500}'
"""

from __future__ import annotations

import os
import sqlite3
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

from onefold import AsyncOnefold, Request
from onefold.db.sqlite import AsyncSqlite
from onefold.http.fastapi import Tx

DATABASE = os.environ.get("PAYMENTS_DATABASE", "payments.db")

with sqlite3.connect(DATABASE) as database:
    database.execute("CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, account TEXT, amount INTEGER)")
database.close()


def account(request: Request) -> str | None:
    """Whose key it is. A real application takes it from its authentication."""
    return request.header("x-account")


once = AsyncOnefold(DATABASE, principal=account, development=True)
app = FastAPI(title="Payments")
once.install(app)


class Payment(BaseModel):
    """What the client asks for."""

    amount: int


class Receipt(BaseModel):
    """What it gets, every time it asks."""

    id: int
    amount: int


@app.post("/payments", status_code=201)
@once.idempotent(required=True, lease_s=2.0)
async def pay(payment: Payment, x_account: Annotated[str, Header()], tx: Tx[AsyncSqlite]) -> Receipt:
    """The key, the row and this answer commit together. What a killed server was working on is free again after 2 s."""
    row = await tx.connection.execute(
        "INSERT INTO payments (account, amount) VALUES (?, ?)", (x_account, payment.amount)
    )
    if payment.amount > 1_000_000:  # the answer is remembered, the row is rolled back
        raise HTTPException(402, "more than this account may pay at once")
    assert row.lastrowid is not None
    return Receipt(id=row.lastrowid, amount=payment.amount)
