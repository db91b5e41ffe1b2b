"""A strict key that stood still catches up faster than messages arrive: counted in transactions, not in seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from onefold import Depends
from onefold._kernel.messages import Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.transaction import Transaction
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.telemetry import Handled, Parked
from tests.inbox.backends import Backend, message
from tests.worker.consuming import MemoryBroker, running, until

PARKED = 400


class Counting:
    """A database that counts how often a connection is taken: once for each of the inbox's transactions."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.dialect: str = database.dialect
        self.taken = 0

    async def acquire(self) -> Any:
        self.taken += 1
        return await self._database.acquire()

    async def close(self) -> None:
        """It is its owner's to close."""


def version(number: int) -> Message:
    return message(f"k{number:04}", key="k", version=number)


async def test_a_key_that_stood_still_catches_up_in_a_fraction_of_the_transactions(backend: Backend) -> None:
    failing = True
    order: list[int | None] = []

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        if failing and given.version == 2:
            raise RuntimeError("not yet")
        tx.after_commit(order.append, given.version)

    database, broker = Counting(backend.database), MemoryBroker()
    consumer = backend.consumer(handler, order="strict", retry_base_s=0.05, retry_cap_s=0.05, attempts=1000)
    consuming = ConsumerRunner(
        database,
        broker,
        [consumer],
        transaction=lambda executor: OwnedTransaction(executor, backend.outbox.new_buffer),
        listener=backend.events.append,
    )

    def seen(kind: type) -> int:
        return sum(isinstance(event, kind) for event in backend.events)

    async with running(consuming):
        broker.put(version(1), version(2))
        await until(lambda: seen(Handled) == 1)
        before = database.taken
        broker.put(*map(version, range(3, PARKED + 1)))
        await until(lambda: seen(Parked) == PARKED - 2)
        parking = database.taken - before
        before, failing = database.taken, False
        await until(lambda: seen(Handled) == PARKED)
        running_them = database.taken - before
        # And then it is as if nothing had happened.
        broker.put(*map(version, range(PARKED + 1, PARKED + 11)))
        await until(lambda: broker.idle and seen(Handled) == PARKED + 10)
    assert order == list(range(1, PARKED + 11))
    assert (seen(Parked), await backend.failed_messages()) == (PARKED - 2, {})
    # One by one it were a transaction each to park them, and four each to find, start and run them.
    assert parking < PARKED / 4
    assert running_them < PARKED / 4


async def test_what_dependencies_open_for_a_message_is_closed_before_the_next(backend: Backend) -> None:
    """In one go, they would be open for all of it until COMMIT: connections, for a hundred messages."""
    failing, opened = True, 0
    counts: set[int] = set()
    order: list[int | None] = []

    async def connection() -> AsyncIterator[int]:
        nonlocal opened
        opened += 1
        try:
            yield opened
        finally:
            opened -= 1

    async def handler(given: Message, tx: Transaction[Any], count: int) -> None:
        counts.add(count)
        await backend.write(tx, given.id)
        if failing and given.version == 2:
            raise RuntimeError("not yet")
        tx.after_commit(order.append, given.version)

    handler.__annotations__["count"] = Annotated[int, Depends(connection)]
    broker = MemoryBroker()
    consumer = backend.consumer(handler, order="strict", retry_base_s=0.05, retry_cap_s=0.05, attempts=1000)
    consuming = ConsumerRunner(backend.database, broker, [consumer], listener=backend.events.append)
    async with running(consuming):
        broker.put(*map(version, range(1, 9)))
        await until(lambda: sum(isinstance(event, Parked) for event in backend.events) == 6)
        failing = False
        await until(lambda: len(order) == 8)
    assert (order, await backend.failed_messages()) == (list(range(1, 9)), {})
    assert (opened, counts) == (0, {1})


async def test_what_fails_while_a_key_catches_up_has_failed_alone(backend: Backend) -> None:
    bad = {2}
    done: list[int | None] = []

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        if given.version in bad:
            bad.discard(given.version)
            bad.update({30} if given.version == 2 else set())
            raise RuntimeError("as you wish")
        tx.after_commit(done.append, given.version)

    broker = MemoryBroker()
    broker.put(*map(version, range(1, 61)))
    consumer = backend.consumer(handler, order="strict", retry_base_s=0.5, retry_cap_s=0.5)
    async with running(ConsumerRunner(backend.database, broker, [consumer], listener=backend.events.append)):
        await until(lambda: len(done) == 60)
    assert done == list(range(1, 61))
    assert (await backend.effects(), await backend.failed_messages()) == ([f"k{n:04}" for n in range(1, 61)], {})
