"""The invitation of `make demo STAY=1`: the console and the metrics of the shop, and what to click there."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import httpx

from examples.shop.processes import Process, Processes, free_url
from examples.shop.settings import ACCOUNTS, API_KEY

VOUCHER_KEY = "voucher-1"
VOUCHERS_MAX = 20
VOUCHER_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Where to look, and the token to sign in with, which is of this run only."""

    shop: str
    console: str
    token: str = field(default_factory=secrets.token_urlsafe, repr=False)

    @classmethod
    def to(cls, shop: str) -> Self:
        """To the shop at this address."""
        return cls(shop=shop, console=free_url())

    @property
    def address(self) -> str:
        return f"{self.console}/login?token={self.token}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What the processes of a shop that stays open are told."""
        return {"ONEFOLD_CONSOLE_ACT_TOKEN": self.token}

    def open_console(self, processes: Processes, orders: str, warehouse: str) -> Process:
        """In a process of its own, over the database of the orders."""
        port = self.console.rpartition(":")[2]
        options = ["--app", f"{orders}:once", "--sagas", f"{warehouse}:engine", "--port", port]
        return processes.start_onefold("console", "console", *options, ready="console of ")

    def prepare(self) -> None:
        """Have something to look at: a request that waits for a person, and an order that is never charged."""
        headers = {"Authorization": f"Bearer {API_KEY}", "Correlation-Id": "free-of-charge"}
        given, named = {"cart": "free-1", "card": "good", "amount": 0}, {**headers, "Idempotency-Key": '"free-1"'}
        free = httpx.post(f"{self.shop}/orders", json=given, headers=named, timeout=30.0)
        at = f"/orders/{free.json()['id']}/voucher"
        named = {**headers, "Idempotency-Key": f'"{VOUCHER_KEY}"'}
        for _ in range(VOUCHERS_MAX):  # the first loses the printer's answer; a retry finds that, and is parked
            # Each on a connection of its own: uvicorn closes one behind the 500 of an exception, without a word to a
            # client that keeps it for its next request.
            if "parked" in httpx.post(self.shop + at, headers=named, timeout=30.0).text:
                return
            time.sleep(VOUCHER_PAUSE_S)

    def write(self, key: str) -> str:
        """What to click. The key is that of an order."""
        [account] = ACCOUNTS.values()
        return "\n".join(
            [
                f"The console: {self.address}",
                f"The metrics: {self.shop}/metrics",
                "",
                "What to click in the console:",
                f"  What happened to a key?      Keys: principal {account}, route POST /orders, key {key}",
                f"  Why does a client get 409?   Keys: principal {account}, route POST /orders/{{order}}/voucher, "
                f"key {VOUCHER_KEY}",
                "  What is stuck?               Overview, then Works (the voucher) and, in half a minute, Dead letters "
                "(an order for 0,",
                "                               which no processor charges): compare its attempts, then discard it",
                "  What was absorbed today?     Overview: duplicates absorbed",
            ]
        )
