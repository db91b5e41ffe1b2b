"""Deliveries of topics that only other processes have: whose they are after an outage, and how they are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest

from onefold import Message
from onefold._app.base_app import run_flow
from onefold._inbox import others_topics
from onefold._inbox.consumer import Consumer
from onefold._inbox.registry import ALIVE_S, register
from onefold._kernel.effects import Statement
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Delivery
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import Broker
from onefold._worker import membership
from onefold._worker.consumer_runner import ConsumerRunner
from tests.inbox.backends import Backend, message
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, running, until
from tests.worker.test_membership import Place, _batch, place

__all__ = ["place"]

on_sqlite = pytest.mark.parametrize("place", ["local-sqlite"], indirect=True)

OUTAGE_S = ALIVE_S + 5


def delivery(topic: str) -> Delivery:
    return Delivery(data=b"{}", headers={}, message=Message(id=topic, source="shop", topic=topic, data=b"{}"))


async def whose(process: membership.Membership, *topics: str) -> dict[str, list[str]]:
    sifted = await process.sift([delivery(topic) for topic in topics])
    return {
        name: [each.message.topic for each in found if each.message]
        for name, found in zip(("ours", "others", "dropped"), sifted, strict=True)
    }


async def pass_s(place: Place, seconds: float, *, of: str = "%") -> None:
    """As if so long had gone by without a beat of these processes."""
    once = place.process("unused")
    sql = f"UPDATE onefold_consumer SET seen_at_ms = seen_at_ms - {seconds * 1000:.0f} WHERE topics LIKE '{of}'"
    await run_flow(once, lambda dialect: _batch(Statement(sql)))
    await once.close()


@asynccontextmanager
async def deployment(place: Place) -> AsyncIterator[tuple[membership.Membership, membership.Membership]]:
    """An old process with orders, and a new one with refunds: either is alive, and has been for long."""
    found: asyncio.Future[tuple[Any, Any]] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def work(database: Any, broker: Broker) -> None:
        def process(*topics: str) -> membership.Membership:
            [consumer] = place.process(*topics)._consumers
            return membership.Membership(database, broker, consumer)

        old, new = process("orders"), process("refunds")
        for each in (old, new):
            await (await each.subscribe()).close()
        found.set_result((old, new))
        await over.wait()

    task = asyncio.create_task(place.manage(work))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield await found
    finally:
        over.set()
        await task


@on_sqlite
async def test_after_an_outage_of_the_database_no_topic_of_a_live_process_is_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "BEAT_S", 0.0)
    async with deployment(place) as (old, new):
        await pass_s(place, OUTAGE_S)
        assert await whose(old, "refunds", "orders") == {"ours": ["orders"], "others": ["refunds"], "dropped": []}
        assert await whose(new, "orders", "refunds") == {"ours": ["refunds"], "others": ["orders"], "dropped": []}
        await new.stay(asyncio.Event())  # it is alive again, and has not heard of the old one yet
        assert await whose(new, "orders", "refunds") == {"ours": ["refunds"], "others": ["orders"], "dropped": []}
        await old.stay(asyncio.Event())
        assert (await whose(new, "orders"))["others"] == ["orders"]


@on_sqlite
async def test_a_process_that_starts_after_an_outage_drops_no_topic_of_a_live_one(place: Place) -> None:
    async with deployment(place) as (old, new):
        await new.end()
        await pass_s(place, OUTAGE_S)
        [consumer] = place.process("payments")._consumers
        newest = membership.Membership(new._database, new._broker, consumer)
        await (await newest.subscribe()).close()
        assert await whose(newest, "orders", "refunds") == {"ours": [], "others": ["orders"], "dropped": ["refunds"]}
        assert [seen.topics for seen in await newest._read_processes() if seen.process == old._process] == [{"orders"}]


@on_sqlite
async def test_the_topic_of_a_process_that_was_killed_is_dropped_when_all_had_time_for_a_beat(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others_topics, "ALIVE_S", 0.0)
    async with deployment(place) as (_, new):
        await pass_s(place, OUTAGE_S, of="%orders%")
        assert await whose(new, "orders", "refunds") == {"ours": ["refunds"], "others": [], "dropped": ["orders"]}


@asynccontextmanager
async def locked_letters(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """No failed message can be written, until this connection's transaction ends: it has their table."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("BEGIN; LOCK TABLE onefold_letter IN SHARE MODE")
        yield connection
    finally:
        await connection.close()


async def others_run(backend: Backend) -> None:
    await backend.flow(register(backend.dialect, "billing", "other", ["order.cancelled"]))


def runner(backend: Backend, broker: MemoryBroker, consumer: Consumer, **settings: Any) -> ConsumerRunner:
    def transaction(executor: TaskExecutor[Any]) -> OwnedTransaction[Any]:
        return OwnedTransaction(executor, backend.outbox.new_buffer)

    return ConsumerRunner(
        backend.database, broker, [consumer], transaction=transaction, listener=backend.events.append, **settings
    )


def messages(topic: str, *names: str) -> Sequence[Message]:
    return [message(name, topic=topic) for name in names]


async def test_ours_are_handled_while_those_of_others_cannot_be_kept(on_postgres: Backend, inbox_dsn: str) -> None:
    """And the broker hears meanwhile that those are in hand."""
    await others_run(on_postgres)
    broker = MemoryBroker(keep_every_s=0.01)
    broker.put(*messages("order.cancelled", "other-1"), *messages("order.placed", "our-1"))
    async with locked_letters(inbox_dsn) as lock, running(runner(on_postgres, broker, on_postgres.consumer())):
        await until(lambda: broker.acked == ["our-1"])
        broker.put(*messages("order.cancelled", "other-2"), *messages("order.placed", "our-2"))
        await until(lambda: broker.acked == ["our-1", "our-2"])
        broker.kept.clear()
        await until(lambda: {"other-1", "other-2"} <= set(broker.kept))
        await lock.execute("ROLLBACK")
        await until(lambda: broker.idle)
    assert await on_postgres.effects() == ["our-1", "our-2"]
    assert set(await on_postgres.failed_messages()) == {"other-1", "other-2"}
    assert broker.given_back == []


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["stopped", "cancelled"])
async def test_what_is_not_kept_for_others_by_the_end_is_given_back(
    on_postgres: Backend, inbox_dsn: str, is_cancelled: bool
) -> None:
    await others_run(on_postgres)
    broker = MemoryBroker()
    broker.put(*messages("order.cancelled", "other-1"), *messages("order.placed", "our-1"))
    before = asyncio.all_tasks()
    stop = asyncio.Event()
    async with locked_letters(inbox_dsn):
        consuming = runner(on_postgres, broker, on_postgres.consumer(), grace_s=0.05)
        task = asyncio.create_task(consuming.run(stop))
        await until(lambda: broker.acked == ["our-1"])
        broker.put(*messages("order.cancelled", "other-2"), *messages("order.placed", "our-2"))
        await until(lambda: broker.acked == ["our-1", "our-2"])
        if is_cancelled:
            task.cancel()
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            with suppress(asyncio.CancelledError):
                await task
    assert sorted(broker.given_back) == ["other-1", "other-2"]
    # A connection that was cut off in a statement is closed behind the scenes.
    await until(lambda: all(task.done() for task in asyncio.all_tasks() - before))
    assert await on_postgres.failed_messages() == {}
