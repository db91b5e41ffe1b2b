"""A real Prometheus scrapes real pages of metrics: alerts fire when something is wrong, and clear when it is repaired.

Every alert, on a page that is told what onefold's parts tell (that they do is in the other files of this folder), and
those that the shop can be brought to within seconds on the shop itself. That thresholds and windows are what the rules
say is in test_alerts.py.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.shop.processes import Processes, free_url
from examples.shop.settings import API_KEY
from onefold import AsyncOnefold
from onefold.telemetry import (
    AuthenticationFailed,
    BreakerMoved,
    BucketsHeld,
    CallEnded,
    Claimed,
    ConsumerPaused,
    ConsumerResumed,
    DestinationPaused,
    DestinationResumed,
    FailedMessagesMeasured,
    OutboxMeasured,
    RelayPaused,
    RelayResumed,
    RelaysExpired,
    Released,
    SagaEnded,
    SagaStuck,
    Shed,
    WorkIsParked,
)
from tests.cli.commands import onefold
from tests.examples.forked_services import fork_service
from tests.observe.prometheus_watch import ToldPage, Watch
from tests.observe.test_alerts import CAUSES
from tests.support.patience import PATIENCE_S
from tests.support.prometheus_server import PrivatePrometheus
from tests.testing.servers.missing import unless_missing

amounts = itertools.count(1)

ORDERS, PAYMENTS = "examples.shop.orders", "examples.shop.payments"

#: All is well, where a state is told and not an incident.
WELL = (
    OutboxMeasured(pending={}, oldest_s=0, delayed=0, retrying=0, dead=0, relays=1),
    BucketsHeld("relay-1", 64),
    RelayResumed(),
    DestinationResumed("bills"),
    FailedMessagesMeasured("billing", waiting=0, parked=0, dead=0),
    ConsumerResumed("billing"),
    BreakerMoved("ledger", "closed"),
)
#: Everything goes wrong.
WRONG = (
    OutboxMeasured(pending={"bills": 3}, oldest_s=900, delayed=0, retrying=0, dead=1, relays=0),
    RelayPaused("the broker is away"),
    DestinationPaused("bills", "no such topic"),
    FailedMessagesMeasured("billing", waiting=0, parked=1, dead=1),
    ConsumerPaused("billing", "an operator"),
    BreakerMoved("ledger", "open"),
    AuthenticationFailed("POST /a"),
    Claimed("POST /a", "unavailable"),
    Claimed("POST /a", "mismatch"),
    Released("POST /a", "500"),
    WorkIsParked("POST /a", 5, "500"),
    RelaysExpired(2),
    SagaStuck("order", "1", "refund", 1, "away"),
    SagaEnded("order", "1", "stopped", "a KeyError"),
    CallEnded("ledger", "POST", 1, succeeded=False, reason="budget"),
    Shed("queue full", 0),
)
GONE = {"OnefoldRelayGone", "OnefoldConsumerGone"}


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    with unless_missing(PrivatePrometheus), (watch := Watch()).prometheus:
        yield watch


async def test_each_alert_fires_and_clears_where_prometheus_scrapes_it(watch: Watch) -> None:
    assert watch.alerts() == CAUSES.keys()
    page = ToldPage(watch.told)

    async def go_wrong() -> None:
        page.tell(WRONG)

    with page.served():
        page.tell(WELL)
        await watch.until_up("told")
        assert watch.firing("told") == set(), "the control: they wait for a cause"
        await watch.until_firing("told", watch.alerts() - GONE, cause=go_wrong)
        page.tell(WELL)
        await watch.until_cleared("told", watch.alerts())
    await watch.until_firing("told", GONE)
    with page.served():
        await watch.until_cleared("told", watch.alerts())


class Shop:
    """Its orders, its relay and its payments, each scraped; each can be killed and started again."""

    def __init__(self, directory: Path, watch: Watch, stack: ExitStack) -> None:
        self.watch = watch
        self.database = str(directory / "shop.db")
        self.orders_url, self.processor_url = f"http://{watch.orders}", free_url()
        environment = {
            **{f"{name}_DATABASE": self.database for name in ("ORDERS", "PAYMENTS", "FULFILMENT")},
            "PROCESSOR_DATABASE": str(directory / "processor.db"),
            "PROCESSOR_URL": self.processor_url,
            "SHOP_MEASURE_S": "0.5",
        }
        self.processes = stack.enter_context(Processes(directory, environment, fork_service))
        self.processes.run(sys.executable, "-m", "examples.shop.migrate", ORDERS, PAYMENTS)
        headers = {"authorization": f"Bearer {API_KEY}", "correlation-id": "1"}
        self.client = httpx.AsyncClient(base_url=self.orders_url, headers=headers, timeout=PATIENCE_S)
        self._keys = itertools.count(1)
        self.once = AsyncOnefold(self.database)

    async def order(self, amount: int = 1, key: str | None = None) -> int:
        key = key or f"order-{next(self._keys)}"
        wanted = {"cart": key, "card": "good", "amount": amount}
        answer = await self.client.post("/orders", json=wanted, headers={"idempotency-key": f'"{key}"'})
        return answer.status_code

    async def start(self, *arguments: str, at: str = "", name: str = "") -> Any:
        started = self.processes.start_onefold(name, *arguments, "--health-port", at.rpartition(":")[2])
        await self.processes.wait_until_up()
        return started

    async def until_firing(self, *alerts: str, cause: Any = None) -> None:
        await self.watch.until_firing("shop", set(alerts), cause=cause)

    async def until_cleared(self, *alerts: str, repair: Any = None) -> None:
        await self.watch.until_cleared("shop", set(alerts), repair=repair)


@pytest.fixture
async def shop(tmp_path: Path, watch: Watch) -> AsyncIterator[Shop]:
    with ExitStack() as stack:
        shop = Shop(tmp_path, watch, stack)
        shop.processes.start_api("orders API", f"{ORDERS}:app", shop.orders_url)
        await shop.processes.wait_until_up()
        yield shop
        await shop.client.aclose()
        await shop.once.close()


async def test_alerts_fire_on_the_shop_and_clear(shop: Shop) -> None:
    # No relay was ever started: it is the API that tells.
    assert await shop.order() == 201
    await shop.until_firing("OnefoldNoRelay", "OnefoldOutboxStuck")

    # Customers use one key for several orders, and some of their orders fail.
    async def make_mistakes() -> None:
        await shop.order(next(amounts), key="mine")
        await shop.order(1 << 70)

    await shop.until_firing("OnefoldKeyMismatches", "OnefoldRequestsReleased", cause=make_mistakes)
    await shop.start("relay", f"{ORDERS}:once", at=shop.watch.relay, name="relay")
    await shop.until_cleared("OnefoldNoRelay", "OnefoldOutboxStuck", "OnefoldKeyMismatches", "OnefoldRequestsReleased")
    assert shop.processes.failures() == []


@pytest.mark.soak
async def test_alerts_fire_while_relay_and_consumer_are_paused_or_dead_and_clear(shop: Shop) -> None:
    relay = await shop.start("relay", f"{ORDERS}:once", at=shop.watch.relay, name="relay")
    payments = await shop.start("consume", f"{PAYMENTS}:once", at=shop.watch.payments, name="payments")
    await shop.once.pause_consumer("payments", actor="test")
    await shop.until_firing("OnefoldConsumerPaused")
    await shop.once.resume_consumer("payments", actor="test")
    relay.kill()
    payments.kill()
    await shop.until_firing("OnefoldRelayGone", "OnefoldConsumerGone")
    relay.start()
    payments.start()
    await shop.until_cleared("OnefoldRelayGone", "OnefoldConsumerGone", "OnefoldConsumerPaused")
    assert shop.processes.failures() == []


@pytest.mark.soak
async def test_alerts_fire_while_the_card_processor_is_away_and_clear_when_it_is_back(shop: Shop) -> None:
    await shop.start("relay", f"{ORDERS}:once", at=shop.watch.relay, name="relay")
    await shop.start("consume", f"{PAYMENTS}:once", at=shop.watch.payments, name="payments")
    away = ("OnefoldBreakerOpen", "OnefoldRetryBudgetExhausted")
    await shop.until_firing(*away, cause=shop.order)
    await shop.until_firing("OnefoldDeadLetters")
    shop.processes.start_api("processor", "examples.shop.processor:app", shop.processor_url)
    await shop.processes.wait_until_up()

    async def redrive() -> None:
        await asyncio.to_thread(onefold, "dlq", "redrive", "-d", shop.database, "-c", "payments")

    await shop.until_cleared(*away, "OnefoldDeadLetters", repair=redrive)
    assert shop.processes.failures() == []
