"""Orders: the API that customers call. An order and its event are one transaction.

uvicorn examples.shop.orders:app              the API
onefold relay examples.shop.orders:once       publishes its events
onefold consume examples.shop.orders:once     gets the outcomes of the orders
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, Field

from examples.shop.database import fetch
from examples.shop.settings import ACCOUNTS, LEASE_S, MEASURE_S, broker, database, listeners, serve_metrics
from onefold import AsyncOnefold, Message, Request, StepOptions, Transaction, TransitionOutcome
from onefold.fastapi import Steps, Tx

TABLES = [
    """
    CREATE TABLE IF NOT EXISTS orders
    (id TEXT PRIMARY KEY, card TEXT, amount BIGINT, attempt BIGINT, state TEXT, correlation TEXT)
    """
]


def account(request: Request) -> str | None:
    """Whose key it is: the account that the caller's API key belongs to. Without one nothing happens: 401."""
    given = (request.header("authorization") or "").removeprefix("Bearer ")
    return ACCOUNTS.get(sha256(given.encode()).hexdigest())


once = AsyncOnefold(
    database("orders"),
    source="orders",
    broker=broker(),
    principal=account,
    listener=listeners("orders"),
    activity=True,
)


@asynccontextmanager
async def measure(_: FastAPI) -> AsyncIterator[None]:
    """The API itself reports what waits in its outbox: a relay that does not run reports nothing."""
    async with once.measuring(every_s=MEASURE_S):
        yield


app = FastAPI(title="Orders", lifespan=measure)
once.install(app)
serve_metrics(app)


class Wish(BaseModel):
    """What the customer asks for. A cart is ordered once: it is the order's identity, and its id."""

    cart: Annotated[str, Field(min_length=1, max_length=64)]
    card: str
    amount: int


class Card(BaseModel):
    """Another card, after one was declined."""

    card: str


class Order(BaseModel):
    """What the customer gets, every time it asks with the same key."""

    id: str
    state: str


@app.post("/orders", status_code=201)
@once.idempotent(required=True, lease_s=LEASE_S)
async def place(wish: Wish, tx: Tx[Any], response: Response, correlation_id: Annotated[str, Header()]) -> Order:
    """The key, the order, its event and this answer commit together, or not at all. A customer who has lost the key
    (another tab, a new telephone) finds the order that the cart has become."""
    order = {"id": wish.cart, "card": wish.card, "amount": wish.amount, "attempt": 1}
    placed = await tx.insert_once(
        "orders", {**order, "state": "placed", "correlation": correlation_id}, on="id", compare="tell"
    )
    if placed.created:
        data = {"order": wish.cart, "attempt": 1, "card": wish.card, "amount": wish.amount}
        await tx.publish("order.placed", data, key=wish.cart)
    elif "amount" in placed.differing:  # card and state may have changed since; this is what the customer agreed to
        raise HTTPException(422, f"cart {wish.cart} was ordered for another amount")
    else:
        response.status_code = 200
    return Order(id=wish.cart, state="placed")


@app.post("/orders/{order}/card")
@once.idempotent(required=True, lease_s=LEASE_S)
async def try_another_card(order: str, another: Card, tx: Tx[Any]) -> Order:
    """A new attempt, wanted by the customer. Events of one order have one key, so they are handled in their order."""
    rows = await fetch(
        tx,
        "UPDATE orders SET card = $2, attempt = attempt + 1, state = 'placed' WHERE id = $1 AND state = 'declined'"
        " RETURNING attempt, amount",
        order,
        another.card,
    )
    if not rows:
        raise HTTPException(404, f"there is no declined order {order}")
    [(attempt, amount)] = rows
    data = {"order": order, "attempt": attempt, "card": another.card, "amount": amount}
    await tx.publish("order.placed", data, key=order)
    return Order(id=order, state="placed")


@app.post("/orders/{order}/voucher", status_code=201)
@once.idempotent(required=True)
async def send_voucher(order: str, work: Steps) -> dict[str, str]:
    """The printer of vouchers knows no keys. Where its answer is lost, a retry could print a second one: so the request
    is parked, and gets 409, until a person has found out what happened."""
    code: str = await work.call(StepOptions("print", repeatable=False), print_voucher, order)
    return {"voucher": code}


async def print_voucher(order: str) -> str:
    """A printer whose answers are always lost."""
    raise httpx.ReadTimeout(f"the printer did not answer for order {order}")


@app.get("/orders/{order}")
async def show(order: str) -> Order:
    """What has become of an order."""
    async with once.transaction() as tx:
        rows = await fetch(tx, "SELECT state FROM orders WHERE id = $1", order)
    if not rows:
        raise HTTPException(404, f"there is no order {order}")
    return Order(id=order, state=rows[0][0])


@once.consumer("orders", topic=["payment.declined", "order.shipped"], retry_base_s=0.1, lease_s=LEASE_S)
async def follow(message: Message, tx: Transaction[Any]) -> None:
    """Each message is handled once: its ledger row and this change of state are one transaction."""
    order = {"id": message.json()["order"]}
    if message.topic == "order.shipped":
        come_from, to = ["placed", "declined"], "shipped"
    else:  # one that comes late finds the order shipped, and leaves it so
        come_from, to = ["placed"], "declined"
    moved = await tx.transition("orders", where=order, state="state", come_from=come_from, to=to)
    if moved.outcome is TransitionOutcome.MISSING:  # it commits together with its first event: a person must look
        raise LookupError(f"there is no order {order['id']}")
