"""The customers: each wants one order. They race, retry, go away and come back, give up, and make mistakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

import httpx

from examples.shop.settings import API_KEY

Body: TypeAlias = Mapping[str, str | int]

CONNECTIONS = 32
REQUESTS_MAX = 200


@dataclass(kw_only=True)
class Intent:
    """One order of a customer, and the answers to it. Its correlation id is the same everywhere."""

    key: str
    cart: str
    correlation: str
    card: str
    amount: int
    answers: set[bytes] = field(default_factory=set)
    """More than one would be a lie."""
    abandoned: bool = False
    """The customer gave up without an answer: there may be an order, or none."""


class Customers:
    """All of them."""

    def __init__(self, url: str, *, count: int, seconds: float, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._url = url
        self._seconds = seconds
        self._random = random.Random(seed)
        self.intents = [self._wish() for _ in range(count)]

    def _wish(self) -> Intent:
        return Intent(
            key=self._make_id(),
            cart=self._make_id(),
            correlation=self._make_id(),
            card="no money" if self._random.random() < 0.1 else "good",
            amount=self._random.randint(1, 1000),
        )

    def _make_id(self) -> str:
        return str(UUID(bytes=self._random.randbytes(16), version=4))

    async def come(self) -> None:
        """One after the other, over so many seconds."""
        limits = httpx.Limits(max_connections=CONNECTIONS)
        async with httpx.AsyncClient(base_url=self._url, limits=limits) as client, asyncio.TaskGroup() as group:
            for intent in self.intents:
                group.create_task(self._pursue(client, intent))

    async def _pursue(self, client: httpx.AsyncClient, intent: Intent) -> None:
        await asyncio.sleep(self._random.uniform(0, self._seconds))
        wish: Body = {"cart": intent.cart, "card": intent.card, "amount": intent.amount}
        if self._random.random() < 0.05:
            # Asks once, hardly waits for the answer, and never comes back.
            await self._post(client, intent, "/orders", wish, patience_s=0.005)
            intent.abandoned = not intent.answers
            return
        await self._until_answered(client, intent, "/orders", wish)
        if intent.card != "good" and self._random.random() < 0.5:
            await self._try_another_card(client, intent)
        if self._random.random() < 0.1:
            # The key once more, and then the cart, for something else: mistakes, which must not become an order.
            for key in (intent.key, self._make_id()):
                await self._post(client, intent, "/orders", {**wish, "amount": intent.amount + 1}, key=key)

    async def _try_another_card(self, client: httpx.AsyncClient, intent: Intent) -> None:
        """Look at the order until its card is declined, then offer another one."""
        if len(intent.answers) != 1:
            return  # The ledger will tell.
        order = json.loads(next(iter(intent.answers)))["id"]
        for _ in range(REQUESTS_MAX):
            with contextlib.suppress(httpx.TransportError):
                shown = await client.get(f"/orders/{order}")
                if shown.status_code == 404:
                    return  # The ledger will tell.
                if shown.is_success and shown.json()["state"] == "declined":
                    self.counts["other cards"] += 1
                    await self._until_answered(client, intent, f"/orders/{order}/card", {"card": "good"})
                    return
            await asyncio.sleep(0.25)

    async def _until_answered(self, client: httpx.AsyncClient, intent: Intent, path: str, body: Body) -> None:
        """From one, two or three places at the same time, each until it has an answer. The third has lost the key, and
        makes up a new one whenever it asks for the order: the cart tells which it is."""

        async def one_place(number: int) -> None:
            wait_s = 0.05
            is_forgetful = number == 2 and path == "/orders"
            for _ in range(REQUESTS_MAX):
                # One in ten is impatient: it goes away, not knowing what became of its request, and asks again.
                patience_s = 0.01 if self._random.random() < 0.1 else 10.0
                key = self._make_id() if is_forgetful else intent.key
                answer = await self._post(client, intent, path, body, patience_s, key=key)
                if answer is not None and answer.is_success:
                    return
                await asyncio.sleep(self._random.uniform(0, wait_s))
                wait_s = min(1.0, wait_s * 2)

        await asyncio.gather(*(one_place(number) for number in range(self._random.choice((1, 2, 3)))))

    async def _post(
        self,
        client: httpx.AsyncClient,
        intent: Intent,
        path: str,
        body: Body,
        patience_s: float = 10.0,
        *,
        key: str | None = None,
    ) -> httpx.Response | None:
        self.counts["requests"] += 1
        headers = {
            "Authorization": f"Bearer {API_KEY}",
            "Idempotency-Key": f'"{key or intent.key}"',
            "Correlation-Id": intent.correlation,
        }
        try:
            answer = await client.post(path, json=body, headers=headers, timeout=patience_s)
        except httpx.TransportError:
            self.counts["no answer"] += 1
            return None
        replayed = answer.headers.get("idempotent-replayed") == "true"
        found = "found by its cart" if path == "/orders" and answer.status_code == 200 else str(answer.status_code)
        self.counts["replayed" if replayed else found] += 1
        if path == "/orders" and answer.is_success:
            intent.answers.add(answer.content)
        return answer
