"""FastStream subscribers with the inbox: what comes twice is handled once, over a real NATS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import nats as nats_py
import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.confluent import KafkaBroker, TestKafkaBroker
from faststream.message import StreamMessage
from faststream.nats import JStream, NatsBroker, TestNatsBroker
from faststream.nats.annotations import NatsMessage
from faststream.redis import RedisBroker, StreamSub, TestRedisBroker
from pydantic import BaseModel

from onefold import AsyncOnefold, Transaction
from onefold._worker.faststream_subscribers import handled_once, message_id
from onefold.errors import ConfigurationError, MessageUnreadable, ProgrammerError
from onefold.testing.servers import PrivateNats, PrivateValkey
from tests.support.patience import PATIENCE_S


class Payment(BaseModel):
    order: str


async def fail() -> None:
    raise RuntimeError("as you wish")


async def await_what_is_cancelled() -> None:
    given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    given_up.cancel()
    await given_up


class Desk:
    """A FastStream application with one subscriber, which fails as often as it is told to."""

    def __init__(self, once: AsyncOnefold, url: str, *, lease_s: float = 60.0, **options: Any) -> None:
        self.once = once
        self.url = url
        self.broker = NatsBroker(url, logger=None)
        self.subject = f"payments-{uuid4().hex}"
        self.stream = JStream(self.subject, subjects=[self.subject])
        self.failures = 0
        self.fail = fail
        self.calls: list[str] = []

        @handled_once(once, "fulfilment", retry_s=0.01, lease_s=lease_s)
        async def ship(payment: Payment, tx: Transaction[Any]) -> None:
            self.calls.append(payment.order)
            await tx.connection.execute("INSERT INTO shipments VALUES (?)", (payment.order,))
            await tx.publish("order.shipped", {"order": payment.order}, key=payment.order)
            if self.failures:
                self.failures -= 1
                await self.fail()

        self.broker.subscriber(self.subject, stream=self.stream, queue=self.subject, **options)(ship)

    async def publish(self, order: str, headers: dict[str, str]) -> None:
        await self.broker.publish({"order": order}, self.subject, headers=headers, stream=self.subject)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        async with self.once.transaction() as tx:
            found: list[tuple[Any, ...]] = await tx.connection.fetch(query)
            return found


@asynccontextmanager
async def at_work(nats: PrivateNats, path: Any, **options: Any) -> AsyncIterator[Desk]:
    once = AsyncOnefold(path, source="fulfilment")
    async with once.transaction() as tx:
        await tx.connection.execute("CREATE TABLE shipments (item TEXT NOT NULL)")
    desk = Desk(once, nats.url, **options)
    async with desk.broker:
        await desk.broker.start()
        yield desk
    await once.close()


@pytest.fixture
async def desk(nats: PrivateNats, sqlite_path: Any) -> AsyncIterator[Desk]:
    async with at_work(nats, sqlite_path) as desk:
        yield desk


async def until(found: Any, wanted: object) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
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


@pytest.mark.parametrize(
    "options",
    [{}, *({"ack_policy": policy} for policy in AckPolicy)],
    ids=["default", *(policy.value for policy in AckPolicy)],
)
async def test_what_fails_leaves_nothing_and_is_delivered_again_whatever_the_ack_policy(
    nats: PrivateNats, sqlite_path: Any, options: dict[str, Any]
) -> None:
    async with at_work(nats, sqlite_path, **options) as desk:
        desk.failures = 2
        await desk.publish("ord-1", {"message_id": "m-1"})
        await until(lambda: desk.rows("SELECT item FROM shipments"), [("ord-1",)])
        await until(partial(unacknowledged, desk), 0)
    assert len(desk.calls) == 3


async def test_a_cancellation_out_of_something_awaited_is_a_failure_and_holds_up_nothing(desk: Desk) -> None:
    """FastStream takes it for the end of its own task: the message was not given back, and none came after it."""
    desk.failures, desk.fail = 1, await_what_is_cancelled
    for number in ("1", "2"):
        await desk.publish(f"ord-{number}", {"message_id": f"m-{number}"})
    await until(lambda: desk.rows("SELECT item FROM shipments ORDER BY item"), [("ord-1",), ("ord-2",)])
    await until(partial(unacknowledged, desk), 0)
    assert sorted(desk.calls) == ["ord-1", "ord-1", "ord-2"]


async def test_a_handler_that_hangs_is_cut_off_at_its_lease_and_others_may_write(
    nats: PrivateNats, sqlite_path: Any
) -> None:
    async with at_work(nats, sqlite_path, lease_s=0.1) as desk:
        desk.failures, desk.fail = 1, partial(asyncio.sleep, PATIENCE_S)
        await desk.publish("ord-1", {"message_id": "m-1"})
        await until(lambda: desk.rows("SELECT item FROM shipments"), [("ord-1",)])
        await until(partial(unacknowledged, desk), 0)
    assert desk.calls == ["ord-1", "ord-1"]


async def unacknowledged(desk: Desk) -> int:
    """How many messages the broker still waits for, or would deliver."""
    client = await nats_py.connect(desk.url)
    try:
        [consumer] = await client.jetstream().consumers_info(desk.subject)
        return (consumer.num_ack_pending or 0) + (consumer.num_pending or 0)
    finally:
        await client.close()


async def test_a_message_that_was_acknowledged_before_it_is_handled_is_refused(sqlite_path: Any) -> None:
    """Kafka, as FastStream has it by default."""
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    broker = KafkaBroker()
    calls: list[str] = []

    @broker.subscriber("payments", group_id="shop")
    @handled_once(once, "fulfilment")
    async def ship(payment: Payment, tx: Transaction[Any]) -> None:
        calls.append(payment.order)

    @broker.subscriber("refunds", group_id="shop", ack_policy=AckPolicy.NACK_ON_ERROR)
    @handled_once(once, "refunds")
    async def refund(payment: Payment, tx: Transaction[Any]) -> None:
        calls.append(payment.order)

    async with TestKafkaBroker(broker):
        await broker.publish({"order": "ord-1"}, "refunds", headers={"ce-id": "m-1"})
        with pytest.raises(ConfigurationError, match=r"'fulfilment' acknowledges messages before.*NACK_ON_ERROR"):
            await broker.publish({"order": "ord-2"}, "payments", headers={"ce-id": "m-2"})
    assert calls == ["ord-1"]
    await once.close()


async def test_a_message_that_cannot_be_delivered_again_is_refused(sqlite_path: Any) -> None:
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    broker = RedisBroker()

    @broker.subscriber(list="payments")
    @handled_once(once, "fulfilment")
    async def ship(payment: Payment, tx: Transaction[Any]) -> None: ...

    async with TestRedisBroker(broker):
        with pytest.raises(ConfigurationError, match="RedisListMessage, which its broker cannot deliver again"):
            await broker.publish({"order": "ord-1"}, list="payments", headers={"ce-id": "m-1"})
    await once.close()


async def test_a_redis_stream_without_a_group_is_refused(valkey: PrivateValkey, sqlite_path: Any) -> None:
    """What a group has not acknowledged can be delivered again; without one it is gone when it was read."""
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    stream = f"payments-{uuid4().hex}"
    calls: list[str] = []
    errors: asyncio.Queue[Exception] = asyncio.Queue()

    class Tell(BaseMiddleware[Any, Any]):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            try:
                return await call_next(msg)
            except Exception as error:
                errors.put_nowait(error)
                raise

    broker = RedisBroker(valkey.url, middlewares=[Tell])

    @broker.subscriber(stream=stream)
    @handled_once(once, "fulfilment")
    async def ship(payment: Payment, tx: Transaction[Any]) -> None:
        calls.append(payment.order)

    async with broker:
        await broker.start()
        await broker.publish({"order": "ord-1"}, stream=stream, headers={"ce-id": "m-1"})
        error = await asyncio.wait_for(errors.get(), PATIENCE_S)
    assert isinstance(error, ConfigurationError)
    assert "without a consumer group" in str(error)
    assert calls == []
    await once.close()


async def test_what_fails_in_a_group_of_redis_comes_again_to_a_subscriber_that_claims_it(
    valkey: PrivateValkey, sqlite_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Without one it would be pending for ever, so it is told what it takes."""
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    broker, stream = RedisBroker(valkey.url), f"payments-{uuid4().hex}"
    calls: list[str] = []
    handled = asyncio.Event()

    @broker.subscriber(stream=StreamSub(stream, group="shop", consumer="one"))
    @broker.subscriber(stream=StreamSub(stream, group="shop", consumer="two", min_idle_time=50))
    @handled_once(once, "fulfilment", retry_s=0.01)
    async def ship(payment: Payment, tx: Transaction[Any]) -> None:
        calls.append(payment.order)
        if len(calls) == 1:
            await fail()
        handled.set()

    async with broker:
        await broker.start()
        await broker.publish({"order": "ord-1"}, stream=stream, headers={"ce-id": "m-1"})
        await asyncio.wait_for(handled.wait(), PATIENCE_S)
    assert calls == ["ord-1", "ord-1"]
    [told] = [record.getMessage() for record in caplog.records if record.name == "onefold.consumer"]
    assert f"message m-1 failed, and is pending in group 'shop' of the Redis stream '{stream}'" in told
    assert "min_idle_time" in told
    await once.close()


