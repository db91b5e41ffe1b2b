"""Events that wait in DynamoDB reach a broker, at least once and under one id; what is refused is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from onefold._dynamodb.item_values import write_item
from onefold._outbox.relay_session import RETRIES
from onefold.dynamodb import DynamoEvent, DynamoRelay, DynamoTable
from onefold.errors import BrokerUnavailable, MessageRefused, StoreUnavailable, TopicNotSubscribed
from tests.dynamodb.requests import count, place
from tests.worker.consuming import until


class Broker:
    """Takes what it is given, but for the topics that have an answer."""

    keep_every_s = redelivery_s = 1.0

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.answers: dict[str, Any] = {}
        self.closed = False

    async def open(self) -> None: ...
    async def close(self) -> None:
        self.closed = True

    async def publish(self, messages: Sequence[Any]) -> Sequence[Any]:
        answers = [self.answers.get(message.topic) for message in messages]
        self.sent += [message for message, answer in zip(messages, answers, strict=True) if answer is None]
        return answers

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Any:
        raise NotImplementedError


class NotDeleting:
    """A client that is cut off from DynamoDB before it deletes."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def delete_item(self, **_: Any) -> Any:
        raise EndpointConnectionError(endpoint_url="http://gone")


def publish(table: DynamoTable, key: str, *events: DynamoEvent) -> None:
    table.once(key, key, principal="acme", operation="publish", events=events)


async def test_what_was_committed_is_published_once_and_in_the_order_of_its_call(
    table: DynamoTable, orders: str, client: Any
) -> None:
    place(table, orders)
    place(table, orders)  # a replay publishes nothing
    publish(table, "k2", *(DynamoEvent("counted", number, key="a") for number in range(5)))
    broker = Broker()
    relay = DynamoRelay(table, broker)
    assert await relay.tick() == 6
    assert await relay.tick() == 0
    assert [message.json() for message in broker.sent if message.topic == "counted"] == list(range(5))
    [placed] = [message for message in broker.sent if message.topic == "order.placed"]
    assert (placed.source, placed.key, placed.headers) == ("shop", "ord-42", {"x-shop": "1"})
    items = client.scan(TableName=table.name)["Items"]
    assert [item for item in items if item["pk"]["S"].startswith("event#")] == []


async def test_a_refused_event_stops_its_key_and_ends_as_a_dead_letter_that_can_be_retried(table: DynamoTable) -> None:
    publish(
        table, "k1", DynamoEvent("bad", 1, key="a"), DynamoEvent("bad", 2, key="a"), DynamoEvent("good", 3, key="a")
    )
    broker = Broker()
    broker.answers["bad"] = MessageRefused("too large")
    now = [1000.0]
    relay = DynamoRelay(table, broker, attempts_max=2, lease_s=60, now_s=lambda: now[0])
    assert await relay.tick() == 1
    [first] = [message.json() for message in broker.sent]
    assert first == 3, "of another topic, and so of another stream"
    assert await relay.list_dead() == []
    now[0] += RETRIES.cap_s
    await relay.tick()
    [dead] = await relay.list_dead()
    assert (dead.message.json(), dead.refused, dead.error) == (1, 2, "too large")
    broker.answers.clear()
    await relay.retry(dead)
    await relay.tick()
    assert sorted(message.json() for message in broker.sent) == [1, 2, 3]
    assert await relay.list_dead() == []


async def test_refusals_have_growing_pauses_and_hold_up_their_key_only(table: DynamoTable) -> None:
    publish(table, "k1", DynamoEvent("bad", 1, key="a"), DynamoEvent("bad", 2, key="a"))
    asked: list[Any] = []

    class Counting(Broker):
        async def publish(self, messages: Sequence[Any]) -> Sequence[Any]:
            asked.extend(message.json() for message in messages)
            return await super().publish(messages)

    now = [1000.0]
    broker = Counting()
    broker.answers["bad"] = MessageRefused("too large")
    relay = DynamoRelay(table, broker, attempts_max=9, now_s=lambda: now[0])
    for second in range(60):  # a tick in each second: at 0, after at most 1, 2, 4, 8, 16 and 32 more
        now[0] = 1000.0 + second
        await relay.tick()
    assert set(asked) == {1}, "what follows it waits"
    assert 6 <= len(asked) <= 8
    publish(table, "k2", DynamoEvent("bad", 3, key="b"))
    await relay.tick()
    assert asked[-1] == 3, "another key does not"
    broker.answers.clear()
    now[0] += RETRIES.cap_s
    await relay.tick()
    assert [message.json() for message in broker.sent if message.key == "a"] == [1, 2]


