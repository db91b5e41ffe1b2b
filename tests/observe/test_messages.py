"""Metrics of consumers: each is moved by messages that are handled, or are not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold
from onefold._inbox.handling import Inbox
from onefold._inbox.redrive import Filter, redrive
from onefold._inbox.retention import reap
from onefold._kernel.messages import Message
from onefold._kernel.telemetry import join
from onefold._worker.backlog_measuring import measure_consumer, measuring
from onefold._worker.consumer_runner import ConsumerRunner
from tests.inbox.backends import Backend, message
from tests.inbox.conftest import backend, inbox_database, inbox_dsn
from tests.observe.measured import Measured
from tests.worker.consuming import MemoryBroker, running, until

__all__ = ["backend", "inbox_database", "inbox_dsn"]

TOPIC = "order.placed"


class Consumers:
    """Consumers of a database whose handler fails for what is in `bad`."""

    def __init__(self, backend: Backend, measured: Measured) -> None:
        self._backend = backend
        self.bad: set[str] = set()
        self.tell = join(measured.listeners)

    async def handle(self, message: Message) -> None:
        if message.id in self.bad:
            raise LookupError("secret-reason")

    def inbox(self, **settings: Any) -> Inbox:
        consumer = self._backend.consumer(self.handle, **settings)
        return Inbox(consumer, self._backend.dialect, draw=random.random, listener=self.tell)


@pytest.fixture
def consumers(backend: Backend, measured: Measured) -> Consumers:
    return Consumers(backend, measured)


async def test_messages_are_counted_by_outcome(backend: Backend, consumers: Consumers, measured: Measured) -> None:
    inbox = consumers.inbox(attempts=2)
    consumers.bad = {"secret-id"}
    for name in ("m1", "m1", "secret-id"):
        await backend.deliver(inbox, message(name, data=b"secret-data"))
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert measured.values("onefold_messages_total") == {
        ("billing", "handled", TOPIC): 1,
        ("billing", "duplicate", TOPIC): 1,
        ("billing", "failed", TOPIC): 1,
        ("billing", "dead", TOPIC): 1,
    }
    assert measured.value("onefold_duplicates_total", hop="consumer") == 1
    assert measured.value("onefold_message_duration_seconds_count", consumer="billing") == 1
    assert "secret" not in measured.exposition


async def test_versions_out_of_order_are_counted(backend: Backend, consumers: Consumers, measured: Measured) -> None:
    strict = consumers.inbox(order="strict")
    for version in (1, 3):
        await backend.deliver(strict, message(f"k{version}", key="k", version=version))
        await backend.hours_pass()
        await backend.run_due(strict)
    assert measured.value("onefold_messages_total", consumer="billing", topic=TOPIC, outcome="parked") == 1


async def test_older_versions_are_counted(backend: Backend, consumers: Consumers, measured: Measured) -> None:
    latest = consumers.inbox(order="latest")
    for version in (2, 1):
        await backend.deliver(latest, message(f"k{version}", key="k", version=version))
    assert measured.value("onefold_messages_total", consumer="billing", topic=TOPIC, outcome="dropped") == 1


async def test_what_becomes_of_redriven_messages_is_counted(
    backend: Backend, consumers: Consumers, measured: Measured
) -> None:
    inbox = consumers.inbox(attempts=1)
    consumers.bad = {"m1", "m2"}
    for name in ("m1", "m2"):
        await backend.deliver(inbox, message(name))
    consumers.bad = {"m2"}
    await backend.flow(redrive(backend.dialect, Filter(consumer="billing"), actor="ops"))
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert measured.values("onefold_redrives_total") == {("billing", "dead"): 1, ("billing", "handled"): 1}


async def test_what_waits_is_parked_or_dead_is_measured(
    backend: Backend, consumers: Consumers, measured: Measured
) -> None:
    inbox = consumers.inbox(attempts=2)
    consumers.bad = {"m1", "m2"}
    for name in consumers.bad:
        await backend.deliver(inbox, message(name))
    strict = consumers.inbox(order="strict", baseline_wait_s=0.001)
    await backend.deliver(strict, message("k1", key="k", version=1))
    await backend.hours_pass()
    await backend.run_due(strict)
    await backend.deliver(strict, message("k3", key="k", version=3))

    async def measure() -> dict[str, float | None]:
        async with measuring(backend.database, consumers.tell, lambda dialect: measure_consumer("billing", dialect)):
            await until(lambda: measured.value("onefold_failed_messages", consumer="billing", state="dead") is not None)
        states = ("waiting", "parked", "dead")
        return {state: measured.value("onefold_failed_messages", consumer="billing", state=state) for state in states}

    # Both have failed twice by now: run_due ran what was due, of both consumers.
    assert await measure() == {"waiting": 0, "parked": 1, "dead": 2}


async def test_what_is_forgotten_of_the_ledger_is_counted(
    backend: Backend, consumers: Consumers, measured: Measured
) -> None:
    await backend.deliver(consumers.inbox(), message("m1"))
    old = "now() - interval '1 day'" if backend.dialect == "postgres" else "1"
    await backend.change(f"UPDATE onefold_inbox SET handled_at{'' if backend.dialect == 'postgres' else '_ms'} = {old}")
    await backend.flow(reap(backend.dialect, "billing", 60.0, listener=consumers.tell))
    assert measured.value("onefold_reaped_total", what="messages") == 1


async def test_a_consumer_whose_broker_is_away_is_paused(
    backend: Backend, consumers: Consumers, measured: Measured
) -> None:
    broker = MemoryBroker()
    runner = ConsumerRunner(backend.database, broker, [backend.consumer(consumers.handle)], listener=consumers.tell)

    def paused() -> float | None:
        return measured.value("onefold_consumer_paused", consumer="billing")

    async with running(runner):
        await until(lambda: broker.subscriptions == 1)
        broker.down = True
        await until(lambda: paused() == 1)
        broker.down = False
        await until(lambda: paused() == 0)
        # They are also measured by the worker itself.
        await until(lambda: measured.value("onefold_failed_messages", consumer="billing", state="dead") == 0)


async def test_messages_received_by_other_means_are_counted(sqlite_path: Path, measured: Measured) -> None:
    once = AsyncOnefold(str(sqlite_path), listener=measured.listeners)
    for _ in range(3):
        async with once.handling("mailer", "secret-id"):
            pass
    await once.close()
    assert measured.values("onefold_messages_total") == {("mailer", "handled", "?"): 1, ("mailer", "duplicate", "?"): 2}
    assert "secret" not in measured.exposition
