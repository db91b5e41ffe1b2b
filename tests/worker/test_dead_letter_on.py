"""Exceptions that are not worth another attempt, with the apps: in consumers, in `handling()` and under FastStream."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from faststream.nats import JStream, NatsBroker, TestNatsBroker

from onefold import AsyncOnefold, Message, Onefold, Transaction
from onefold._app.base_app import run_flow
from onefold._inbox.failed_messages import list_failed
from onefold._inbox.stored_message import FailedMessage
from onefold._worker.faststream_subscribers import handled_once
from onefold.brokers import Delivery
from onefold.errors import ConfigurationError, OnefoldError
from onefold.telemetry import DeadLettered, Event
from tests.worker.consuming import until


async def failed_messages(once: AsyncOnefold | Onefold, consumer: str = "billing") -> list[FailedMessage]:
    return await run_flow(once, lambda dialect: list_failed(dialect, consumer))


async def test_a_handler_on_a_thread_and_one_on_the_loop_give_up_alike(sqlite_path: Path) -> None:
    seen: list[Event] = []
    once = AsyncOnefold(sqlite_path, source="shop", listener=seen.append)

    @once.consumer("threads", topic="order.placed", dead_letter_on=(ValueError,))
    def on_a_thread(message: Message) -> None:
        raise ValueError("no such card")

    @once.consumer("loop", topic="order.placed", dead_letter_on=(ValueError,))
    async def on_the_loop(message: Message) -> None:
        raise ValueError("no such card")

    async with once.relaying(), once.consuming():
        async with once.transaction() as tx:
            await tx.publish("order.placed", {})
        await until(lambda: len([event for event in seen if isinstance(event, DeadLettered)]) == 2)
    for name in ("threads", "loop"):
        [failed_message] = await failed_messages(once, name)
        assert (failed_message.state, failed_message.failed, failed_message.reason) == (
            "dead",
            1,
            "ValueError: no such card",
        )
    await once.close()


@pytest.mark.parametrize("source", [None, "/shop/eu"])
async def test_handling_keeps_a_dead_letter_and_is_none_when_the_message_comes_again(
    sqlite_path: Path, source: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    once = AsyncOnefold(sqlite_path, listener=seen.append)
    kept = Delivery(data=b'{"card": 1}', headers={"ce-id": "m1"})
    with pytest.raises(ValueError, match="no such card"):
        async with once.handling("billing", "m1", source=source, dead_letter_on=(ValueError,), delivery=kept):
            raise ValueError("no such card")
    [failed_message] = await failed_messages(once)
    assert (failed_message.id, failed_message.state, failed_message.reason) == (
        "m1",
        "dead",
        "ValueError: no such card",
    )
    assert (failed_message.data, failed_message.headers) == (kept.data, {"ce-id": "m1"})
    assert [type(event) for event in seen] == [DeadLettered]
    assert "dead letter: ValueError: no such card" in caplog.text
    async with once.handling("billing", "m1", source=source) as tx:
        assert tx is None
    await once.close()


async def test_of_two_sources_with_one_id_only_the_one_that_died_is_dead(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path)
    with pytest.raises(ValueError, match="no"):
        async with once.handling("billing", "m1", source="/eu", dead_letter_on=(ValueError,)):
            raise ValueError("no")
    async with once.handling("billing", "m1", source="/us") as tx:
        assert tx is not None
    with pytest.raises(ValueError, match="no"):
        async with once.handling("billing", "m2", source="/eu", dead_letter_on=(KeyError,)):
            raise ValueError("no")
    assert [failed_message.id for failed_message in await failed_messages(once)] == ["m1"]
    await once.close()


async def test_handling_on_threads_keeps_one_too(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path)
    with pytest.raises(ValueError, match="no"), once.handling("billing", "m1", dead_letter_on=(ValueError,)):
        raise ValueError("no")
    assert [failed_message.state for failed_message in await failed_messages(once)] == ["dead"]
    with once.handling("billing", "m1") as tx:
        assert tx is None
    with (
        pytest.raises(ConfigurationError, match="not a class of exceptions"),
        once.handling("billing", "m2", dead_letter_on=("ValueError",)),  # type: ignore[arg-type]
    ):
        pass
    once.close()


class Shop:
    """A FastStream application in memory, whose handler fails."""

    def __init__(self, once: AsyncOnefold, broker: NatsBroker) -> None:
        self.calls = 0

        @broker.subscriber("payments", stream=JStream("payments"))
        @handled_once(once, "billing", retry_s=0.01, dead_letter_on=(ValueError,))
        async def ship(payment: dict[str, str], tx: Transaction[Any]) -> None:
            self.calls += 1
            raise ValueError("no such card")


async def test_under_faststream_it_is_acknowledged_and_kept(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    broker = NatsBroker(logger=None)
    shop = Shop(once, broker)
    async with TestNatsBroker(broker):
        with pytest.raises(ValueError, match="no such card"):
            await broker.publish({"order": "ord-1"}, "payments", stream="payments", headers={"ce-id": "m-1"})
        await broker.publish({"order": "ord-1"}, "payments", stream="payments", headers={"ce-id": "m-1"})
    [failed_message] = await failed_messages(once)
    assert (failed_message.id, failed_message.data, failed_message.headers["ce-id"]) == (
        "m-1",
        b'{"order":"ord-1"}',
        "m-1",
    )
    assert shop.calls == 1
    await once.close()


async def test_under_faststream_a_dead_letter_that_could_not_be_written_is_delivered_again(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    broker = NatsBroker(logger=None)
    shop = Shop(once, broker)
    async with once.transaction() as tx:
        await tx.connection.execute("ALTER TABLE onefold_letter RENAME COLUMN history TO elsewhere")
    caplog.set_level(logging.CRITICAL)
    async with TestNatsBroker(broker):
        for _ in range(2):
            with pytest.raises(OnefoldError):
                await broker.publish({"order": "ord-1"}, "payments", stream="payments", headers={"ce-id": "m-1"})
    assert shop.calls == 2
    await once.close()
