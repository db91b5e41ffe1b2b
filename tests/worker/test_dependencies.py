"""Dependencies of handlers: called before it, inside its transaction; closed after that has ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from onefold import AsyncOnefold, Depends, Message, Onefold, Transaction
from onefold._app.base_app import run_flow
from onefold._inbox.failed_messages import list_failed
from onefold._inbox.handler_call import NotCommitted
from onefold.telemetry import Event, Handled
from onefold.testing.memory_broker import AsyncMemoryBroker
from onefold.testing.memory_broker import MemoryBroker as ThreadsBroker
from tests.inbox.backends import Backend, message
from tests.worker.consuming import MemoryBroker, running, until
from tests.worker.test_consumer import consuming

#: What happened, in its order. Each test begins with an empty one.
STORY: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    STORY.clear()


def told(name: str) -> Iterator[str]:
    STORY.append(f"open {name}")
    try:
        yield name
        STORY.append(f"kept {name}")
    except Exception as error:
        STORY.append(f"{type(error).__name__} {name}")
        raise
    finally:
        STORY.append(f"close {name}")


def pool() -> Iterator[str]:
    yield from told("pool")


def client(pool: Annotated[str, Depends(pool)], message: Message) -> Iterator[str]:
    yield from told(f"client of {pool} for {message.id}")


async def async_client(pool: Annotated[str, Depends(pool)], tx: Transaction[Any]) -> AsyncIterator[str]:
    assert tx.connection is not None
    for name in told(f"async client of {pool}"):
        yield name


async def test_they_are_opened_before_the_handler_and_closed_after_commit_the_last_first(backend: Backend) -> None:
    async def handler(
        given: Message,
        tx: Transaction[Any],
        first: Annotated[str, Depends(client)],
        *,
        second: Annotated[str, Depends(async_client)],
        pool: Annotated[str, Depends(pool)],
    ) -> None:
        assert (first, second, pool) == ("client of pool for m1", "async client of pool", "pool")
        await backend.write(tx, given.id)
        tx.after_commit(STORY.append, "committed")
        STORY.append("handler")

    assert isinstance(await backend.deliver(backend.inbox(handler), message()), Handled)
    opened = ["open pool", "open client of pool for m1", "open async client of pool"]
    assert STORY[:5] == [*opened, "handler", "committed"]
    assert [line for line in STORY if line.startswith("close")] == [
        "close async client of pool",
        "close client of pool for m1",
        "close pool",
    ]
    assert await backend.effects() == ["m1"]


async def test_what_is_asked_for_twice_is_called_once_unless_it_is_not_to_be_kept(backend: Backend) -> None:
    def count() -> int:
        STORY.append("count")
        return len(STORY)

    async def asks(given: Message, a: int, b: int, c: int) -> None:
        assert (a, b, c) == (1, 1, 2)
        STORY.append("handler")

    asks.__annotations__.update(
        a=Annotated[int, Depends(count)], b=Annotated[int, Depends(count)], c=Annotated[int, Depends(count, False)]
    )
    assert isinstance(await backend.deliver(backend.inbox(asks), message()), Handled)
    assert STORY == ["count", "count", "handler"]


async def test_a_failure_is_raised_where_they_yield_after_the_rollback(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any], pool: Annotated[str, Depends(pool)]) -> None:
        await backend.write(tx, given.id)
        tx.after_rollback(STORY.append, "rolled back")
        raise RuntimeError("no")

    await backend.deliver(backend.inbox(handler), message())
    assert STORY == ["open pool", "rolled back", "RuntimeError pool", "close pool"]
    assert (await backend.effects(), (await backend.failed_messages())["m1"].reason) == ([], "RuntimeError: no")


async def test_a_commit_that_fails_is_told_where_they_yield(on_postgres: Backend) -> None:
    backend = on_postgres
    await backend.change("ALTER TABLE effects ADD CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")

    async def handler(given: Message, tx: Transaction[Any], pool: Annotated[str, Depends(pool)]) -> None:
        await backend.write(tx, "same")
        await backend.write(tx, "same")

    await backend.deliver(backend.inbox(handler), message())
    assert STORY[1:] == [f"{NotCommitted.__name__} pool", "close pool"]


async def test_one_that_fails_fails_the_message_and_those_before_it_are_closed(backend: Backend) -> None:
    def broken(pool: Annotated[str, Depends(pool)]) -> str:
        raise ValueError("no rates today")

    async def handler(given: Message, found: str) -> None: ...

    handler.__annotations__["found"] = Annotated[str, Depends(broken)]
    await backend.deliver(backend.inbox(handler, dead_letter_on=(ValueError,)), message())
    failed_message = (await backend.failed_messages())["m1"]
    assert (failed_message.state, failed_message.reason) == ("dead", "ValueError: no rates today")
    assert STORY == ["open pool", "ValueError pool", "close pool"]


async def test_what_fails_while_it_is_closed_is_logged_and_the_message_stays_handled(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    def careless() -> Iterator[str]:
        yield ""
        raise RuntimeError("too late")

    async def handler(given: Message, found: str) -> None: ...

    handler.__annotations__["found"] = Annotated[str, Depends(careless)]
    assert isinstance(await backend.deliver(backend.inbox(handler), message()), Handled)
    assert "too late" in caplog.text


def thread_of() -> Iterator[threading.Thread]:
    STORY.append(threading.current_thread())
    yield threading.current_thread()
    STORY.append(threading.current_thread())


async def test_those_of_a_plain_handler_run_on_its_thread(backend: Backend) -> None:
    def handler(given: Message, found: Annotated[Any, Depends(thread_of)]) -> None:
        STORY.append(threading.current_thread())

    broker = MemoryBroker()
    broker.put(message())
    async with running(consuming(backend, broker, backend.consumer(handler))):
        await until(lambda: broker.idle)
        await until(lambda: len(STORY) == 3)
    assert len({*STORY}) == 1
    assert STORY[0] is not threading.current_thread()


async def test_those_of_a_thread_that_is_left_behind_are_closed_when_it_returns(backend: Backend) -> None:
    leave = threading.Event()

    def handler(given: Message, pool: Annotated[str, Depends(pool)]) -> None:
        leave.wait()
        STORY.append("handler")

    broker = MemoryBroker()
    broker.put(message())
    async with running(consuming(backend, broker, backend.consumer(handler, timeout_s=0.05, attempts=1))):
        await until(lambda: broker.idle)
        assert STORY == ["open pool"]
        leave.set()
        await until(lambda: len(STORY) == 4)
    assert STORY == ["open pool", "handler", "HandlerTookTooLong pool", "close pool"]


async def test_those_of_a_handler_that_is_cancelled_are_closed(backend: Backend) -> None:
    entered = asyncio.Event()

    async def handler(given: Message, pool: Annotated[str, Depends(pool)]) -> None:
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(backend.deliver(backend.inbox(handler), message()))
    await entered.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: "close pool" in STORY)
    assert "kept pool" not in STORY


@pytest.mark.parametrize("threads", [False, True])
async def test_the_faces_know_them(sqlite_path: Path, threads: bool) -> None:
    seen: list[Event] = []
    once = AsyncOnefold(sqlite_path, source="shop", listener=seen.append)

    def on_a_thread(given: Message, pool: Annotated[str, Depends(pool)]) -> None: ...

    async def on_the_loop(given: Message, pool: Annotated[str, Depends(pool)]) -> None: ...

    handler: Callable[..., Any] = on_a_thread if threads else on_the_loop
    once.consumer("orders", topic="order.placed")(handler)
    async with once.relaying(), once.consuming():
        async with once.transaction() as tx:
            await tx.publish("order.placed", {})
        await until(lambda: STORY == ["open pool", "kept pool", "close pool"])
    await once.close()


def yields() -> Iterator[int]:
    yield 1


def yields_and_closes() -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield 1


def swallows() -> Iterator[int]:
    with contextlib.suppress(KeyError):
        yield 1


async def yields_async() -> AsyncIterator[int]:
    yield 1


async def swallows_async() -> AsyncIterator[int]:
    with contextlib.suppress(KeyError):
        yield 1


def look_up() -> None:
    raise KeyError("missing")


@pytest.mark.parametrize("opens", [yields, yields_and_closes, swallows, yields_async, swallows_async])
async def test_what_a_handler_raises_keeps_its_traceback(sqlite_path: Path, opens: Callable[..., Any]) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")

    @once.consumer("shipping", topic="order.placed", attempts=1)
    async def ship(
        given: Message, first: Annotated[int, Depends(opens)], last: Annotated[int, Depends(yields)]
    ) -> None:
        look_up()

    with pytest.raises(KeyError) as caught:
        await AsyncMemoryBroker(once).publish("order.placed", {})
    names = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["ship", "look_up"]
    [failed_message] = await run_flow(once, lambda dialect: list_failed(dialect, "shipping"))
    assert "look_up" in failed_message.history[-1]["traceback"]
    await once.close()


def test_so_does_it_on_threads(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, source="shop")

    @once.consumer("shipping", topic="order.placed", attempts=1)
    def ship(given: Message, first: Annotated[int, Depends(yields)]) -> None:
        look_up()

    with pytest.raises(KeyError) as caught:
        ThreadsBroker(once).publish("order.placed", {})
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "look_up"
    once.close()
