"""A Prometheus with onefold's own alert rules, in a hurry: windows of seconds and no patience. It scrapes the shop, and
a page of metrics that tests move by telling telemetry events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeAlias
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from examples.shop.processes import free_url
from onefold.prometheus import prometheus_metrics
from onefold.testing.fault_proxy import HOST
from tests.cli.commands import onefold
from tests.support.patience import PATIENCE_S
from tests.support.prometheus_server import PrivatePrometheus

Repeated: TypeAlias = Callable[[], Awaitable[Any]] | None


def impatient(rules: str) -> str:
    """The same rules for people in a hurry."""
    rules = re.sub(r"for: \w+", "for: 0s", rules)
    rules = re.sub(r"\[\d+[mh]\]", "[3s]", rules)
    rules = re.sub(r"offset \d+[mh]", "offset 3s", rules)
    return re.sub(r"_age_seconds\) > \d+", "_age_seconds) > 0", rules)


def free_address() -> str:
    return free_url().removeprefix("http://")


class Watch:
    """The Prometheus, and the addresses that it scrapes: whatever listens there."""

    def __init__(self) -> None:
        self.orders, self.relay, self.payments, self.told = (free_address() for _ in range(4))
        jobs = {"shop": [self.orders, self.relay, self.payments], "told": [self.told]}
        self.prometheus = PrivatePrometheus(impatient(onefold("metrics", "--alerts").stdout), jobs)

    def alerts(self) -> set[str]:
        """All that there are."""
        [group] = self.prometheus.ask("rules")["groups"]
        return {rule["name"] for rule in group["rules"]}

    def firing(self, job: str) -> set[str]:
        labels = [alert["labels"] for alert in self.prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"]
        return {each["alertname"] for each in labels if each["job"] == job}

    async def until_up(self, job: str) -> None:
        question = f'up{{job="{job}"}} == 1'
        await self._until(lambda: bool(self.prometheus.ask("query", query=question)["result"]), f"{job} is not up")

    async def until_firing(self, job: str, alerts: set[str], *, cause: Repeated = None) -> None:
        """Until these fire, together; `cause` is repeated meanwhile."""
        await self._until(lambda: alerts <= self.firing(job), f"{alerts} do not all fire", cause)

    async def until_cleared(self, job: str, alerts: set[str], *, repair: Repeated = None) -> None:
        await self._until(lambda: not alerts & self.firing(job), f"{alerts} are not all cleared", repair)

    async def _until(self, holds: Callable[[], bool], otherwise: str, meanwhile: Repeated = None) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    if meanwhile is not None:
                        await meanwhile()
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{otherwise}: {self.prometheus.ask('alerts')}") from None


class ToldPage:
    """/metrics of a process that is told events, as onefold's own parts tell them."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self._registry = CollectorRegistry()
        self._listener = prometheus_metrics(self._registry)

    def tell(self, events: Sequence[Any]) -> None:
        for event in events:
            self._listener(event)

    @contextmanager
    def served(self) -> Iterator[None]:
        server: WSGIServer
        thread: Thread
        server, thread = start_http_server(self._port, addr=HOST, registry=self._registry)
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