async def test_a_message_of_nats_without_a_stream_is_refused(sqlite_path: Any) -> None:
    """It has a `nack` as those of JetStream have, which does nothing."""
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    broker = NatsBroker()
    calls: list[str] = []

    @broker.subscriber("payments")
    @handled_once(once, "fulfilment")
    async def ship(payment: Payment, tx: Transaction[Any]) -> None:
        calls.append(payment.order)

    async with TestNatsBroker(broker):
        with pytest.raises(ConfigurationError, match="NatsMessage, which its broker cannot deliver again"):
            await broker.publish({"order": "ord-1"}, "payments", headers={"ce-id": "m-1"})
    assert calls == []
    await once.close()


async def test_a_handler_that_acknowledges_before_its_transaction_commits_is_refused(
    nats: PrivateNats, sqlite_path: Any
) -> None:
    once = AsyncOnefold(sqlite_path, source="fulfilment")
    broker = NatsBroker(nats.url, logger=None)

    @broker.subscriber("payments", stream=JStream("payments"), ack_policy=AckPolicy.MANUAL)
    @handled_once(once, "fulfilment")
    async def ship(payment: Payment, received: NatsMessage, tx: Transaction[Any]) -> None:
        await received.ack()

    async with TestNatsBroker(broker):
        with pytest.raises(ProgrammerError, match="has settled its message itself"):
            await broker.publish({"order": "ord-1"}, "payments", stream="payments", headers={"ce-id": "m-1"})
    async with once.transaction() as tx:
        assert await tx.connection.fetch("SELECT message_id FROM onefold_inbox") == []
    await once.close()


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
