"""Metrics of relays: each is moved by a relay that publishes, or cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold
from onefold._kernel.telemetry import join
from onefold._worker import backlog_measuring
from onefold._worker.relay_loop import Relay
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused
from tests.observe.measured import Measured
from tests.outbox.relaying import Stage, opened
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(backlog_measuring, "EVERY_S", 0.02)
    async with opened(request) as stage:
        yield stage


@asynccontextmanager
async def relaying(stage: Stage, measured: Measured, **settings: Any) -> AsyncIterator[Relay]:
    stop = asyncio.Event()
    relay = Relay(stage.database, stage.broker, listener=join(measured.listeners), poll_s_max=0.05, **settings)
    task = asyncio.create_task(relay.run(stop))
    try:
        yield relay
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await task


async def test_what_is_published_and_refused_is_counted_by_destination(stage: Stage, measured: Measured) -> None:
    stage.broker.answer = lambda each: MessageRefused("too large") if each.data == b"bad" else None
    await stage.write(("secret-data", "secret-key"), ("b", None), topic="orders")
    await stage.write(("bad", None), topic="bills")
    async with relaying(stage, measured, attempts_max=1):
        await until(lambda: measured.value("onefold_outbox_published_total", destination="orders") == 2)
        await until(lambda: measured.value("onefold_outbox_publish_failures_total", destination="bills") == 1)
        await until(lambda: measured.value("onefold_outbox_dead_letters_total", topic="bills") == 1)
        await until(lambda: measured.value("onefold_outbox_stopped", state="dead") == 1)
        await until(lambda: measured.value("onefold_relays") == 1)
        assert measured.value("onefold_relay_buckets") == 64
    assert "secret" not in measured.exposition


async def test_a_backlog_is_measured_while_the_broker_is_away(stage: Stage, measured: Measured) -> None:
    stage.broker.answer = lambda each: BrokerUnavailable("away") if away else None
    away = True
    await stage.write(("a", None), ("b", None), topic="orders")
    await stage.write(("c", None), topic="bills")
    await stage.write(("d", None), not_before=datetime.now(UTC) + timedelta(hours=1))
    await stage.execute("UPDATE onefold_outbox SET written_at = <past>")
    async with relaying(stage, measured):
        await until(lambda: measured.value("onefold_relay_paused") == 1)
        await until(lambda: measured.values("onefold_outbox_pending") == {("orders",): 2, ("bills",): 1})
        assert (measured.value("onefold_outbox_oldest_age_seconds") or 0) > 3000
        assert measured.value("onefold_outbox_stopped", state="delayed") == 1
        away = False
        await until(lambda: measured.value("onefold_relay_paused") == 0)
        await until(lambda: measured.values("onefold_outbox_pending") == {("orders",): 0, ("bills",): 0})
        assert measured.value("onefold_outbox_oldest_age_seconds") == 0


async def test_an_application_that_publishes_tells_that_no_relay_runs(sqlite_path: Path, measured: Measured) -> None:
    once = AsyncOnefold(str(sqlite_path), source="shop", broker="local", listener=measured.listeners)
    async with once.transaction() as tx:
        await tx.publish("orders", {})
    async with once.measuring(every_s=0.05):
        await until(lambda: measured.values("onefold_outbox_pending") == {("orders",): 1})
        assert measured.value("onefold_relays") == 0
        await until(lambda: (measured.value("onefold_outbox_oldest_age_seconds") or 0) > 0)
        async with once.relaying():
            await until(lambda: measured.value("onefold_relays") == 1)
            await until(lambda: measured.values("onefold_outbox_pending") == {("orders",): 0})
    await once.close()


async def test_an_application_of_threads_does_so_too(sqlite_path: Path, measured: Measured) -> None:
    once = Onefold(str(sqlite_path), source="shop", broker="local", listener=measured.listeners)
    with once.transaction() as tx:
        _ = tx.publish("orders", {})
    with once.measuring(every_s=0.05):
        await until(lambda: measured.values("onefold_outbox_pending") == {("orders",): 1})
        assert measured.value("onefold_relays") == 0
    once.close()


def test_measuring_without_a_listener_is_refused(sqlite_path: Path) -> None:
    for once in (Onefold(str(sqlite_path)), AsyncOnefold(str(sqlite_path))):
        with pytest.raises(ConfigurationError, match="no listener"):
            once.measuring()


async def test_a_destination_that_takes_nothing_is_shown_as_paused(stage: Stage, measured: Measured) -> None:
    stage.broker.answer = lambda each: BrokerUnavailable("away") if each.topic == "bills" and away else None
    away = True
    await stage.write(("a", None), topic="bills")
    async with relaying(stage, measured):
        await stage.write(("b", None), topic="orders")
        await until(lambda: measured.value("onefold_destination_paused", destination="bills") == 1)
        away = False
        await until(lambda: measured.value("onefold_destination_paused", destination="bills") == 0)


async def test_leases_that_are_taken_over_and_lost_are_counted(stage: Stage, measured: Measured) -> None:
    died = await stage.entered()
    await stage.expire(died)
    async with relaying(stage, measured, lease_s=0.5):
        await until(lambda: measured.value("onefold_relay_takeovers_total") == 1)
        await stage.execute("DELETE FROM onefold_relay")
        await until(lambda: measured.value("onefold_relay_leases_lost_total") == 1)


async def test_published_events_that_are_forgotten_are_counted(stage: Stage, measured: Measured) -> None:
    await stage.write(("a", None))
    async with relaying(stage, measured, keep_published_s=0.01):
        await until(lambda: measured.value("onefold_reaped_total", what="events") == 1)
