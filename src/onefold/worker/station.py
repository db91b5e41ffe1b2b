"""One consumer at work: receive, handle, acknowledge; and run the letters that are due.

Messages of one stream are never handled at the same time in one process: each stream belongs to one of a consumer's
slots, and a slot handles one thing at a time, be it a delivery or a letter. A delivery is acknowledged when what became
of it is committed, and given back when the database cannot say. An outage of broker or database pauses a consumer and
counts as nobody's failure.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, Literal, TypeAlias, TypeVar

from onefold._kernel.effects import Flow
from onefold._kernel.events import ConsumerPaused, ConsumerResumed, Listener, tell
from onefold._kernel.lanes import TaskLane
from onefold._kernel.messages import Delivery
from onefold._kernel.ports import AsyncDatabase, Broker, Subscription
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.errors import BrokerUnavailable, StoreBusy, StoreError
from onefold.inbox.flow import Inbox, Letter
from onefold.inbox.letters import give_up, next_due, take
from onefold.inbox.model import Consumer
from onefold.inbox.retention import reap
from onefold.worker.patience import Patience, either, ended, pause
from onefold.worker.slots import Slot, Slots

T = TypeVar("T")

MakeTransaction: TypeAlias = Callable[[TaskLane[Any]], Transaction[Any]]
_Trouble: TypeAlias = Literal["broker", "handling", "letters"]

#: How many deliveries are at hand for each slot, or transactions' worth of them where they are handled in batches.
PREFETCH: Final = 8
RECEIVE_WAIT_S: Final = 0.5
POLL_S_MIN: Final = 0.05
POLL_S_MAX: Final = 1.0
#: How long a subscription that ends may take for its last acknowledgements.
ACK_S_MAX: Final = 10.0
REAP_EVERY_S: Final = 300.0
BUSY_MAX: Final = 10

_log = logging.getLogger("onefold")


class Station:
    """One consumer at work."""

    def __init__(
        self,
        database: AsyncDatabase[Any],
        broker: Broker,
        consumer: Consumer,
        transaction: MakeTransaction,
        listener: Listener | None,
        threads: ThreadPoolExecutor | None,
    ) -> None:
        call = (
            None if consumer.is_async or threads is None else functools.partial(_on_thread, threads, consumer.handler)
        )
        self.consumer = consumer
        self.turned_at = self.polled_at = time.monotonic()
        self._database = database
        self._broker = broker
        self._inbox = Inbox(consumer, database.dialect, draw=random.random, call=call, listener=listener)
        self._transaction = transaction
        self._listener = listener
        self._slots = Slots(consumer.concurrency)
        #: Everything received and not yet settled, by identity: deliveries are not hashable.
        self._at_hand: dict[int, Delivery] = {}
        self._done: list[Delivery] = []
        self._acks = asyncio.Event()
        self._room = asyncio.Event()
        self._patience = {trouble: Patience() for trouble in ("broker", "handling", "letters")}
        self._troubles: set[_Trouble] = set()
        self._healthy = asyncio.Event()
        self._healthy.set()

    # --- life --------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, grace_s: float) -> None:
        letters = asyncio.create_task(self._guarded(stop, self._letters))
        reaper = asyncio.create_task(self._guarded(stop, self._reap))
        try:
            while not stop.is_set():
                try:
                    subscription = await self._broker.subscribe(self.consumer.name, self.consumer.topics)
                except (BrokerUnavailable, StoreError) as error:
                    await self._pause(stop, "broker", error)
                else:
                    await self._consume(subscription, stop, grace_s)
        finally:
            reaper.cancel()
            await ended([letters], grace_s)
            await ended([reaper], 0.0)

    async def _consume(self, subscription: Subscription, stop: asyncio.Event, grace_s: float) -> None:
        """One subscription, until the end, or until something unforeseen; then it is made anew."""
        leaving, over = asyncio.Event(), asyncio.Event()
        workers = [asyncio.create_task(self._work(slot, subscription, stop, leaving)) for slot in self._slots]
        keeper = asyncio.create_task(self._keep(subscription))
        acker = asyncio.create_task(self._ack(subscription, over))
        try:
            await self._receive(subscription, stop)
        except Exception as error:
            _log.exception("consumer %r: receiving failed", self.consumer.name)
            await self._pause(stop, "broker", error)
        finally:
            leaving.set()
            for slot in self._slots:
                slot.came.set()
            await ended(workers, grace_s)
            over.set()
            self._acks.set()
            await ended([acker], ACK_S_MAX)
            keeper.cancel()
            await ended([keeper], 0.0)
            await self._return(subscription)
            self._done.clear()
            self._at_hand.clear()
            with suppress(BrokerUnavailable):
                await subscription.close()

    async def _guarded(self, stop: asyncio.Event, work: Callable[[asyncio.Event], Flow[None]]) -> None:
        """Whatever fails in the background is tried again, after a pause."""
        patience = Patience()
        while not stop.is_set():
            try:
                await work(stop)
                patience.reset()
            except StoreError as error:
                await self._pause(stop, "letters", error)
            except Exception:
                _log.exception("consumer %r: %s failed", self.consumer.name, work.__name__)
                await pause(stop, patience.next_s())

    # --- deliveries --------------------------------------------------------------------------------------

    async def _receive(self, subscription: Subscription, stop: asyncio.Event) -> None:
        room = PREFETCH * self.consumer.concurrency * self.consumer.batch
        while not stop.is_set():
            self.turned_at = time.monotonic()
            if not self._healthy.is_set():
                await self._return(subscription)
                await pause(stop, self._patience["handling"].next_s())
                self._healthy.set()
            if len(self._at_hand) >= room:
                self._room.clear()
                await either(stop, self._room)
                continue
            try:
                deliveries = await subscription.receive(room - len(self._at_hand), RECEIVE_WAIT_S)
            except BrokerUnavailable as error:
                await self._pause(stop, "broker", error)
                continue
            self._well("broker")
            for delivery in deliveries:
                self._at_hand[id(delivery)] = delivery
                slot = self._slots.of(delivery)
                slot.queue.append(delivery)
                slot.came.set()

    async def _work(self, slot: Slot, subscription: Subscription, stop: asyncio.Event, leaving: asyncio.Event) -> None:
        while not (stop.is_set() or leaving.is_set()):
            if not slot.queue:
                slot.came.clear()
                await slot.came.wait()
                continue
            async with slot.turn:
                if not self._healthy.is_set():
                    await either(leaving, self._healthy)
                if slot.queue and not (stop.is_set() or leaving.is_set()):  # else given back meanwhile
                    await self._handle(slot.taken(self.consumer.batch), subscription)

    async def _handle(self, deliveries: list[Delivery], subscription: Subscription) -> None:
        left = deliveries
        try:
            if len(deliveries) > 1:
                events = await self._insisted(functools.partial(self._inbox.handle_batch, deliveries))
                if events is not None:
                    self._finish(deliveries)
                    left = []
            while left:
                await self._insisted(functools.partial(self._inbox.handle, left[0]))
                self._finish(left[:1])
                left = left[1:]
        except Exception as error:
            self._unwell("handling", error)
            await self._give_back(left, subscription)

    def _finish(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._at_hand.pop(id(delivery), None)
        self._done += deliveries
        self._acks.set()
        self._room.set()
        self._well("handling")

    async def _return(self, subscription: Subscription) -> None:
        """Give back what nobody has begun to handle."""
        await self._give_back([delivery for slot in self._slots for delivery in slot.emptied()], subscription)

    async def _give_back(self, deliveries: Sequence[Delivery], subscription: Subscription) -> None:
        for delivery in deliveries:
            self._at_hand.pop(id(delivery), None)
        self._room.set()
        if deliveries:
            with suppress(BrokerUnavailable):
                await subscription.give_back(deliveries)

    async def _ack(self, subscription: Subscription, over: asyncio.Event) -> None:
        """Acknowledge what is done, until it is over and nothing is left. Cancelled in between, it would lose some."""
        while self._done or not over.is_set():
            await self._acks.wait()
            self._acks.clear()
            done, self._done = self._done, []
            if done:
                try:
                    await subscription.ack(done)
                except BrokerUnavailable:
                    pass  # they come again, and the ledger knows them
                except Exception:
                    _log.exception("consumer %r: acknowledging failed", self.consumer.name)

    async def _keep(self, subscription: Subscription) -> None:
        while True:
            await asyncio.sleep(self._broker.keep_every_s)
            if self._at_hand:
                try:
                    await subscription.keep(list(self._at_hand.values()))
                except BrokerUnavailable:
                    pass
                except Exception:
                    _log.exception("consumer %r: keeping deliveries failed", self.consumer.name)

    # --- letters -----------------------------------------------------------------------------------------

    async def _letters(self, stop: asyncio.Event) -> None:
        """Run what is due; when nothing is, look again soon, and then less and less soon."""
        running: dict[asyncio.Task[None], bool] = {}
        wait_s = POLL_S_MIN
        try:
            while not stop.is_set():
                if not self._healthy.is_set():
                    await either(stop, self._healthy)
                if self._inbox.unfinished:
                    await self._flow(give_up(self._inbox))
                due = await self._flow(next_due(self._inbox))
                found = await self._start(running) if due is not None and due.in_s <= 0 else 0
                self._well("letters")
                wait_s = POLL_S_MIN if found else min(2 * wait_s, POLL_S_MAX)
                if due is not None and due.in_s > 0:
                    wait_s = min(wait_s, max(POLL_S_MIN, due.in_s))
                self.polled_at = time.monotonic()
                if running:
                    await asyncio.wait(running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await pause(stop, wait_s)
        finally:
            await ended(running, None)

    async def _start(self, running: dict[asyncio.Task[None], bool]) -> int:
        """Start as many letters as there is room for, and at most one suspect at a time; how many there were."""
        free = self.consumer.concurrency - len(running)
        taken = await self._flow(take(self._inbox, free)) if free > 0 else []
        letters = [(letter, False) for letter in taken]
        if not any(running.values()):
            taken = await self._flow(take(self._inbox, 1, suspects=True, listener=self._listener))
            letters += [(letter, True) for letter in taken]
        for letter, suspect in letters:
            task = asyncio.create_task(self._run_letter(letter))
            running[task] = suspect
            task.add_done_callback(running.pop)
        return len(letters)

    async def _run_letter(self, letter: Letter) -> None:
        async with self._slots.named(letter.parcel.stream).turn:
            try:
                await self._performed(functools.partial(self._inbox.run_letter, letter))
            except Exception as error:
                self._unwell("handling", error)

    async def _reap(self, stop: asyncio.Event) -> None:
        await self._flow(reap(self._database.dialect, self.consumer))
        await pause(stop, REAP_EVERY_S)

    # --- health ------------------------------------------------------------------------------------------

    def _unwell(self, trouble: _Trouble, error: Exception) -> None:
        """The database or the broker does not take part, or we are wrong: in any case not to be repeated at once."""
        if trouble != "broker":  # without which letters, and what is at hand, can be handled all the same
            self._healthy.clear()
        if not isinstance(error, StoreError | BrokerUnavailable):
            _log.error("consumer %r: %s", self.consumer.name, error, exc_info=error)
        if not self._troubles:
            _log.warning("consumer %r pauses: %s", self.consumer.name, error)
            tell(self._listener, ConsumerPaused(self.consumer.name, f"{type(error).__name__}: {error}"))
        self._troubles.add(trouble)

    def _well(self, where: _Trouble) -> None:
        self._patience[where].reset()
        if not self._troubles:
            return
        # A letter box that can be read says that the database is back, though not that handling works.
        self._troubles -= {where, "handling"} if where == "letters" else {where}
        if not self._troubles:
            _log.warning("consumer %r goes on", self.consumer.name)
            tell(self._listener, ConsumerResumed(self.consumer.name))

    async def _pause(self, stop: asyncio.Event, trouble: _Trouble, error: Exception) -> None:
        self._unwell(trouble, error)
        await pause(stop, self._patience[trouble].next_s())
        if trouble != "broker":
            self._healthy.set()

    async def _insisted(self, flow: Callable[[Transaction[Any]], Flow[T]]) -> T:
        """A lock that others hold (on SQLite there is only one) is worth waiting for, with the delivery in hand."""
        for _ in range(BUSY_MAX):
            try:
                return await self._performed(flow)
            except StoreBusy:
                continue
        return await self._performed(flow)

    async def _performed(self, flow: Callable[[Transaction[Any]], Flow[T]]) -> T:
        lane: TaskLane[Any] = TaskLane(self._database)
        return await run_async(flow(self._transaction(lane)), lane)

    async def _flow(self, flow: Flow[T]) -> T:
        return await run_async(flow, TaskLane(self._database))


async def _on_thread(threads: ThreadPoolExecutor, handler: Callable[..., Any], *arguments: Any) -> Any:
    call = functools.partial(copy_context().run, handler, *arguments)
    return await asyncio.get_running_loop().run_in_executor(threads, call)
