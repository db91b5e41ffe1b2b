"""Fulfilment: ships what has been paid, once. `onefold consume examples.shop.fulfilment:once`"""

from __future__ import annotations

from typing import Any

from examples.shop.database import execute
from examples.shop.settings import LEASE_S, broker, database, listeners
from onefold import AsyncOnefold, Message, Transaction

# No UNIQUE (order_id) on purpose: that there is one row per order is onefold's doing.
TABLES = ["CREATE TABLE IF NOT EXISTS shipments (order_id TEXT, correlation TEXT)"]

once = AsyncOnefold(
    database("fulfilment"), source="fulfilment", broker=broker(), listener=listeners("fulfilment"), activity=True
)


@once.consumer("fulfilment", topic="payment.captured", retry_base_s=0.1, lease_s=LEASE_S)
async def ship(message: Message, tx: Transaction[Any]) -> None:
    """The shipment, its event and the ledger row that makes a second delivery harmless are one transaction."""
    order = message.json()["order"]
    correlation = message.headers["correlation-id"]
    await execute(tx, "INSERT INTO shipments (order_id, correlation) VALUES ($1, $2)", order, correlation)
    await tx.publish("order.shipped", {"order": order}, key=order)
