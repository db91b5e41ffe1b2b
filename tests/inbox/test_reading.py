"""Messages that no envelope names: what they are called, that none is lost, and that a redrive reads them again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onefold._inbox.handling import Inbox
from onefold._inbox.redrive import Filter, job_of, redrive
from onefold._kernel.messages import Delivery, Message, Origin, key_text, read_delivery
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError
from onefold.telemetry import DeadLettered, Duplicate, Failed, Handled
from tests.inbox.backends import EPOCH, Backend, delivery, message

ORIGIN = Origin(broker="nats", subject="shop.order.placed", topic="order.placed", id="shop/7")


def foreign(
    data: bytes = b'{"order": 1}', *, origin: Origin = ORIGIN, redelivered: bool = False, **more: Any
) -> Delivery:
    return read_delivery({"shop": "eu"}, data, redelivered=redelivered, receipt=None, origin=origin, **more)


def order_of(given: Delivery) -> str | None:
    return f"order {given.json()['order']}" if given.message is None else None


async def hand(backend: Backend, inbox: Inbox, given: Delivery) -> Any:
    return await backend.hand(inbox, inbox.read(given))


async def redriven(backend: Backend, inbox: Inbox) -> list[Any]:
    await backend.flow(redrive(backend.dialect, Filter(consumer="billing"), actor="ada", per_second=1000))
    await backend.hours_pass()
    return [type(event) for event in await backend.run_due(inbox)]


async def test_a_failed_message_without_an_id_keeps_what_its_broker_calls_it(backend: Backend) -> None:
    inbox = backend.inbox()
    for redelivered in (False, True):
        event = await hand(backend, inbox, foreign(redelivered=redelivered))
        assert isinstance(event, DeadLettered)
        assert event.topic == "order.placed"
    [failed_message] = (await backend.failed_messages()).values()
    assert (failed_message.topic, failed_message.origin, failed_message.headers) == (
        "order.placed",
        ORIGIN,
        {"shop": "eu"},
    )
    await hand(backend, inbox, foreign(origin=replace(ORIGIN, id="shop/8")))
    assert len(await backend.failed_messages()) == 2, "alike, but another message"


async def test_where_the_broker_has_no_id_a_first_delivery_is_a_failed_message_of_its_own(backend: Backend) -> None:
    inbox, nameless = backend.inbox(), replace(ORIGIN, id=None)
    for tag in ("1", "2"):
        await hand(backend, inbox, foreign(origin=nameless, tag=tag))
    assert len(await backend.failed_messages()) == 2
    for tag in ("3", "4"):
        await hand(backend, inbox, foreign(origin=nameless, tag=tag, redelivered=True))
    assert len(await backend.failed_messages()) == 3, "what comes again may be one of them; it comes again as itself"


async def test_a_redrive_reads_again_with_what_the_consumer_knows_now(backend: Backend) -> None:
    await hand(backend, backend.inbox(), foreign())
    assert await redriven(backend, backend.inbox()) == [DeadLettered], "nothing new is known"
    [failed_message] = (await backend.failed_messages()).values()
    assert "no CloudEvents attribute 'id'" in failed_message.reason
    inbox = backend.inbox(id_of=order_of)
    assert await redriven(backend, inbox) == [Handled]
    assert (await backend.effects(), await backend.ledger(), await backend.failed_messages()) == (
        ["order 1"],
        ["order 1"],
        {},
    )
    assert isinstance(await hand(backend, inbox, foreign()), Duplicate)


async def test_a_failed_message_that_is_read_and_fails_goes_on_under_its_own_id(backend: Backend) -> None:
    async def failing(given: Message) -> None:
        raise RuntimeError("no")

    await hand(backend, backend.inbox(), foreign())
    assert await redriven(backend, backend.inbox(failing, id_of=order_of, attempts=2)) == [Failed]
    failed_message = (await backend.failed_messages())["order 1"]
    assert (failed_message.state, failed_message.failed, failed_message.started) == ("waiting", 1, 1)
    assert (failed_message.headers, failed_message.data, failed_message.origin) == (
        {"shop": "eu"},
        b'{"order": 1}',
        ORIGIN,
    )
    assert failed_message.message is not None
    assert failed_message.message.source == "nats:shop.order.placed"
    await backend.hours_pass()
    assert [type(event) for event in await backend.run_due(backend.inbox(id_of=order_of))] == [Handled]


@pytest.mark.parametrize("handled", [True, False])
async def test_a_failed_message_whose_message_was_handled_or_is_kept_under_its_own_id_is_a_duplicate(
    backend: Backend, handled: bool
) -> None:
    async def failing(given: Message) -> None:
        raise RuntimeError("no")

    await hand(backend, backend.inbox(), foreign())
    later = replace(ORIGIN, id="shop/8")
    await hand(backend, backend.inbox(None if handled else failing, id_of=order_of, attempts=1), foreign(origin=later))
    assert sorted(await redriven(backend, backend.inbox(id_of=order_of)), key=str) in (
        [[Duplicate]] if handled else [[Duplicate, Handled]]
    )
    assert (await backend.effects(), await backend.failed_messages()) == (["order 1"], {})


async def test_a_strict_consumer_reads_versions_again_and_keeps_their_order(backend: Backend) -> None:
    versions = {"ce-sequence": "2", "ce-sequenceepoch": str(EPOCH), "ce-partitionkey": "acme", "ce-source": "shop"}
    given = read_delivery({**versions, "ce-type": "order.placed"}, b'{"order": 2}', redelivered=False, receipt=None)
    await hand(backend, backend.inbox(order="strict"), given)
    inbox = backend.inbox(order="strict", id_of=order_of)
    job = await backend.flow(redrive(backend.dialect, Filter(consumer="billing"), actor="ada", per_second=1000))
    await backend.hours_pass()
    await backend.run_due(inbox)
    assert await backend.effects() == [], "its predecessor is waited for"
    await backend.deliver(inbox, message("order 1", key="acme", version=1))
    await backend.run_due(inbox)
    assert backend.calls == ["order 1", "order 2"]
    assert (await backend.flow(job_of(backend.dialect, job.id))).waiting == 0


async def test_a_failed_message_of_an_earlier_release_is_read_for_the_consumers_one_topic(backend: Backend) -> None:
    await hand(backend, backend.inbox(), foreign())
    await backend.change("UPDATE onefold_letter SET envelope = '{}', topic = NULL")
    assert await redriven(backend, backend.inbox(id_of=order_of)) == [Handled]
    assert await backend.effects() == ["order 1"]


async def test_id_of_is_asked_for_every_message_and_none_keeps_its_own_id(backend: Backend) -> None:
    inbox = backend.inbox(id_of=lambda given: "theirs" if given.message and given.message.id == "fresh" else None)
    for name in ("fresh", "m1"):
        assert isinstance(await hand(backend, inbox, delivery(message(name))), Handled)
    assert await backend.effects() == ["m1", "theirs"]


@pytest.mark.parametrize(("given", "reason"), [(7, "it returned 7"), ("", "it returned ''"), (None, "'id'")])
async def test_an_id_that_is_none_makes_a_dead_letter_that_says_so(backend: Backend, given: Any, reason: str) -> None:
    assert isinstance(await hand(backend, backend.inbox(id_of=lambda _: given), foreign()), DeadLettered)
    [failed_message] = (await backend.failed_messages()).values()
    assert reason in failed_message.reason


async def test_what_id_of_returns_must_be_an_id_that_can_be_kept(backend: Backend) -> None:
    for name in ("x" * 600, "a\0b", "half \ud800"):
        assert isinstance(await hand(backend, backend.inbox(id_of=lambda _, n=name: n), foreign()), DeadLettered)
        assert isinstance(
            await hand(backend, backend.inbox(id_of=lambda _, n=name: n), delivery(message())), DeadLettered
        )
    assert backend.calls == []


def test_id_of_must_be_a_plain_function(backend: Backend) -> None:
    async def later(given: Delivery) -> str:
        return "1"

    for wrong in (later, "order"):
        with pytest.raises(ConfigurationError, match=r"id_of=.*plain function"):
            backend.consumer(id_of=wrong)


async def test_the_handler_of_a_batch_gets_plain_json_too(backend: Backend) -> None:
    seen: list[str] = []

    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        seen.extend(one.id for one in given)

    inbox = backend.inbox(handler, batch=10, id_of=order_of)
    given = [foreign(b'{"order": %d}' % number, origin=replace(ORIGIN, id=str(number))) for number in (1, 2, 1)]
    executor, tx = backend.executor()
    events = await run_async(inbox.handle_batch([inbox.read(one) for one in given], tx), executor)
    assert events is not None
    assert [type(event) for event in events] == [Handled, Handled, Duplicate]
    assert sorted(seen) == ["order 1", "order 2"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"acme", "acme"),
        ("é".encode(), "é"),
        (b"", ""),
        (b"\x00\x00\x01", "000001"),
        (b"\xff", "ff"),
        (b"k" * 512, "k" * 512),
    ],
)
def test_a_record_key_is_text_or_hexadecimal(raw: bytes, text: str) -> None:
    assert key_text(raw) == text


def test_a_record_key_of_any_length_names_a_stream() -> None:
    long = [key_text(b"k" * 10_000), key_text(b"k" * 9_999), key_text(b"\xff" * 10_000)]
    assert len(set(long)) == 3
    assert max(map(len, long)) <= 512
