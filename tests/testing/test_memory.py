"""The broker in memory: what users' unit tests see of their handlers, without a server and without a thread."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from onefold import AsyncOnefold, Depends, Message, Onefold, Transaction
from onefold._app.base_app import run_flow
from onefold._inbox.failed_messages import list_failed
from onefold.errors import ConfigurationError, PayloadInvalid
from onefold.telemetry import DeadLettered, Dropped, Duplicate, Failed, Handled, Parked
from onefold.testing.memory_broker import AsyncMemoryBroker, MemoryBroker, NotHandled


class Order(BaseModel):
    order: int


def clerk() -> str:
    return "clerk"


def shop(path: Path) -> tuple[AsyncOnefold, list[Any]]:
    sqlite3.connect(path).execute("CREATE TABLE shipped (id INTEGER)").connection.close()
    once = AsyncOnefold(path, source="shop")
    calls: list[Any] = []

    @once.consumer("shipping", topic="order.placed", dead_letter_on=(KeyError,))
    async def ship(order: Order, tx: Transaction[Any], clerk: Annotated[str, Depends(clerk)]) -> None:
        calls.append((clerk, order.order, threading.current_thread()))
        await tx.connection.execute("INSERT INTO shipped VALUES (?)", (order.order,))
        await tx.publish("order.shipped", {"order": order.order}, key=order.order)
        if order.order < 0:
            raise KeyError("negative")

    @once.consumer("mail", topic="order.shipped", order="strict")
    def mail(message: Message) -> None:
        calls.append(("mail", message.version, threading.current_thread()))

    return once, calls


async def test_what_is_published_is_handled_at_once_and_so_is_what_handlers_publish(sqlite_path: Path) -> None:
    once, calls = shop(sqlite_path)
    broker = AsyncMemoryBroker(once)
    here = threading.current_thread()
    assert await broker.publish("order.placed", {"order": 42}) == [
        Handled("shipping", "order.placed"),
        Handled("mail", "order.shipped"),
    ]
    assert await broker.publish("order.placed", Order(order=42)) == broker.events[2:]
    assert calls == [("clerk", 42, here), ("mail", 1, here), ("clerk", 42, here), ("mail", 2, here)]
    assert [(event.topic, event.key, event.version, event.json()) for event in broker.published] == [
        ("order.shipped", "42", 1, {"order": 42}),
        ("order.shipped", "42", 2, {"order": 42}),
    ]
    async with once.transaction() as tx:
        assert await tx.connection.fetch("SELECT count(*) FROM shipped") == [(2,)]
        assert await tx.connection.fetch("SELECT count(*) FROM onefold_outbox") == [(0,)]
    await once.close()


async def test_a_message_that_comes_twice_is_handled_once(sqlite_path: Path) -> None:
    once, calls = shop(sqlite_path)
    broker = AsyncMemoryBroker(once)
    await broker.publish("order.placed", {"order": 1}, message_id="m1")
    assert await broker.publish("order.placed", {"order": 1}, message_id="m1") == [
        Duplicate("shipping", "order.placed")
    ]
    assert len(calls) == 2
    await once.close()


async def test_what_a_handler_raises_is_raised_and_nothing_of_it_stays(sqlite_path: Path) -> None:
    once, _ = shop(sqlite_path)
    broker = AsyncMemoryBroker(once)
    with pytest.raises(KeyError, match="negative"):
        await broker.publish("order.placed", {"order": -1})
    with pytest.raises(PayloadInvalid, match="order: missing"):
        await broker.publish("order.placed", {})
    with pytest.raises(NotHandled, match=r"'mail'.*no key"):
        await broker.publish("order.shipped", {})
    assert [type(event) for event in broker.events] == [DeadLettered] * 3
    assert (broker.published, len(await run_flow(once, lambda dialect: list_failed(dialect, "shipping")))) == ([], 2)
    async with once.transaction() as tx:
        assert await tx.connection.fetch("SELECT * FROM shipped") == []
    await once.close()


async def test_without_raising_failures_are_events_as_in_production(sqlite_path: Path) -> None:
    once, _ = shop(sqlite_path)
    broker = AsyncMemoryBroker(once, raises=False)
    [event] = await broker.publish("order.placed", {"order": -1})
    assert isinstance(event, DeadLettered)
    assert event.reason == "KeyError: 'negative'"
    await once.close()


async def test_what_the_application_publishes_is_delivered_when_the_test_says_so(sqlite_path: Path) -> None:
    once, calls = shop(sqlite_path)
    broker = AsyncMemoryBroker(once)
    async with once.transaction() as tx:
        await tx.publish("order.placed", {"order": 7})
        await tx.publish("nobody.listens", {})
    assert calls == []
    assert len(await broker.deliver()) == 2
    assert [event.topic for event in broker.published] == ["order.placed", "nobody.listens", "order.shipped"]
    assert await broker.deliver() == []
    assert await broker.publish("order.plaecd", {"order": 7}) == []  # no consumer takes it
    await once.close()


async def test_a_message_from_elsewhere_is_handled_before_what_waits_in_the_outbox_and_that_with_it(
    sqlite_path: Path,
) -> None:
    once, calls = shop(sqlite_path)
    broker = AsyncMemoryBroker(once)
    async with once.transaction() as tx:
        await tx.publish("order.placed", {"order": 7})
    await broker.publish("order.placed", {"order": 42})
    assert [call[1] for call in calls if call[0] == "clerk"] == [42, 7]
    assert await broker.deliver() == []
    await once.close()


def test_the_same_on_threads(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, source="shop")
    calls: list[Any] = []

    @once.consumer("shipping", topic="order.placed", order="latest")
    def ship(order: Order, tx: Transaction[sqlite3.Connection]) -> None:
        calls.append(threading.current_thread())
        _ = tx.publish("order.shipped", {"order": order.order})
        if order.order < 0:
            raise KeyError("negative")

    @once.consumer("mail", topic="order.shipped")
    async def mail(message: Message) -> None:
        calls.append("mail")

    broker = MemoryBroker(once)
    assert [type(event) for event in broker.publish("order.placed", {"order": 1}, key="a")] == [Handled, Handled]
    assert calls == [threading.current_thread(), "mail"]
    with pytest.raises(KeyError, match="negative"):
        broker.publish("order.placed", {"order": -1}, key="a")
    assert isinstance(broker.events[-1], Failed)
    with once.transaction() as tx:
        _ = tx.publish("order.placed", {"order": 2}, key="b")
    assert [type(event) for event in broker.deliver()] == [Handled, Handled]
    once.close()


async def test_order_is_as_in_production(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")

    @once.consumer("strict", topic="order.placed", order="strict", baseline_wait_s=0)
    async def strict(message: Message) -> None:
        if message.json() == "bad":
            raise KeyError("bad")

    @once.consumer("latest", topic="order.placed", order="latest")
    async def latest(message: Message) -> None: ...

    broker = AsyncMemoryBroker(once, raises=False)
    kinds = [[type(event) for event in await broker.publish("order.placed", data, key="a")] for data in ("bad", "good")]
    assert kinds == [[Failed, Handled], [Parked, Handled]]
    assert Dropped not in kinds[1]
    await once.close()


async def test_brokers_of_several_tests_go_on_counting_the_versions_of_a_key(sqlite_path: Path) -> None:
    """Tests that share an application make a broker each, and its consumers know what the one before has sent."""
    for _ in range(2):  # the application of another module, over the same database
        once = AsyncOnefold(sqlite_path, source="shop")
        versions: list[int | None] = []

        @once.consumer("mail", topic="order.shipped", order="strict")
        async def mail(message: Message) -> None:
            versions.append(message.version)  # noqa: B023

        for _ in range(2):
            broker = AsyncMemoryBroker(once)
            assert await broker.publish("order.shipped", {}, key="k") == [Handled("mail", "order.shipped")]
        assert versions == [1, 2]
        await once.close()


async def test_several_failures_are_raised_together(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")

    @once.consumer("one", topic="order.placed")
    async def one(message: Message) -> None:
        raise KeyError("one")

    @once.consumer("two", topic="order.placed")
    def two(message: Message) -> None:
        raise ValueError("two")

    with pytest.raises(ExceptionGroup, match="handlers failed") as group:
        await AsyncMemoryBroker(once).publish("order.placed", {})
    assert [type(error) for error in group.value.exceptions] == [KeyError, ValueError]
    await once.close()


async def test_handlers_that_publish_to_each_other_for_ever_are_stopped(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.testing.memory_broker.MESSAGES_MAX", 5)
    once = AsyncOnefold(sqlite_path, source="shop")

    @once.consumer("echo", topic="echo")
    async def echo(message: Message, tx: Transaction[Any]) -> None:
        await tx.publish("echo", {})

    with pytest.raises(NotHandled, match="published to each other 5 times"):
        await AsyncMemoryBroker(once).publish("echo", {})
    await once.close()


async def test_an_application_without_consumers_is_refused(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path)
    with pytest.raises(ConfigurationError, match="has no consumer"):
        AsyncMemoryBroker(once)
    await once.close()
