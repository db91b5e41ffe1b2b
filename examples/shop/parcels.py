"""The parcels of the demo: who orders them, and whether stock, money and parcels balance in the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from examples.shop.database import look
from examples.shop.settings import API_KEY, STOCK

REQUESTS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ParcelBooks:
    """What there is of parcels."""

    states: Mapping[str, str]
    """By their ids: ordered, reserved, shipped, released."""
    free: int
    charges: Counter[str]
    refunds: Counter[str]

    @property
    def drained(self) -> bool:
        return all(state in ("shipped", "released") for state in self.states.values())


async def read(databases: Mapping[str, str]) -> ParcelBooks:
    """Look into the databases of the warehouse and of the card processor."""
    processor = databases["processor"]
    return ParcelBooks(
        states=dict(await look(databases["warehouse"], "SELECT id, state FROM parcels")),
        free=(await look(databases["warehouse"], "SELECT free FROM stock"))[0][0],
        charges=Counter(
            [order for (order,) in await look(processor, "SELECT order_id FROM charges WHERE order_id LIKE 'parcel-%'")]
        ),
        refunds=Counter([order for (order,) in await look(processor, "SELECT order_id FROM refunds")]),
    )


def faults(wanted: Mapping[str, int], books: ParcelBooks) -> list[str]:
    """What was lost, doubled or kept: `wanted` has the amount of each parcel that was ordered."""
    found = [f"{parcel} was lost: there is no such parcel" for parcel in wanted.keys() - books.states.keys()]
    for parcel, state in books.states.items():
        charged, refunded = books.charges[parcel], books.refunds[parcel]
        expected = "released" if wanted.get(parcel, 1) % 3 == 0 else "shipped"
        if state != expected:
            found.append(f"{parcel} is {state}, and not {expected}")
        if charged - refunded != (expected == "shipped"):
            found.append(f"{parcel}, {state}, was charged {charged} times and refunded {refunded} times")
        if charged > 1 or refunded > 1:
            found.append(f"{parcel} was charged {charged} times and refunded {refunded} times")
    shipped = sum(state == "shipped" for state in books.states.values())
    if books.free + shipped != STOCK:
        found.append(f"{books.free} items are free and {shipped} shipped, of {STOCK}")
    return found


async def order_parcels(url: str, count: int, *, seconds: float, seed: int) -> dict[str, int]:
    """Order so many, each until it is answered; their amounts."""
    chance = random.Random(seed)
    wanted = {f"parcel-{number}": chance.randint(1, 1000) for number in range(count)}

    async def pursue(client: httpx.AsyncClient, parcel: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        for _ in range(REQUESTS_MAX):
            try:
                answer = await client.post(
                    "/parcels",
                    json={"id": parcel, "card": "good", "amount": wanted[parcel]},
                    headers={"Authorization": f"Bearer {API_KEY}", "Idempotency-Key": f'"order of {parcel}"'},
                )
            except httpx.TransportError:
                await asyncio.sleep(0.2)
                continue
            if answer.is_success:
                return
            await asyncio.sleep(0.2)

    async with httpx.AsyncClient(base_url=url, timeout=10.0) as client, asyncio.TaskGroup() as group:
        for parcel in wanted:
            group.create_task(pursue(client, parcel, chance.uniform(0, seconds)))
    return wanted
