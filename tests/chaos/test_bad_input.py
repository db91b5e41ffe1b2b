"""Bad input on the whole path: what cannot be handled is kept where a person finds it, with its reason; what can be
goes on, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._inbox.failed_messages import list_failed
from onefold._inbox.redrive import Filter, redrive
from onefold._inbox.stored_message import FailedMessage
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold._outbox.status_report import Report, discard, report
from onefold.errors import MessageInvalid
from onefold.testing.servers import PrivateNats
from tests.chaos.places import LEASE_S, MARGIN_S, until

LATE_S = LEASE_S + MARGIN_S


class Desk:
    """An application with one consumer, whose handler writes down what it gets and answers what it is told to."""

    def __init__(self, once: AsyncOnefold) -> None:
        self.once = once
        self.seen: list[bytes] = []
        self.answer: Any = None

    def listen(self, *, attempts: int = 15, order: Any = "none") -> None:
        @self.once.consumer("desk", topic="placed", order=order, attempts=attempts, retry_base_s=0.05)
        async def handle(message: Message, tx: Transaction[Any]) -> Any:
            self.seen.append(message.data)
            return self.answer

    async def publish(self, data: Any, key: str | None = None) -> str:
        async with self.once.transaction() as tx:
            return await tx.publish("placed", data, key=key)

    async def failed_messages(self) -> list[FailedMessage]:
        return await run_flow(self.once, lambda dialect: list_failed(dialect, "desk"))

    async def outbox(self) -> Report:
        return await run_flow(self.once, report)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with self.once.relaying(lease_s=LEASE_S, poll_s_max=0.05), self.once.consuming():
            yield

    async def sees(self, *data: bytes) -> None:
        async def seen() -> bool:
            return set(data) <= set(self.seen)

        assert await until(seen, within_s=LATE_S), f"{self.seen} were handled, not {data}"


async def injected(nats: PrivateNats, data: bytes, headers: dict[str, str] | None = None) -> None:
    """What another producer puts on the topic."""
    client = await nats_client.connect(nats.url)
    await client.jetstream().publish("onefold.placed", data, headers=headers)
    await client.close()


@pytest.fixture
async def own_nats() -> AsyncIterator[PrivateNats]:
    with PrivateNats() as server:
        yield server


async def test_a_foreign_message_is_a_dead_letter_and_those_around_it_are_handled(
    own_nats: PrivateNats, sqlite_path: Path
) -> None:
    desk = Desk(AsyncOnefold(str(sqlite_path), source="desk", broker=own_nats.url))
    desk.listen()
    async with desk.at_work():
        await desk.publish(1)
        await desk.sees(b"1")
        await injected(own_nats, b"\x00\xffno envelope")
        await injected(own_nats, b"{}", {"ce-specversion": "1.0", "ce-source": "elsewhere", "ce-type": "placed"})
        envelope = {"specversion": "1.0", "id": "7", "source": "elsewhere", "type": "placed", "data": {"theirs": 7}}
        await injected(own_nats, json.dumps(envelope).encode(), {"content-type": "application/cloudevents+json"})
        await desk.publish(2)
        await desk.sees(b"2", b'{"theirs":7}')

        async def two_letters() -> bool:
            return len(await desk.failed_messages()) == 2

        assert await until(two_letters, within_s=LATE_S)
    failed_messages = {failed_message.data: failed_message for failed_message in await desk.failed_messages()}
    assert failed_messages.keys() == {b"\x00\xffno envelope", b"{}"}
    assert all(
        failed_message.state == "dead" and "'id'" in failed_message.reason
        for failed_message in failed_messages.values()
    )
    assert sorted(desk.seen) == [b"1", b"2", b'{"theirs":7}']
    await desk.once.close()


async def test_an_event_that_is_too_large_for_the_broker_stops_its_key_only_until_a_person_decides(
    own_nats: PrivateNats, sqlite_path: Path
) -> None:
    once = AsyncOnefold(str(sqlite_path), source="desk", broker=own_nats.url, event_bytes_max=2_000_000)
    desk = Desk(once)
    desk.listen()
    with pytest.raises(MessageInvalid, match="event_bytes_max"):
        await desk.publish("x" * 2_000_000)
    async with desk.at_work():
        large = await desk.publish("x" * 1_500_000, key="a")
        await desk.publish(2, key="a")
        await desk.publish(1, key="b")
        await desk.sees(b"1")

        async def refused() -> bool:
            return bool((await desk.outbox()).stopped)

        assert await until(refused, within_s=LATE_S)
        [stopped] = (await desk.outbox()).stopped
        assert (stopped.id, stopped.key) == (large, "a")
        assert stopped.error is not None
        assert "max_payload" in stopped.error
        assert desk.seen == [b"1"]
        assert await run_flow(once, lambda dialect: discard(dialect, [large])) == 1
        await desk.sees(b"2")
    assert desk.seen == [b"1", b"2"]
    await once.close()


async def test_a_handler_that_returns_garbage_makes_dead_letters_that_are_handled_when_it_is_mended(
    sqlite_path: Path,
) -> None:
    desk = Desk(AsyncOnefold(str(sqlite_path), source="desk", broker="local"))
    desk.listen(attempts=2)
    desk.answer = {"status": "ok"}
    async with desk.at_work():
        await desk.publish(1)

        async def dead() -> bool:
            return [failed_message.state for failed_message in await desk.failed_messages()] == ["dead"]

        assert await until(dead, within_s=LATE_S)
        [failed_message] = await desk.failed_messages()
        assert "a handler returns None" in failed_message.reason
        assert desk.seen == [b"1", b"1"]
        desk.answer = None
        await run_flow(desk.once, lambda dialect: redrive(dialect, Filter(consumer="desk"), actor="operator"))

        async def gone() -> bool:
            return not await desk.failed_messages()

        assert await until(gone, within_s=LATE_S)
    assert desk.seen == [b"1", b"1", b"1"]
    await desk.once.close()


async def test_what_nobody_listens_to_on_local_waits_with_its_reason_and_arrives_when_somebody_does(
    sqlite_path: Path,
) -> None:
    desk = Desk(AsyncOnefold(str(sqlite_path), source="desk", broker="local"))
    async with desk.once.relaying(lease_s=LEASE_S, poll_s_max=0.05):
        name = await desk.publish(1, key="a")

        async def refused() -> bool:
            return bool((await desk.outbox()).stopped)

        assert await until(refused, within_s=LATE_S)
        [stopped] = (await desk.outbox()).stopped
        assert stopped.id == name
        assert stopped.error is not None
        assert "no consumer has subscribed to 'placed'" in stopped.error
        desk.listen(order="strict")
        async with desk.once.consuming():
            await desk.sees(b"1")
    assert not (await desk.outbox()).stopped
    await desk.once.close()
