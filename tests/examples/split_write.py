"""The shop's orders with a planted bug: the event is published in a transaction of its own, before the order's."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextvars import Context
from itertools import count
from typing import Annotated, Any
from uuid import uuid4

from fastapi import FastAPI, Header, HTTPException

from examples.shop import orders
from examples.shop.database import execute
from onefold._http.fastapi_dependencies import Tx

once = orders.once
TABLES = orders.TABLES
REQUESTS = count()
PLACED: dict[str, str] = {}
TURNS: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

app = FastAPI()
once.install(app)


async def publish(order: str, data: dict[str, Any], correlation_id: str) -> None:
    async with once.transaction() as another:
        await another.publish("order.placed", data, key=order, headers={"correlation-id": correlation_id})


@app.post("/orders", status_code=201)
@once.idempotent(required=True)
async def place(wish: orders.Wish, tx: Tx[Any], correlation_id: Annotated[str, Header()]) -> orders.Order:
    async with TURNS[wish.cart]:  # under another key it is found: that is not the bug
        if wish.cart not in PLACED:
            PLACED[wish.cart] = await place_anew(wish, tx, correlation_id)
    return orders.Order(id=PLACED[wish.cart], state="placed")


async def place_anew(wish: orders.Wish, tx: Any, correlation_id: str) -> str:
    order = str(uuid4())
    data = {"order": order, "attempt": 1, "card": wish.card, "amount": wish.amount}
    # In a task that does not know the request: inside of it, onefold refuses a second transaction.
    await asyncio.create_task(publish(order, data, correlation_id), context=Context())
    if next(REQUESTS) % 5 == 0:
        raise HTTPException(503, "something fails between the two")
    await execute(
        tx,
        "INSERT INTO orders (id, card, amount, attempt, state, correlation) VALUES ($1, $2, $3, 1, 'placed', $4)",
        order,
        wish.card,
        wish.amount,
        correlation_id,
    )
    return order
