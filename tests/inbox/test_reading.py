"""Messages that no envelope names: what they are called, that none is lost, and that a redrive reads them again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onefold._kernel.events import DeadLettered, Duplicate, Failed, Handled
from onefold._kernel.messages import Delivery, Message, Origin, key_text, received
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError
from onefold.inbox.flow import Inbox
from onefold.inbox.redrive import Filter, job_of, redrive
from tests.inbox.worlds import EPOCH, World, delivery, message

ORIGIN = Origin(broker="nats", subject="shop.order.placed", topic="order.placed", id="shop/7")


def foreign(
    data: bytes = b'{"order": 1}', *, origin: Origin = ORIGIN, redelivered: bool = False, **more: Any
) -> Delivery:
    return received({"shop": "eu"}, data, redelivered=redelivered, receipt=None, origin=origin, **more)


def order_of(given: Delivery) -> str | None:
    return f"order {given.json()['order']}" if given.message is None else None


async def hand(world: World, inbox: Inbox, given: Delivery) -> Any:
    return await world.hand(inbox, inbox.read(given))


async def redriven(world: World, inbox: Inbox) -> list[Any]:
    await world.flow(redrive(world.dialect, Filter(consumer="billing"), actor="ada", per_second=1000))
    await world.hours_pass()
    return [type(event) for event in await world.run_due(inbox)]


async def test_a_letter_without_an_id_keeps_what_its_broker_calls_it(world: World) -> None:
    inbox = world.inbox()
    for redelivered in (False, True):
        event = await hand(world, inbox, foreign(redelivered=redelivered))
        assert isinstance(event, DeadLettered)
        assert event.topic == "order.placed"
    [letter] = (await world.letters()).values()
    assert (letter.topic, letter.origin, letter.headers) == ("order.placed", ORIGIN, {"shop": "eu"})
    await hand(world, inbox, foreign(origin=replace(ORIGIN, id="shop/8")))
    assert len(await world.letters()) == 2, "alike, but another message"


async def test_where_the_broker_has_no_id_a_first_delivery_is_a_letter_of_its_own(world: World) -> None:
    inbox, nameless = world.inbox(), replace(ORIGIN, id=None)
    for tag in ("1", "2"):
        await hand(world, inbox, foreign(origin=nameless, tag=tag))
    assert len(await world.letters()) == 2
    for tag in ("3", "4"):
        await hand(world, inbox, foreign(origin=nameless, tag=tag, redelivered=True))
    assert len(await world.letters()) == 3, "what comes again may be one of them; it comes again as itself"


async def test_a_redrive_reads_again_with_what_the_consumer_knows_now(world: World) -> None:
    await hand(world, world.inbox(), foreign())
    assert await redriven(world, world.inbox()) == [DeadLettered], "nothing new is known"
    [letter] = (await world.letters()).values()
    assert "no CloudEvents attribute 'id'" in letter.reason
    inbox = world.inbox(id_of=order_of)
    assert await redriven(world, inbox) == [Handled]
    assert (await world.effects(), await world.ledger(), await world.letters()) == (["order 1"], ["order 1"], {})
    assert isinstance(await hand(world, inbox, foreign()), Duplicate)


async def test_a_letter_that_is_read_and_fails_goes_on_under_its_own_id(world: World) -> None:
    async def failing(given: Message) -> None:
        raise RuntimeError("no")

    await hand(world, world.inbox(), foreign())
    assert await redriven(world, world.inbox(failing, id_of=order_of, attempts=2)) == [Failed]
    letter = (await world.letters())["order 1"]
    assert (letter.state, letter.failed, letter.started) == ("waiting", 1, 1)
    assert (letter.headers, letter.data, letter.origin) == ({"shop": "eu"}, b'{"order": 1}', ORIGIN)
    assert letter.message is not None
    assert letter.message.source == "nats:shop.order.placed"
    await world.hours_pass()
    assert [type(event) for event in await world.run_due(world.inbox(id_of=order_of))] == [Handled]


@pytest.mark.parametrize("handled", [True, False])
async def test_a_letter_whose_message_was_handled_or_is_kept_under_its_own_id_is_a_duplicate(
    world: World, handled: bool
) -> None:
    async def failing(given: Message) -> None:
        raise RuntimeError("no")

    await hand(world, world.inbox(), foreign())
    later = replace(ORIGIN, id="shop/8")
    await hand(world, world.inbox(None if handled else failing, id_of=order_of, attempts=1), foreign(origin=later))
    assert sorted(await redriven(world, world.inbox(id_of=order_of)), key=str) in (
        [[Duplicate]] if handled else [[Duplicate, Handled]]
    )
    assert (await world.effects(), await world.letters()) == (["order 1"], {})


async def test_a_strict_consumer_reads_versions_again_and_keeps_their_order(world: World) -> None:
    versions = {"ce-sequence": "2", "ce-sequenceepoch": str(EPOCH), "ce-partitionkey": "acme", "ce-source": "shop"}
    given = received({**versions, "ce-type": "order.placed"}, b'{"order": 2}', redelivered=False, receipt=None)
    await hand(world, world.inbox(order="strict"), given)
    inbox = world.inbox(order="strict", id_of=order_of)
    job = await world.flow(redrive(world.dialect, Filter(consumer="billing"), actor="ada", per_second=1000))
    await world.hours_pass()
    await world.run_due(inbox)
    assert await world.effects() == [], "its predecessor is waited for"
    await world.deliver(inbox, message("order 1", key="acme", version=1))
    await world.run_due(inbox)
    assert world.calls == ["order 1", "order 2"]
    assert (await world.flow(job_of(world.dialect, job.id))).waiting == 0


async def test_a_letter_of_an_earlier_release_is_read_for_the_consumers_one_topic(world: World) -> None:
    await hand(world, world.inbox(), foreign())
    await world.change("UPDATE onefold_letter SET envelope = '{}', topic = NULL")
    assert await redriven(world, world.inbox(id_of=order_of)) == [Handled]
    assert await world.effects() == ["order 1"]


async def test_id_of_is_asked_for_every_message_and_none_keeps_its_own_id(world: World) -> None:
    inbox = world.inbox(id_of=lambda given: "theirs" if given.message and given.message.id == "fresh" else None)
    for name in ("fresh", "m1"):
        assert isinstance(await hand(world, inbox, delivery(message(name))), Handled)
    assert await world.effects() == ["m1", "theirs"]


@pytest.mark.parametrize(("given", "reason"), [(7, "it returned 7"), ("", "it returned ''"), (None, "'id'")])
async def test_an_id_that_is_none_makes_a_dead_letter_that_says_so(world: World, given: Any, reason: str) -> None:
    assert isinstance(await hand(world, world.inbox(id_of=lambda _: given), foreign()), DeadLettered)
    [letter] = (await world.letters()).values()
    assert reason in letter.reason


async def test_what_id_of_returns_must_be_an_id_that_can_be_kept(world: World) -> None:
    for name in ("x" * 600, "a\0b", "half \ud800"):
        assert isinstance(await hand(world, world.inbox(id_of=lambda _, n=name: n), foreign()), DeadLettered)
        assert isinstance(await hand(world, world.inbox(id_of=lambda _, n=name: n), delivery(message())), DeadLettered)
    assert world.calls == []


def test_id_of_must_be_a_plain_function(world: World) -> None:
    async def later(given: Delivery) -> str:
        return "1"

    for wrong in (later, "order"):
        with pytest.raises(ConfigurationError, match=r"id_of=.*plain function"):
            world.consumer(id_of=wrong)


async def test_the_handler_of_a_batch_gets_plain_json_too(world: World) -> None:
    seen: list[str] = []

    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        seen.extend(one.id for one in given)

    inbox = world.inbox(handler, batch=10, id_of=order_of)
    given = [foreign(b'{"order": %d}' % number, origin=replace(ORIGIN, id=str(number))) for number in (1, 2, 1)]
    lane, tx = world.lane()
    events = await run_async(inbox.handle_batch([inbox.read(one) for one in given], tx), lane)
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
