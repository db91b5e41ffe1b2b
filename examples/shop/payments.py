"""Payments: charges the card of every order, once. `onefold consume examples.shop.payments:once`

The processor is somebody else's system: no transaction of ours can take a charge back. So the call carries a key that
is *derived from the order*, never a new one. Whatever happens between the charge and our COMMIT (no answer, a failure,
a kill -9), the order is handled again, the same key is sent again, and the processor repeats its first answer.
"""

from __future__ import annotations

from typing import Any

import httpx

from examples.shop.database import execute
from examples.shop.settings import LEASE_S, PROCESSOR_URL, broker, database, listeners
from onefold import AsyncOnefold, Message, RetryPolicy, Transaction, retrying

# No UNIQUE (order_id) on purpose: that there is one row per order is onefold's doing.
TABLES = ["CREATE TABLE IF NOT EXISTS payments (order_id TEXT, state TEXT, correlation TEXT)"]

once = AsyncOnefold(
    database("payments"), source="payments", broker=broker(), listener=listeners("payments"), activity=True
)
# The database waits while the processor works, so neither an attempt nor all of them together take long. What is given
# up here is tried again by the consumer, under the same key.
patience = RetryPolicy(deadline_s=0.6)
processor = httpx.AsyncClient(
    base_url=PROCESSOR_URL,
    timeout=0.25,
    transport=retrying(httpx.AsyncHTTPTransport(), patience, listener=listeners("payments")),
)


@once.consumer("payments", topic="order.placed", order="strict", retry_base_s=0.1, retry_cap_s=1.0, lease_s=LEASE_S)
async def charge(message: Message, tx: Transaction[Any]) -> None:
    """Charge the card, and tell how it went. Raising means: undo what was written, and try again later."""
    placed = message.json()
    state = await charge_card(placed, message.headers["correlation-id"])
    await execute(
        tx,
        "INSERT INTO payments (order_id, state, correlation) VALUES ($1, $2, $3)",
        placed["order"],
        state,
        message.headers["correlation-id"],
    )
    await tx.publish(f"payment.{state}", {"order": placed["order"]}, key=placed["order"])


def key_of(placed: dict[str, Any]) -> str:
    """The name of this charge. Another attempt is what the customer wants, with another card: not a retry of ours."""
    return f"pay:{placed['order']}:{placed['attempt']}"


async def charge_card(placed: dict[str, Any], correlation: str) -> str:
    """'captured' or 'declined'. Anything else that the processor says, or that it says nothing, is an error."""
    answer = await processor.post(
        "/charges",
        json={"order": placed["order"], "card": placed["card"], "amount": placed["amount"]},
        headers={"Idempotency-Key": f'"{key_of(placed)}"', "Correlation-Id": correlation},
    )
    if answer.status_code == 402:
        return "declined"
    answer.raise_for_status()
    return "captured"
