"""One consumer at work: receive, handle, acknowledge; and run the failed messages that are due.

Messages of one stream are never handled at the same time in one process: each stream belongs to one of a consumer's
partitions, and a partition handles one delivery or failed message at a time. A delivery is acknowledged when its
outcome is committed, and given back when the outcome is unknown. An outage of broker or database pauses a consumer and
counts as no failure of a message.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from onefold._inbox.catching_up import RUN_MAX
from onefold._inbox.consumer import Consumer
from onefold._inbox.handling import Inbox
from onefold._inbox.others_topics import dropped_problem
from onefold._inbox.retention import reap
from onefold._inbox.stepped_handling import StepsForMessages
from onefold._inbox.stored_message import topic_sent_to
from onefold._kernel.foreign_cancellations import Interrupted, resist
from onefold._kernel.messages import Delivery
from onefold._kernel.ports import AsyncDatabase, Broker, Subscription
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import Failed
from onefold._kernel.telemetry.every_event import Event
from onefold._kernel.tracing import tracer_of
from onefold._kernel.wakeup_signals import Wakeups
from onefold._worker.backoff_timer import pause
from onefold._worker.cancellation import cancel_task, either, join_tasks
from onefold._worker.consumer_health import ConsumerHealth
from onefold._worker.failed_message_loop import FailedMessageLoop
from onefold._worker.flow_runner import FlowRunner, MakeTransaction
from onefold._worker.halt import Halt
from onefold._worker.handler_calls import HandlerCalls
from onefold._worker.keeping_for_others import KeepingForOthers
from onefold._worker.membership import Membership
from onefold._worker.partitions import Partition, Partitions, delivery_stream
from onefold._worker.supervision import repeat, supervise
from onefold.errors import BrokerUnavailable, StoreError

T = TypeVar("T")

#: How many deliveries are prefetched for each partition, or how many batches where they are handled in batches.
PREFETCH: Final = 8
RECEIVE_WAIT_S: Final = 0.5
#: How long the loop that receives waits without a turn, however long handlers take.
TURN_S_MAX: Final = 2.0
#: How long a subscription that ends may take for its last acknowledgements.
ACK_S_MAX: Final = 10.0
REAP_EVERY_S: Final = 300.0

_log = logging.getLogger("onefold.consumer")


class ConsumerWorker:
    """One consumer at work."""

    def __init__(
        self,
        database: AsyncDatabase[Any],
        broker: Broker,
        consumer: Consumer,
        transaction: MakeTransaction,
        listener: Listener | None,
        calls: HandlerCalls,
        membership: Membership,
        *,
        steps: StepsForMessages | None = None,
        wakeups: Wakeups | None = None,
    ) -> None:
        self.consumer = consumer
        self._calls = calls
        self._membership = membership
        self._turned_at = time.monotonic()
        self._database = database
        self._broker = broker
        self._inbox = Inbox(
            consumer,
            database.dialect,
            draw=random.random,
            perform=self._calls,
            listener=self._forward,
            steps=steps,
            tracer=tracer_of(listener),
            others=membership.others,
        )
        self._runner = FlowRunner(database, transaction, self._calls.limit_hook)
        self._listener = listener
        self._partitions = Partitions(consumer.concurrency)
        #: Received, and not known yet whose they are.
        self._unsifted: list[Delivery] = []
        #: Everything received and not yet settled, by identity: deliveries are not hashable.
        self._unsettled: dict[int, Delivery] = {}
        self._to_ack: list[Delivery] = []
        self._acks = asyncio.Event()
        self._room = asyncio.Event()
        self._health = ConsumerHealth(consumer.name, listener)
        self._others = KeepingForOthers(self._inbox, self._runner, self._health, self._finish)
        self._failed_messages = FailedMessageLoop(
            self._inbox, self._runner, self._calls, self._partitions, self._health, listener, wakeups
        )

    # --- run ---------------------------------------------------------------------------------------------

    async def run(self, stop: Halt, opened: asyncio.Event) -> None:
        """Consume until `stop` is set, as soon as the broker is open; failed messages need no broker. What is in hand
        then may take what `stop` leaves it; who cancels this does not wait for it."""
        name = self.consumer.name
        failed_messages = asyncio.create_task(self._run_failed_messages(stop))
        # Also after `stop`: handlers that still run may take as long as the grace.
        renew = repeat(name, "renewing the leases of failed messages", asyncio.Event(), self._failed_messages.renew)
        renewing = asyncio.create_task(renew)
        chores = [asyncio.create_task(repeat(name, "deleting old ledger rows", stop, self._reap))]
        try:
            await either(stop, opened)
            chores.append(asyncio.create_task(repeat(name, "registering this process", stop, self._membership.stay)))
            while not stop.is_set():
                self.turn()
                try:
                    subscription = await resist(self._membership.subscribe())
                except (BrokerUnavailable, StoreError, Interrupted) as error:
                    await self._health.pause(stop, "broker", error)
                else:
                    await self._consume(subscription, stop)
            self._failed_messages.due_signal.set()
            await failed_messages
        finally:
            for chore in chores:
                cancel_task(chore)
            try:
                await join_tasks([failed_messages, *chores], 0.0)
            finally:
                try:
                    await self._failed_messages.end()
                finally:
                    await join_tasks([renewing], 0.0)

    async def _run_failed_messages(self, stop: Halt) -> None:
        look = repeat(self.consumer.name, "running failed messages", stop, self._failed_messages.run)
        looking = asyncio.create_task(look)
        try:
            await either(stop)
        finally:  # it may wait for a database that does not answer
            await join_tasks([looking], stop.remaining_s if stop.is_set() else 0.0)
        await self._failed_messages.cut_off(stop.remaining_s)
        await self._failed_messages.put_back()

    def turn(self) -> None:
        """Note that the loop turns, with or without success: an absent broker is no reason to restart the process."""
        self._turned_at = time.monotonic()

    @property
    def turned_at(self) -> float:
        """When its loops last turned, at the broker and at its failed messages; the older of both."""
        return min(self._turned_at, self._failed_messages.polled_at)

    async def _consume(self, subscription: Subscription, stop: Halt) -> None:
        """Consume from one subscription, until `stop` or an unexpected error; then `run` subscribes anew."""
        async with (
            self._closing(subscription),
            self._keeping(subscription, stop),
            self._acking(subscription, stop),
            self._working(subscription, stop),
        ):
            try:
                await resist(self._receive(subscription, stop))
            except Exception as error:
                _log.exception("consumer %r: receiving failed; it subscribes again", self.consumer.name)
                await self._health.pause(stop, "broker", error)

    # --- what ends with a subscription, also when it is cancelled ----------------------------------------

    @asynccontextmanager
    async def _working(self, subscription: Subscription, stop: Halt) -> AsyncIterator[None]:
        leaving, grace_s = asyncio.Event(), 0.0
        workers = [
            supervise(self.consumer.name, stop, functools.partial(self._work, partition, subscription, stop, leaving))
            for partition in self._partitions
        ]
        give_back = functools.partial(self._give_back, subscription=subscription)
        keep = functools.partial(self._others.work, give_back, stop, leaving)
        workers.append(supervise(self.consumer.name, stop, keep))
        try:
            yield
            grace_s = stop.remaining_s
        finally:
            leaving.set()
            for partition in (*self._partitions, self._others):
                partition.arrived.set()
            try:
                await join_tasks(workers, grace_s)
            finally:  # before anything waits for the broker: the process may be killed meanwhile
                await self._failed_messages.put_back()

    @asynccontextmanager
    async def _acking(self, subscription: Subscription, stop: asyncio.Event) -> AsyncIterator[None]:
        over = asyncio.Event()
        acker = supervise(self.consumer.name, stop, functools.partial(self._ack, subscription, over))
        try:
            yield
        finally:
            over.set()
            self._acks.set()
            await join_tasks([acker], ACK_S_MAX)

    @asynccontextmanager
    async def _keeping(self, subscription: Subscription, stop: asyncio.Event) -> AsyncIterator[None]:
        keeper = supervise(self.consumer.name, stop, functools.partial(self._keep, subscription))
        try:
            yield
        finally:
            cancel_task(keeper)
            await join_tasks([keeper], 0.0)

    @asynccontextmanager
    async def _closing(self, subscription: Subscription) -> AsyncIterator[None]:
        try:
            yield
        finally:
            try:
                await self._return(subscription)
            finally:
                self._to_ack.clear()
                self._unsettled.clear()
                with suppress(BrokerUnavailable):
                    await subscription.close()

    # --- deliveries --------------------------------------------------------------------------------------

    async def _receive(self, subscription: Subscription, stop: asyncio.Event) -> None:
        room = PREFETCH * self.consumer.concurrency * self.consumer.batch
        while not stop.is_set():
            self.turn()
            if not self._health.healthy.is_set():
                await self._return(subscription)
                await either(stop, self._health.healthy)
                continue
            if len(self._unsettled) >= room:
                self._room.clear()
                await either(stop, self._room, timeout_s=TURN_S_MAX)  # then `turn`: it is well
                continue
            try:
                deliveries = await subscription.receive(room - len(self._unsettled), RECEIVE_WAIT_S)
            except BrokerUnavailable as error:
                await self._health.pause(stop, "broker", error)
                continue
            self._health.note_success("broker")
            self._unsifted += deliveries
            try:
                ours, others, dropped = await self._membership.sift(deliveries)
            except StoreError as error:
                self._health.note_failure("handling", error)
                await self._return(subscription)
                continue
            self._unsifted.clear()
            for delivery in (*map(self._inbox.read, ours), *map(self._as_dead_letter, dropped)):
                self._queue(delivery, self._partitions.of(delivery))
            for delivery in others:
                self._queue(delivery, self._others)

    def _queue(self, delivery: Delivery, partition: Partition) -> None:
        self._unsettled[id(delivery)] = delivery
        partition.queue.append(delivery)
        partition.arrived.set()

    def _as_dead_letter(self, delivery: Delivery) -> Delivery:
        """Keep a delivery of an unknown topic as a dead letter: the previous release may have subscribed to it."""
        read = self._inbox.read(delivery)
        origin = replace(read.origin, topic=topic_sent_to(read) or "")  # `local` has one origin
        return replace(read, message=None, problem=dropped_problem(self.consumer.name), origin=origin)

    async def _work(
        self, partition: Partition, subscription: Subscription, stop: asyncio.Event, leaving: asyncio.Event
    ) -> None:
        while not (stop.is_set() or leaving.is_set()):
            if not partition.queue:
                partition.arrived.clear()
                await partition.arrived.wait()
                continue
            async with partition.turn:
                if not self._health.healthy.is_set():
                    await either(leaving, self._health.healthy)
                if not self._calls.room.is_set():
                    await either(leaving, self._calls.room)
                if partition.queue and self._calls.is_behind(partition.queue[0].message):
                    await either(leaving, self._calls.returned)
                elif partition.queue and not (stop.is_set() or leaving.is_set()):  # else given back meanwhile
                    await self._handle(self._take(partition), subscription)

    def _take(self, partition: Partition) -> list[Delivery]:
        behind = self._inbox.behind
        if behind and delivery_stream(partition.queue[0]) in behind:
            return partition.take_stream(RUN_MAX)
        return partition.take_batch(self.consumer.batch)

    async def _handle(self, deliveries: list[Delivery], subscription: Subscription) -> None:
        remaining = deliveries
        try:
            if len(deliveries) > 1:
                events = await self._runner.insist(functools.partial(self._inbox.handle_batch, deliveries))
                if events is not None:
                    self._finish(deliveries)
                    remaining = []
            while remaining:
                await self._runner.insist(functools.partial(self._inbox.handle, remaining[0]))
                self._finish(remaining[:1])
                remaining = remaining[1:]
        except Exception as error:
            self._health.note_failure("handling", error)
            await self._give_back(remaining, subscription)

    def _finish(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._unsettled.pop(id(delivery), None)
        self._to_ack += deliveries
        self._acks.set()
        self._room.set()
        self._health.note_success("handling")
        if self._inbox.behind:
            self._failed_messages.due_signal.set()  # what was parked behind one of these is due

    async def _return(self, subscription: Subscription) -> None:
        """Give back what is not being handled yet."""
        queues = (*self._partitions, self._others)
        unsifted, self._unsifted = self._unsifted, []
        await self._give_back([*unsifted, *(each for queue in queues for each in queue.drain())], subscription)

    async def _give_back(self, deliveries: Sequence[Delivery], subscription: Subscription) -> None:
        for delivery in deliveries:
            self._unsettled.pop(id(delivery), None)
        self._room.set()
        if deliveries:
            with suppress(BrokerUnavailable):
                await subscription.give_back(deliveries)

    async def _ack(self, subscription: Subscription, over: asyncio.Event) -> None:
        """Acknowledge settled deliveries, until `over` is set and none is left. A cancellation would lose some."""
        while self._to_ack or not over.is_set():
            await self._acks.wait()
            self._acks.clear()
            batch, self._to_ack = self._to_ack, []
            if batch:
                try:
                    await subscription.ack(batch)
                except BrokerUnavailable:
                    pass  # they come again, and the ledger knows them
                except Exception:
                    _log.exception(
                        "consumer %r: acknowledging %d messages failed; they come again, and the ledger knows them",
                        self.consumer.name, len(batch),
                    )  # fmt: skip

    async def _keep(self, subscription: Subscription) -> None:
        while True:
            await asyncio.sleep(self._broker.keep_every_s)
            if in_hand := [*self._unsifted, *self._unsettled.values()]:
                try:
                    await subscription.keep(in_hand)
                except BrokerUnavailable:
                    pass
                except Exception:
                    _log.exception(
                        "consumer %r: extending the broker's time-out of its deliveries failed; it is tried again",
                        self.consumer.name,
                    )

    # --- the rest ----------------------------------------------------------------------------------------

    def _forward(self, event: Event) -> None:
        if isinstance(event, Failed):
            self._failed_messages.due_signal.set()
        emit(self._listener, event)

    async def _reap(self, stop: asyncio.Event) -> None:
        name, retention_s = self.consumer.name, self.consumer.retention_s
        await self._runner.run(reap(self._database.dialect, name, retention_s, listener=self._listener))
        await pause(stop, REAP_EVERY_S)
