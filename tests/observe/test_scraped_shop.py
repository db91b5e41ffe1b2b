"""A real Prometheus scrapes the real shop: alerts fire when something is wrong with it, and clear when it is repaired.

The rules are those that `onefold metrics --alerts` prints, with short windows and without patience. What the shop
cannot be brought to is covered by promtool, in test_alerts.py.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.shop.processes import Processes, free_url
from examples.shop.settings import API_KEY
from onefold import AsyncOnefold
from tests.cli.commands import onefold
from tests.observe.test_alerts import CAUSES
from tests.support.patience import PATIENCE_S
from tests.support.prometheus_server import PrivatePrometheus
from tests.testing.servers.missing import unless_missing

amounts = itertools.count(1)

ORDERS, PAYMENTS = "examples.shop.orders", "examples.shop.payments"


def impatient(rules: str) -> str:
    """The same rules for people in a hurry."""
    rules = re.sub(r"for: \w+", "for: 0s", rules)
    rules = re.sub(r"\[\d+[mh]\]", "[6s]", rules)
    rules = re.sub(r"offset \d+[mh]", "offset 6s", rules)
    return re.sub(r"_age_seconds\) > \d+", "_age_seconds) > 0", rules)


class Shop:
    """Its orders, its relay and its payments, each scraped; each can be killed and started again."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.database = str(directory / "shop.db")
        self.orders_url, self.processor_url = free_url(), free_url()
        self.relay, self.payments = (free_url().removeprefix("http://") for _ in range(2))
        environment = {
            **{f"{name}_DATABASE": self.database for name in ("ORDERS", "PAYMENTS", "FULFILMENT")},
            "PROCESSOR_DATABASE": str(directory / "processor.db"),
            "PROCESSOR_URL": self.processor_url,
            "SHOP_MEASURE_S": "0.5",
        }
        self.processes = stack.enter_context(Processes(directory, environment))
        self.processes.run(sys.executable, "-m", "examples.shop.migrate", ORDERS, PAYMENTS)
        targets = [self.orders_url.removeprefix("http://"), self.relay, self.payments]
        self.prometheus = stack.enter_context(
            PrivatePrometheus(impatient(onefold("metrics", "--alerts").stdout), *targets)
        )
        headers = {"authorization": f"Bearer {API_KEY}", "correlation-id": "1"}
        self.client = httpx.AsyncClient(base_url=self.orders_url, headers=headers, timeout=PATIENCE_S)
        self._keys = itertools.count(1)
        self.once = AsyncOnefold(self.database)

    async def order(self, amount: int = 1, key: str | None = None) -> int:
        wanted = {"card": "good", "amount": amount}
        answer = await self.client.post(
            "/orders", json=wanted, headers={"idempotency-key": f'"{key or next(self._keys)}"'}
        )
        return answer.status_code

    async def start(self, *arguments: str, at: str = "", name: str = "") -> Any:
        started = self.processes.start_onefold(name, *arguments, "--health-port", at.rpartition(":")[2])
        await self.processes.wait_until_up()
        return started

    def firing(self) -> set[str]:
        alerts = self.prometheus.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def until_firing(self, *alerts: str, cause: Any = None) -> None:
        """Until these fire, together; `cause` is repeated meanwhile."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if set(alerts) <= self.firing():
                    return
                if cause is not None:
                    await cause()
                await asyncio.sleep(0.2)

    async def until_cleared(self, *alerts: str, repair: Any = None) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if not set(alerts) & self.firing():
                    return
                if repair is not None:
                    await repair()
                await asyncio.sleep(0.2)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    with ExitStack() as stack:
        with unless_missing(PrivatePrometheus):
            shop = Shop(tmp_path, stack)
        shop.processes.start_api("orders API", f"{ORDERS}:app", shop.orders_url)
        await shop.processes.wait_until_up()
        yield shop
        await shop.client.aclose()
        await shop.once.close()


async def test_alerts_fire_on_the_shop_and_clear(shop: Shop) -> None:
    [group] = shop.prometheus.ask("rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == CAUSES.keys()

    # No relay was ever started: it is the API that tells.
    assert await shop.order() == 201
    await shop.until_firing("OnefoldNoRelay", "OnefoldOutboxStuck")
    relay = await shop.start("relay", f"{ORDERS}:once", at=shop.relay, name="relay")
    payments = await shop.start("consume", f"{PAYMENTS}:once", at=shop.payments, name="payments")
    await shop.until_cleared("OnefoldNoRelay", "OnefoldOutboxStuck")

    # An operator pauses the payments; customers use one key for several orders, and some of their orders fail.
    await shop.once.pause_consumer("payments", actor="test")

    async def make_mistakes() -> None:
        await shop.order(next(amounts), key="mine")
        await shop.order(1 << 70)

    await shop.until_firing(
        "OnefoldConsumerPaused", "OnefoldKeyMismatches", "OnefoldRequestsReleased", cause=make_mistakes
    )
    await shop.once.resume_consumer("payments", actor="test")

    # Both die, while what was wrong is over.
    relay.kill()
    payments.kill()
    await shop.until_firing("OnefoldRelayGone", "OnefoldConsumerGone")
    relay.start()
    payments.start()
    await shop.until_cleared(
        "OnefoldRelayGone", "OnefoldConsumerGone", "OnefoldConsumerPaused", "OnefoldKeyMismatches",
        "OnefoldRequestsReleased",
    )  # fmt: skip
    assert shop.processes.failures() == []


@pytest.mark.soak
async def test_alerts_fire_while_the_card_processor_is_away_and_clear_when_it_is_back(shop: Shop) -> None:
    await shop.start("relay", f"{ORDERS}:once", at=shop.relay, name="relay")
    await shop.start("consume", f"{PAYMENTS}:once", at=shop.payments, name="payments")
    away = ("OnefoldBreakerOpen", "OnefoldRetryBudgetExhausted")
    await shop.until_firing(*away, cause=shop.order)
    await shop.until_firing("OnefoldDeadLetters")
    shop.processes.start_api("processor", "examples.shop.processor:app", shop.processor_url)
    await shop.processes.wait_until_up()

    async def redrive() -> None:
        await asyncio.to_thread(onefold, "dlq", "redrive", "-d", shop.database, "-c", "payments")

    await shop.until_cleared(*away, "OnefoldDeadLetters", repair=redrive)
    assert shop.processes.failures() == []
