"""Consumers that cannot work in steps as they are written: refused where they are defined, with the way out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from onefold import AsyncOnefold, Depends, Message, Onefold, Steps, Transaction
from onefold._inbox.consumer import Consumer
from onefold._inbox.handling import Inbox
from onefold.errors import ConfigurationError
from onefold.testing.memory_broker import AsyncMemoryBroker, MemoryBroker


async def plain(given: Message, work: Steps) -> None: ...


async def with_tx(given: Message, tx: Transaction[Any], work: Steps) -> None: ...


async def rates(tx: Transaction[Any]) -> int:
    return 1


async def through_a_dependency(given: Message, work: Steps, rate: Annotated[int, Depends(rates)]) -> None: ...


CLOSED: list[str] = []


async def opened(given: Message) -> AsyncIterator[str]:
    yield "rate"
    CLOSED.append(f"{given.topic} closed")


async def many(given: list[Message], work: Steps) -> None: ...


def on_a_thread(given: Message, work: Steps) -> None: ...


@pytest.mark.parametrize(
    ("handler", "settings", "told"),
    [
        (with_tx, {}, "takes the transaction of the message.*work.phase"),
        (through_a_dependency, {}, "takes the transaction of the message"),
        (many, {"batch": 5}, "has batch=5: each message is a work of its own"),
        (plain, {"order": "latest"}, "has order='latest'.*Choose 'strict'"),
        (plain, {"timeout_s": 0.0}, "timeout_s"),
        (on_a_thread, {}, "is a plain def: those of AsyncOnefold need an async def"),
    ],
)
def test_what_cannot_work_in_steps_is_refused(
    sqlite_path: Path, handler: Any, settings: dict[str, Any], told: str
) -> None:
    once = AsyncOnefold(sqlite_path, source="rides")
    with pytest.raises(ConfigurationError, match=f"'billing'.*{told}"):
        once.consumer("billing", topic="ride.wanted", **settings)(handler)
    assert once.consumers == ()


def test_an_async_handler_of_onefold_is_refused(sqlite_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is an async def: those of Onefold need a plain def"):
        Onefold(sqlite_path, source="rides").consumer("billing", topic="ride.wanted")(plain)


def test_an_inbox_that_cannot_give_steps_is_refused() -> None:
    consumer = Consumer(name="billing", topics=("ride.wanted",), handler=plain)
    with pytest.raises(ConfigurationError, match="run it by the Onefold or AsyncOnefold"):
        Inbox(consumer, "sqlite", draw=lambda: 0.5)


def test_without_a_limit_of_its_own_a_handler_in_steps_takes_as_long_as_it_takes() -> None:
    assert Consumer(name="billing", topics=("t",), handler=plain).limit_s is None
    assert Consumer(name="billing", topics=("t",), handler=plain, timeout_s=300.0, lease_s=10.0).limit_s == 300.0


async def test_the_broker_in_memory_gives_steps(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="rides")
    seen = CLOSED
    seen.clear()

    async def note(given: str) -> str:
        seen.append(given)
        return given

    async def publish(tx: Transaction[Any], rate: str) -> None:
        _ = tx.publish("ride.charged", {"rate": rate})

    @once.consumer("billing", topic="ride.wanted")
    async def bill(given: Message, work: Steps, rate: Annotated[str, Depends(opened)]) -> None:
        assert await work.call("note", note, rate) == "rate"
        await work.finish(publish, rate)

    broker = AsyncMemoryBroker(once)
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    await broker.publish("ride.wanted", {}, headers=trace)
    assert seen == ["rate", "ride.wanted closed"]
    [event] = broker.published
    assert event.headers["traceparent"].startswith("00-" + "a" * 32)
    await once.close()


def test_the_broker_in_memory_gives_steps_to_threads_and_raises_what_they_raise(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, source="rides")

    def fail() -> None:
        raise KeyError("on purpose")

    @once.consumer("billing", topic="ride.wanted")
    def bill(given: Message, work: Steps) -> None:
        work.call("fail", fail)

    with pytest.raises(KeyError):
        MemoryBroker(once).publish("ride.wanted", {})
    once.close()
