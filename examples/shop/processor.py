"""The card processor: somebody else's API, on a database of its own, which honours idempotency keys with onefold.

It is as unreliable as the real ones. PROCESSOR_FAULTS of its requests go wrong, in three ways: refused before anything
was charged; charged, but answered with an error; charged, but answered too late.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel, Field

from examples.shop.settings import LEASE_S, PROCESSOR_DATABASE, listeners
from onefold import AsyncOnefold, single_principal
from onefold.db.sqlite import AsyncSqlite
from onefold.fastapi import Tx

FAULTS = float(os.environ.get("PROCESSOR_FAULTS", "0"))
CHANCE = random.Random(int(os.environ.get("PROCESSOR_SEED", "0")))

with sqlite3.connect(PROCESSOR_DATABASE) as file:
    file.execute("CREATE TABLE IF NOT EXISTS charges (order_id TEXT, amount INTEGER, correlation TEXT)")
    file.execute("CREATE TABLE IF NOT EXISTS refunds (order_id TEXT, amount INTEGER)")
file.close()

once = AsyncOnefold(PROCESSOR_DATABASE, principal=single_principal, listener=listeners("processor"))
app = FastAPI(title="Card processor")
once.install(app)


class Charge(BaseModel):
    """What is to be paid, and how."""

    order: str
    card: str
    amount: int = Field(gt=0)


@app.post("/charges", status_code=201)
@once.idempotent(required=True, lease_s=LEASE_S)
async def charge(wanted: Charge, tx: Tx[AsyncSqlite], correlation_id: Annotated[str, Header()]) -> dict[str, str]:
    """Money moves here: one row is one real charge."""
    if wanted.card == "no money":
        raise HTTPException(402, "the card was declined")
    await tx.connection.execute(
        "INSERT INTO charges (order_id, amount, correlation) VALUES (?, ?, ?)",
        (wanted.order, wanted.amount, correlation_id),
    )
    return {"charged": wanted.order}


class Refund(BaseModel):
    """What is to be given back."""

    order: str
    of: str
    """The key that it was charged under."""


@app.post("/refunds", status_code=201)
@once.idempotent(required=True, lease_s=LEASE_S)
async def refund(wanted: Refund, tx: Tx[AsyncSqlite]) -> dict[str, str]:
    """Gives back what was charged, which may be nothing."""
    await tx.connection.execute(
        "INSERT INTO refunds (order_id, amount) SELECT order_id, amount FROM charges WHERE order_id = ?",
        (wanted.order,),
    )
    return {"refunded": wanted.order}


@app.middleware("http")  # Added last, so it is outside of onefold: what goes wrong here goes wrong after COMMIT.
async def go_wrong(request: Request, pass_on: Callable[[Request], Awaitable[Response]]) -> Response:
    fault = CHANCE.choice(["refuse", "fail", "delay"]) if CHANCE.random() < FAULTS else None
    if fault == "refuse":
        return Response(status_code=503)
    answer = await pass_on(request)
    if fault == "delay":
        await asyncio.sleep(LEASE_S)
    return Response(status_code=502) if fault == "fail" else answer
