"""FastStream subscribers with the inbox: what comes twice is handled once, over a real NATS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from faststream.message import StreamMessage
from faststream.nats import JStream, NatsBroker
from pydantic import BaseModel

from onefold import AsyncOnefold, Transaction
from onefold.errors import ConfigurationError, MessageUnreadable
from onefold.testing.servers import PrivateNats
from onefold.worker.faststream import handled_once, message_id


class Payment(BaseModel):
    order: str


class Desk:
    """A FastStream application with one subscriber, which fails as often as it is told to."""

    def __init__(self, once: AsyncOnefold, url: str) -> None:
        self.once = once
        self.broker = NatsBroker(url, logger=None)
        self.subject = f"payments-{uuid4().hex}"
        self.stream = JStream(self.subject, subjects=[self.subject])
        self.failures = 0
        self.calls: list[str] = []
        self.settled = asyncio.Semaphore(0)

        @handled_once(once, "fulfilment")
        async def ship(payment: Payment, tx: Transaction[Any]) -> None:
            self.calls.append(payment.order)
            await tx.connection.execute("INSERT INTO shipments VALUES (?)", (payment.order,))
            await tx.publish("order.shipped", {"order": payment.order}, key=payment.order)
            self.settled.release()
            if self.failures:
                self.failures -= 1
                raise RuntimeError("as you wish")

        self.broker.subscriber(self.subject, stream=self.stream, queue=self.subject)(ship)

    async def publish(self, order: str, headers: dict[str, str]) -> None:
        await self.broker.publish({"order": order}, self.subject, headers=headers, stream=self.subject)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        async with self.once.transaction() as tx:
            found: list[tuple[Any, ...]] = await tx.connection.fetch(query)
            return found


@pytest.fixture
async def desk(nats: PrivateNats, sqlite_path: Any) -> AsyncIterator[Desk]:
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    async with once.transaction() as tx:
        await tx.connection.execute("CREATE TABLE shipments (item TEXT NOT NULL)")
    desk = Desk(once, nats.url)
    async with desk.broker:
        await desk.broker.start()
        yield desk
    await once.close()


async def until(found: Any, wanted: object) -> None:
    give_up_at = time.monotonic() + 20
    while await found() != wanted:
        assert time.monotonic() < give_up_at, f"{await found()} instead of {wanted}"
        await asyncio.sleep(0.02)


async def test_a_message_that_comes_twice_is_handled_once_with_its_rows_and_events(desk: Desk) -> None:
    for number in ("1", "1", "2", "1"):
        await desk.publish(f"ord-{number}", {"message_id": f"m-{number}"})
    await until(lambda: desk.rows("SELECT item FROM shipments ORDER BY item"), [("ord-1",), ("ord-2",)])
    await desk.publish("ord-3", {"ce-id": "m-3"})
    await until(lambda: desk.rows("SELECT item FROM shipments ORDER BY item"), [("ord-1",), ("ord-2",), ("ord-3",)])
    assert sorted(desk.calls) == ["ord-1", "ord-2", "ord-3"]
    assert await desk.rows("SELECT key FROM onefold_outbox ORDER BY key") == [("ord-1",), ("ord-2",), ("ord-3",)]


async def test_what_fails_leaves_nothing_and_its_redelivery_is_handled(desk: Desk) -> None:
    desk.failures = 1
    await desk.publish("ord-1", {"message_id": "m-1"})
    async with asyncio.timeout(20):
        await desk.settled.acquire()
    await desk.publish("ord-1", {"message_id": "m-1"})
    await until(lambda: desk.rows("SELECT item FROM shipments"), [("ord-1",)])
    assert len(desk.calls) == 2


@pytest.mark.parametrize("headers", [{}, {"message_id": ""}])
def test_a_message_without_an_id_of_its_own_is_refused(headers: dict[str, str]) -> None:
    message: StreamMessage[Any] = StreamMessage(raw_message=None, body=b"", headers=headers)
    with pytest.raises(MessageUnreadable, match="ce-id, ce_id"):
        message_id(message)


def test_a_handler_without_a_transaction_is_refused(sqlite_path: Any) -> None:
    once = AsyncOnefold(sqlite_path, source="fulfilment")

    async def ship(payment: Payment) -> None: ...

    with pytest.raises(ConfigurationError, match="parameter tx"):
        handled_once(once, "fulfilment")(ship)