@pytest.mark.parametrize("answer", [BrokerUnavailable("away"), TopicNotSubscribed("no queue yet")])
async def test_a_broker_that_is_away_and_a_topic_without_consumers_count_as_no_attempt(
    table: DynamoTable, answer: Exception
) -> None:
    publish(table, "k1", DynamoEvent("t", 1))
    broker = Broker()
    broker.answers["t"] = answer
    relay = DynamoRelay(table, broker, attempts_max=1)
    for _ in range(2):
        try:
            assert await relay.tick() == 0
        except BrokerUnavailable:
            assert isinstance(answer, BrokerUnavailable)
    broker.answers.clear()
    assert await relay.tick() == 1


async def test_a_topic_without_consumers_is_logged_once_until_it_takes_something(
    table: DynamoTable, caplog: pytest.LogCaptureFixture
) -> None:
    publish(table, "k1", DynamoEvent("t", 1), DynamoEvent("t", 2))
    broker = Broker()
    broker.answers["t"] = TopicNotSubscribed("no queue yet")
    relay = DynamoRelay(table, broker)
    for _ in range(2):
        await relay.tick()
    assert caplog.messages.count(f"events on t in table {table.name} are not sent yet: no queue yet") == 1


async def test_what_cannot_leave_holds_up_nothing_behind_it(table: DynamoTable) -> None:
    publish(table, "k1", *(DynamoEvent("unwanted", number) for number in range(9)))
    publish(table, "k2", DynamoEvent("wanted", 1), DynamoEvent("wanted", 2))
    broker = Broker()
    broker.answers["unwanted"] = TopicNotSubscribed("no queue yet")
    assert await DynamoRelay(table, broker, batch=2).tick() == 2


async def test_a_queue_that_is_away_holds_up_no_other_topic(table: DynamoTable) -> None:
    publish(table, "k1", *(DynamoEvent("audit.made", number) for number in range(9)))
    publish(table, "k2", *(DynamoEvent("order.placed", number) for number in range(4)))
    broker = Broker()
    broker.answers["audit.made"] = BrokerUnavailable("its key is disabled")
    relay = DynamoRelay(table, broker, batch=2)
    with pytest.raises(BrokerUnavailable, match="its key is disabled"):
        await relay.tick()
    assert sorted(message.json() for message in broker.sent) == [0, 1, 2, 3]
    broker.answers.clear()
    assert await relay.tick() == 9


class Stumbling(Broker):
    """A broker whose adapter fails on a message of this topic, and with it on all that are handed over together."""

    async def publish(self, messages: Sequence[Any]) -> Sequence[Any]:
        if any(message.topic == "odd" for message in messages):
            raise ValueError("no such header")
        return await super().publish(messages)


async def test_an_event_on_which_the_brokers_adapter_fails_counts_as_refused_and_holds_up_no_other(
    table: DynamoTable,
) -> None:
    publish(table, "k1", DynamoEvent("odd", 0), *(DynamoEvent("t", number) for number in range(4)))
    broker = Stumbling()
    relay = DynamoRelay(table, broker, attempts_max=1)
    assert await relay.tick() == 4
    [dead] = await relay.list_dead()
    assert (dead.message.topic, dead.error) == ("odd", "the broker's adapter failed: ValueError: no such header")


class RefusingUpdates(NotDeleting):
    """DynamoDB, where the items of events have no room for these attributes."""

    def __init__(self, client: Any, *attributes: str) -> None:
        super().__init__(client)
        self.attributes, self.error_bytes = attributes, 0

    def delete_item(self, **request: Any) -> Any:
        return self.client.delete_item(**request)

    def update_item(self, **request: Any) -> Any:
        values = request["ExpressionAttributeValues"]
        self.error_bytes = len(values.get(":error", {"S": ""})["S"].encode()) or self.error_bytes
        if any(f":{name}" in values for name in self.attributes):
            raise ClientError({"Error": {"Code": "ValidationException", "Message": "Item size"}}, "UpdateItem")
        return self.client.update_item(**request)


