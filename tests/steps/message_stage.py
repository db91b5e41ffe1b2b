"""A consumer whose handler works in steps, in both colours, over the database of works: deliveries are handed to it one
by one, and what waits is due when the test says so."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onefold import AsyncOnefold, Message, Onefold, StepOptions, Steps, Transaction
from onefold._inbox.failed_messages import list_failed, take
from onefold._inbox.handling import Inbox
from onefold._inbox.stored_message import FailedMessage
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.messages import Delivery
from onefold._kernel.runners import run, run_async
from onefold._kernel.telemetry.consumer_events import InboxEvent
from tests.steps.places import Place, insert

__all__ = ["Stage", "delivery", "message", "stage_at"]


def message(name: str = "m1", *, version: int | None = None, epoch: int = 1, source: str = "shop") -> Message:
    return Message(
        id=name, source=source, topic="ride.wanted", data=b"{}", key=None if version is None else "k", version=version,
        epoch=None if version is None else epoch, headers={"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
    )  # fmt: skip


def delivery(given: Message, *, redelivered: bool = False) -> Delivery:
    return Delivery(data=given.data, headers={"ce-id": given.id}, message=given, redelivered=redelivered)


class Stage:
    """What tests of messages in steps share. `during` is called in each charge, and may raise; so is `between`, behind
    the charge, and `after`, behind the end."""

    def __init__(self, once: Any, place: Place, **settings: Any) -> None:
        self.once = once
        self.place = place
        self.asynchronous = isinstance(once, AsyncOnefold)
        self.runs: list[str] = []
        #: What the processor was asked for: message and key.
        self.charges: list[tuple[str, str]] = []
        self.during: Callable[[], object] = _nothing
        self.between: Callable[[], object] = _nothing
        self.after: Callable[[], object] = _nothing
        self.finishes = True
        self.charge_step: str | StepOptions = "charge"
        self.events: list[Any] = []
        once.consumer("billing", topic="ride.wanted", **settings)(
            self.handle_async if self.asynchronous else self.handle
        )
        self.inbox = self.another()

    def another(self, name: str = "billing") -> Inbox:
        """The consumer as another process has it."""
        [consumer] = [each for each in self.once.consumers if each.name == name]
        return Inbox(
            consumer,
            self.place.database.dialect,
            draw=random.random,
            listener=self.events.append,
            steps=self.once._message_steps(),
        )

    # --- the handler -----------------------------------------------------------------------------------------

    def handle(self, given: Message, work: Steps) -> None:
        self.runs.append(given.id)
        work.phase("create", insert, f"{given.id} created")
        charge: Any = work.call(self.charge_step, self.charge, given.id, work.derive("charge"))
        self.between()
        if self.finishes:
            work.finish(insert, f"{given.id} paid {charge}")
        self.after()

    async def handle_async(self, given: Message, work: Steps) -> None:
        self.runs.append(given.id)
        await work.phase("create", insert_async, f"{given.id} created")
        charge: Any = await work.call(self.charge_step, self.charge_async, given.id, work.derive("charge"))
        await _given(self.between())
        if self.finishes:
            await work.finish(insert_async, f"{given.id} paid {charge}")
        self.after()

    def charge(self, name: str, key: str) -> int:
        self.charges.append((name, key))
        self.during()
        return 500

    async def charge_async(self, name: str, key: str) -> int:
        self.charges.append((name, key))
        await _given(self.during())
        return 500

    # --- deliveries ------------------------------------------------------------------------------------------

    def perform(self, flow: Callable[[Any], Any]) -> Any:
        """Run the flow that is made of a transaction; to be awaited where the handler is."""
        if self.asynchronous:
            loop_executor: TaskExecutor[Any] = TaskExecutor(self.once._database)
            return run_async(flow(self.once._new_transaction(loop_executor)), loop_executor)
        executor: ThreadExecutor[Any] = ThreadExecutor(self.once._database)
        return run(flow(self.once._new_transaction(executor)), executor)

    def hand(self, given: Message | None = None, *, redelivered: bool = False, inbox: Inbox | None = None) -> Any:
        """Hand a delivery over; to be awaited in the middle of an async handler."""
        handed = delivery(given or message(), redelivered=redelivered)
        return self.perform(lambda tx: (inbox or self.inbox).handle(handed, tx))

    def deliver(self, given: Message | None = None, *, redelivered: bool = False) -> InboxEvent:
        event: InboxEvent = self._wait(functools.partial(self.hand, given, redelivered=redelivered))
        return event

    def run_due(self) -> list[InboxEvent]:
        """Run every failed message that waits, and what becomes due by that, until none is."""
        self.hours_pass()
        events: list[InboxEvent] = []
        while found := [
            *self.place.flow(take(self.inbox, 100)),
            *self.place.flow(take(self.inbox, 1, suspects=True, listener=self.events.append)),
        ]:
            events += [self._wait(functools.partial(self.perform, _running(self.inbox, each))) for each in found]
        return events

    def _wait(self, make: Callable[[], Any]) -> Any:
        if not self.asynchronous:
            return make()

        async def wait() -> Any:
            return await make()

        return _run_here(wait())

    def hours_pass(self) -> None:
        """What waits for its time is due; leases run on."""
        self.place.change(
            "UPDATE onefold_letter SET due_at = now() - interval '1 second' WHERE due_at IS NOT NULL"
            if self.place.is_postgres
            else "UPDATE onefold_letter SET due_at_ms = 1 WHERE due_at_ms IS NOT NULL"
        )

    # --- what is left ----------------------------------------------------------------------------------------

    def failed(self) -> dict[str, FailedMessage]:
        found = self.place.flow(list_failed(self.place.database.dialect, "billing"))
        return {each.id: each for each in found}

    def ledger(self) -> list[str]:
        return [name for (name,) in self.place.rows("SELECT message_id FROM onefold_inbox ORDER BY message_id")]

    def left(self) -> tuple[int, int, int]:
        """Works, steps and failed messages."""
        return self.place.works_left(), len(self.place.steps_left()), len(self.failed())


async def insert_async(tx: Transaction[Any], name: str) -> str:
    if "asyncpg" in type(tx.connection).__module__:
        await tx.connection.execute("INSERT INTO effects VALUES ($1)", name)
    else:
        await tx.connection.execute("INSERT INTO effects VALUES (?)", (name,))
    _ = tx.publish("ride.written", {"name": name})
    return name


@contextmanager
def stage_at(place: Place, *, asynchronous: bool, **settings: Any) -> Iterator[Stage]:
    """The tests themselves are plain: what is async runs on a loop of its own, to its end."""
    if not asynchronous:
        once = Onefold(place.address, source="rides")
        yield Stage(once, place, **settings)
        once.close()
        return
    with asyncio.Runner() as runner:
        _RUNNERS.append(runner)
        try:
            async_once = AsyncOnefold(place.address, source="rides")
            yield Stage(async_once, place, **settings)
            runner.run(async_once.close())
        finally:
            _RUNNERS.pop()


_RUNNERS: list[asyncio.Runner] = []


def _run_here(work: Any) -> Any:
    return _RUNNERS[-1].run(work)


def _running(inbox: Inbox, each: FailedMessage) -> Callable[[Any], Any]:
    return lambda tx: inbox.run_failed(each, tx)


def _nothing() -> None:
    """Nothing is in its way."""


async def _given(answer: Any) -> None:
    if asyncio.iscoroutine(answer):
        await answer
