"""The warehouse: parcels are reserved, charged and shipped, or undone: a saga. `uvicorn examples.shop.warehouse:app`

The order of a parcel, its event and the start of its saga are one transaction. What the saga does in this database
(stock, parcels) is written with the step's key; what it does at the card processor carries the step's key as header.
So a kill -9 at any point reserves nothing twice or for ever, and keeps no money for what was not shipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from examples.shop.database import execute
from examples.shop.saga_engines import saga_engine
from examples.shop.settings import LEASE_S, PROCESSOR_URL, SAGAS_URL, STOCK, database, listeners, serve_metrics
from onefold import AsyncOnefold, RetryPolicy, Transaction, retrying, single_principal
from onefold.fastapi import Tx
from onefold.sagas import Abort, Backoff, Effects, Saga, forward_key, saga, start_on_commit

TABLES = [
    "CREATE TABLE IF NOT EXISTS stock (free BIGINT NOT NULL)",
    f"INSERT INTO stock SELECT {STOCK} WHERE NOT EXISTS (SELECT 1 FROM stock)",
    "CREATE TABLE IF NOT EXISTS parcels (id TEXT, amount BIGINT, state TEXT)",
]

once = AsyncOnefold(
    database("warehouse"),
    source="warehouse",
    broker=f"local?lease_s={LEASE_S}",
    principal=single_principal,
    listener=listeners("warehouse"),
    activity=True,
)
effects = Effects(once)
processor = httpx.AsyncClient(
    base_url=PROCESSOR_URL,
    timeout=0.5,
    transport=retrying(httpx.AsyncHTTPTransport(), RetryPolicy(deadline_s=1.0, breaker=None, budget=None)),
    headers={"Correlation-Id": "warehouse"},
)

#: The processor fails often, and is called again soon.
PATIENT = RetryPolicy(attempts_max=20, backoff=Backoff(transient_base_s=0.05, throttled_base_s=0.05, cap_s=0.5))
SOON = Backoff(transient_base_s=0.5, throttled_base_s=0.5, cap_s=1.0)


class Parcel(BaseModel):
    """What the customer asks for. No carrier takes a parcel whose amount is a multiple of three."""

    id: str
    card: str
    amount: int


@effects.apply
async def reserve(tx: Transaction[Any], parcel: Parcel) -> None:
    """One item less: in the transaction that holds the key of the step."""
    await execute(tx, "UPDATE stock SET free = free - 1")
    await execute(tx, "UPDATE parcels SET state = 'reserved' WHERE id = $1", parcel.id)


@effects.undo
async def release(tx: Transaction[Any], parcel: Parcel) -> None:
    """Called where the step had applied."""
    await execute(tx, "UPDATE stock SET free = free + 1")
    await execute(tx, "UPDATE parcels SET state = 'released' WHERE id = $1", parcel.id)


async def charge(parcel: Parcel) -> None:
    """The client sends the key of the step by itself."""
    answer = await processor.post("/charges", json={"order": parcel.id, "card": parcel.card, "amount": parcel.amount})
    if answer.status_code == 402:
        raise Abort("the card was declined")
    answer.raise_for_status()


async def refund(parcel: Parcel) -> None:
    """Of whatever was charged under the key of the step, which may be nothing."""
    answer = await processor.post("/refunds", json={"order": parcel.id, "of": forward_key()})
    answer.raise_for_status()


@effects.apply
async def ship(tx: Transaction[Any], parcel: Parcel) -> str:
    """The end, unless no carrier takes it."""
    if parcel.amount % 3 == 0:
        raise Abort("no carrier takes it")
    await execute(tx, "UPDATE parcels SET state = 'shipped' WHERE id = $1", parcel.id)
    return "shipped"


@saga("parcel", undo_retry=PATIENT, undo_pause=SOON)
async def send(s: Saga, parcel: Parcel) -> str:
    """Each step is undone when a later one cannot be done."""
    await s.step("reserve", reserve, parcel, undo=release, retry=PATIENT)
    await s.step("charge", charge, parcel, undo=refund, retry=PATIENT)
    shipped: str = await s.step("ship", ship, parcel, retry=PATIENT)
    return shipped


engine = saga_engine(SAGAS_URL, [send], listeners("sagas"))


@asynccontextmanager
async def running(_: FastAPI) -> AsyncIterator[None]:
    """The engine, and what turns committed orders into sagas."""
    async with engine:
        engine.consume_starts(once)
        async with once.relaying(lease_s=LEASE_S), once.consuming():
            yield
    await processor.aclose()


app = FastAPI(title="Warehouse", lifespan=running)
once.install(app)
serve_metrics(app)


@app.post("/parcels", status_code=201)
@once.idempotent(required=True, lease_s=LEASE_S)
async def order(parcel: Parcel, tx: Tx[Any]) -> Parcel:
    """The key, the parcel, this answer and the start of the saga commit together, or not at all."""
    await execute(tx, "INSERT INTO parcels (id, amount, state) VALUES ($1, $2, 'ordered')", parcel.id, parcel.amount)
    start_on_commit(tx, send, parcel.id, parcel)
    return parcel