async def test_a_refused_event_that_has_no_room_for_its_error_ends_as_a_dead_letter(
    table: DynamoTable, client: Any
) -> None:
    publish(table, "k1", DynamoEvent("big", 1), DynamoEvent("small", 2))
    full = RefusingUpdates(client, "error")
    broker = Broker()
    broker.answers["big"] = MessageRefused("too large: " + "é" * 1000)
    now = [1000.0]
    broken = DynamoTable(table.name, client=full, source="shop", shards=2)
    relay = DynamoRelay(broken, broker, attempts_max=2, now_s=lambda: now[0])
    assert await relay.tick() == 1
    now[0] += RETRIES.cap_s
    assert await relay.tick() == 0
    [dead] = await relay.list_dead()
    assert (dead.message.topic, dead.refused, dead.error) == ("big", 2, None)
    assert 490 < full.error_bytes <= 500


async def test_an_event_is_said_to_be_a_dead_letter_when_it_is_one(
    table: DynamoTable, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    publish(table, "k1", DynamoEvent("bad", 1))
    broker = Broker()
    broker.answers["bad"] = MessageRefused("too large")
    refusing = DynamoTable(table.name, client=RefusingUpdates(client, "shard"), source="shop", shards=2)
    await DynamoRelay(refusing, broker, attempts_max=1, lease_s=1.0, now_s=lambda: 0.0).tick()
    assert "is a dead letter" not in caplog.text
    relay = DynamoRelay(table, broker, attempts_max=1)
    await relay.tick()
    [dead] = await relay.list_dead()
    assert f"event {dead.message.id} on bad is a dead letter after 1 refusals: too large" in caplog.text


async def test_a_note_that_is_refused_and_an_item_that_is_no_event_stop_nothing_else(
    table: DynamoTable, client: Any
) -> None:
    publish(table, "k1", *(DynamoEvent("bad", number) for number in range(3)), DynamoEvent("good", 1))
    for shard in ("000", "001"):
        item: dict[str, Any] = {"pk": f"event#{shard}", "shard": shard, "place": "0", "event": b"{}", "refused": 0}
        client.put_item(TableName=table.name, Item=write_item({**item, "headers": {}}, "a test"))
    refusing = DynamoTable(table.name, client=RefusingUpdates(client, "refused"), source="shop", shards=2)
    broker = Broker()
    broker.answers["bad"] = MessageRefused("too large")
    assert await DynamoRelay(refusing, broker, batch=1).tick() == 1


async def test_credentials_that_are_away_for_a_moment_do_not_end_a_relay(table: DynamoTable, client: Any) -> None:
    calls = 0

    def away(**_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise NoCredentialsError

    publish(table, "k1", DynamoEvent("t", 1))
    client.meta.events.register("before-call.dynamodb", away)
    broker, stop = Broker(), asyncio.Event()
    running = asyncio.create_task(DynamoRelay(table, broker).run(stop))
    await until(lambda: bool(broker.sent) or running.done())
    stop.set()
    await running
    assert len(broker.sent) == 1


async def test_shards_have_one_relay_at_a_time_and_those_of_a_dead_one_are_taken_over(table: DynamoTable) -> None:
    now = [1000.0]
    brokers = [Broker(), Broker()]
    first, second = (DynamoRelay(table, broker, lease_s=30, now_s=lambda: now[0]) for broker in brokers)
    publish(table, "k1", *(DynamoEvent("t", number) for number in range(8)))
    assert await first.tick() == 8
    publish(table, "k2", DynamoEvent("t", 8))
    assert await second.tick() == 0
    now[0] += 31
    assert await second.tick() == 1
    assert await first.tick() == 0


async def test_what_was_confirmed_and_not_deleted_is_published_again_under_its_id(table: DynamoTable) -> None:
    """A crash in between: the control of the order of both."""
    publish(table, "k1", DynamoEvent("t", 1))
    broker = Broker()
    failing = DynamoTable(table.name, client=NotDeleting(table.client), source="shop", shards=2)
    with pytest.raises(StoreUnavailable):
        await DynamoRelay(failing, broker, lease_s=1, now_s=lambda: 0.0).tick()
    assert await DynamoRelay(table, broker).tick() == 1
    one, two = broker.sent
    assert one.id == two.id


async def test_a_relay_runs_until_it_is_stopped_and_leaves_its_shards(table: DynamoTable, client: Any) -> None:
    broker, stop = Broker(), asyncio.Event()
    running = asyncio.create_task(DynamoRelay(table, broker).run(stop))
    await asyncio.to_thread(publish, table, "k1", DynamoEvent("t", 1))
    await until(lambda: bool(broker.sent))
    stop.set()
    await running
    assert broker.closed
    assert count(client, table.name) == 1, "the key's record, and no lease"
