"""What foreign producers put on a topic: whatever it is, the consumer goes on, and nothing of it is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onefold import Message, Transaction
from onefold._inbox.redrive import Filter, redrive
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.brokers import Delivery
from onefold.testing.servers import GivenKafka, PrivateKafka
from tests.inbox.backends import Backend, message, sqlite_backend
from tests.worker.consuming import running, until
from tests.worker.foreign import BROKERS, Elsewhere

STRUCTURED = {"content-type": "application/cloudevents+json"}
NAMED = '"specversion": "1.0", "source": "elsewhere", "type": "order.placed"'

#: What a reader stumbles over, and what it is.
ODD = {
    "half a character in the data": f'{{{NAMED}, "id": "1", "data": "\\ud800"}}'.encode(),
    "half a character as text": f'{{{NAMED}, "id": "2", "datacontenttype": "text/plain", "data": "\\ud800"}}'.encode(),
    "half a character in the id": f'{{{NAMED}, "id": "\\ud800"}}'.encode(),
    "brackets, 100 kB deep": b"[" * 100_000,
    "data 90 kB deep": f'{{{NAMED}, "id": "3", "data": {"[" * 45_000}{"]" * 45_000}}}'.encode(),
    "a number of 10,000 digits": f'{{{NAMED}, "id": "4", "data": {"9" * 10_000}}}'.encode(),
    "no text at all": b"\xff\xfe\x00",
}


@pytest.fixture(params=list(BROKERS))
async def elsewhere(request: pytest.FixtureRequest) -> AsyncIterator[Elsewhere]:
    async with BROKERS[request.param](request.getfixturevalue(request.param)) as place:
        yield place


@pytest.fixture
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    async with sqlite_backend(tmp_path_factory.mktemp("foreign") / "onefold.db") as backend:
        yield backend


async def test_a_message_that_cannot_be_read_is_a_dead_letter_and_those_behind_it_are_handled(
    elsewhere: Elsewhere, backend: Backend
) -> None:
    broker = elsewhere.broker()
    await broker.open()
    await (await broker.subscribe("billing", ["order.placed"])).close()
    for data in ODD.values():
        await elsewhere.produce("order.placed", data, STRUCTURED)
    assert await broker.publish([message("behind them")]) == [None]
    async with running(ConsumerRunner(backend.database, broker, [backend.consumer()])):

        async def all_done() -> bool:
            # Not their number: a producer that is not answered in time sends a message twice.
            found = {failed_message.data for failed_message in (await backend.failed_messages()).values()}
            return found == set(ODD.values()) and backend.calls == ["behind them"]

        await until(all_done)
    assert {failed_message.state for failed_message in (await backend.failed_messages()).values()} == {"dead"}


def order_of(delivery: Delivery) -> str:
    return f"order {delivery.json()['order']}"


ORDERS = [b'{"order": 1}', b'{"order": 2}', b'{"order": 1}']


async def test_messages_without_an_id_are_a_dead_letter_each_and_handled_once_the_consumer_knows_where_it_is(
    elsewhere: Elsewhere, backend: Backend
) -> None:
    broker = elsewhere.broker()
    await broker.open()
    await (await broker.subscribe("billing", ["order.placed"])).close()
    for data in ORDERS:
        await elsewhere.produce("order.placed", data, {"shop": "eu"})
    async with running(ConsumerRunner(backend.database, broker, [backend.consumer()])):

        async def all_kept() -> bool:
            return len(await backend.failed_messages()) == len(ORDERS)

        await until(all_kept)
    failed_messages = list((await backend.failed_messages()).values())
    assert sorted(failed_message.data for failed_message in failed_messages) == sorted(ORDERS), (
        "none is lost, though two are alike"
    )
    for failed_message in failed_messages:
        assert (failed_message.state, failed_message.topic) == ("dead", "order.placed")
        assert failed_message.headers["shop"] == "eu"
        assert failed_message.origin.subject.endswith("order.placed")
    native = {failed_message.origin.id for failed_message in failed_messages}
    assert native == {None} if elsewhere.kind == "rabbitmq" else len(native - {None}) == len(ORDERS)

    async with running(ConsumerRunner(backend.database, elsewhere.broker(), [backend.consumer(id_of=order_of)])):
        job = await backend.flow(redrive(backend.dialect, Filter(consumer="billing"), actor="ada", per_second=1000))
        assert job.failed_messages == len(ORDERS)

        async def all_gone() -> bool:
            return not await backend.failed_messages()

        await until(all_gone)
    assert await backend.effects() == ["order 1", "order 2"], "each once"


async def test_a_foreign_producers_plain_json_is_handled_where_id_of_says_what_it_is_called(
    elsewhere: Elsewhere, backend: Backend
) -> None:
    seen: list[Message] = []

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        seen.append(given)
        await backend.write(tx, given.id)

    broker = elsewhere.broker()
    await broker.open()
    await (await broker.subscribe("billing", ["order.placed"])).close()
    await elsewhere.produce("order.placed", b'{"order": 1}', {"shop": "eu"}, key=b"acme")
    await elsewhere.produce("order.placed", b'{"no": "order"}')
    await elsewhere.produce("order.placed", b'{"order": 2}', key=b"\x00\x01")
    assert await broker.publish([message("ours", data=b'{"order": 3}')]) == [None]
    async with running(ConsumerRunner(backend.database, broker, [backend.consumer(handler, id_of=order_of)])):

        async def all_done() -> bool:
            return len(await backend.ledger()) == 3 and len(await backend.failed_messages()) == 1

        await until(all_done)
    first, second, third = sorted(seen, key=lambda given: given.id)
    assert (first.id, first.topic, first.json()) == ("order 1", "order.placed", {"order": 1})
    assert first.source.startswith(f"{elsewhere.kind}:")
    assert first.headers["shop"] == "eu"
    assert (first.key, second.key) == (("acme", "0001") if elsewhere.kind == "kafka" else (None, None))
    assert (third.id, third.source) == ("order 3", "shop"), "id_of is asked for every message"
    [failed_message] = (await backend.failed_messages()).values()
    assert failed_message.reason == "id_of of consumer 'billing' failed: KeyError: 'order'"


@pytest.mark.parametrize("name", ["nats", "rabbitmq"])
async def test_an_id_in_the_brokers_own_way_is_the_native_id(
    name: str, request: pytest.FixtureRequest, backend: Backend
) -> None:
    async with BROKERS[name](request.getfixturevalue(name)) as elsewhere:
        broker = elsewhere.broker()
        await broker.open()
        await (await broker.subscribe("billing", ["order.placed"])).close()
        await elsewhere.produce("order.placed", b"1", message_id="their-id")
        async with running(
            ConsumerRunner(backend.database, broker, [backend.consumer(id_of=lambda delivery: delivery.origin.id)])
        ):

            async def handled() -> bool:
                return await backend.ledger() == ["their-id"]

            await until(handled)


async def test_kafkas_record_key_is_the_key_of_a_cloud_event_that_names_none(
    kafka: PrivateKafka | GivenKafka, backend: Backend
) -> None:
    seen: list[str | None] = []

    async def handler(given: Message) -> None:
        seen.append(given.key)

    async with BROKERS["kafka"](kafka) as elsewhere:
        broker = elsewhere.broker()
        await broker.open()
        await (await broker.subscribe("billing", ["order.placed"])).close()
        named = {"ce_specversion": "1.0", "ce_source": "elsewhere", "ce_type": "order.placed"}
        await elsewhere.produce("order.placed", b"1", {**named, "ce_id": "1"}, key=b"record")
        await elsewhere.produce("order.placed", b"2", {**named, "ce_id": "2", "ce_partitionkey": "own"}, key=b"record")
        async with running(ConsumerRunner(backend.database, broker, [backend.consumer(handler)])):

            async def both() -> bool:
                return len(seen) == 2

            await until(both)
    assert sorted(map(str, seen)) == ["own", "record"]


async def test_the_same_id_from_two_sources_is_handled_for_both(elsewhere: Elsewhere, backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, f"{given.source} {given.id}")

    broker = elsewhere.broker()
    await broker.open()
    await (await broker.subscribe("billing", ["order.placed"])).close()
    for source in ("/shop/eu", "/shop/us", "/shop/eu"):
        event: dict[str, Any] = {
            "specversion": "1.0",
            "id": "1001",
            "source": source,
            "type": "order.placed",
            "data": {},
        }
        await elsewhere.produce("order.placed", json.dumps(event).encode(), STRUCTURED)
    assert await broker.publish([message("behind them")]) == [None]
    async with running(ConsumerRunner(backend.database, broker, [backend.consumer(handler)])):

        async def all_done() -> bool:
            return len(await backend.ledger()) == 3

        await until(all_done)
    assert await backend.effects() == ["/shop/eu 1001", "/shop/us 1001", "shop behind them"]
    assert await backend.failed_messages() == {}
