"""A process as one of those that run a consumer: it says that it is there, and keeps the consumer's subscription to
what its processes ask for. See `_inbox/registry.py` for the rule."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from onefold._inbox.consumer import Consumer
from onefold._inbox.registry import (
    ALIVE_S,
    BEAT_S,
    EARLIER,
    NOTHING,
    RunningProcess,
    Standing,
    forget,
    judge,
    leave,
    list_processes,
    register,
)
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Delivery
from onefold._kernel.ports import AsyncDatabase, Broker, ManagesSubscriptions, Subscription
from onefold._kernel.runners import run_async
from onefold._worker.backoff_timer import pause
from onefold.errors import BrokerUnavailable

T = TypeVar("T")

_log = logging.getLogger("onefold.consumer")


class Membership:
    """One process of one consumer."""

    def __init__(self, database: AsyncDatabase[Any], broker: Broker, consumer: Consumer) -> None:
        self._database = database
        self._broker = broker
        self._consumer = consumer
        self._process = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        #: The topics that running processes want, and those that only ended ones wanted. There are almost never any of
        #: the latter; then deliveries need not be checked against them.
        self._topics_known = NOTHING
        #: The topics of ended processes that are unsubscribed already.
        self._ended: frozenset[str] = frozenset()
        #: What this process has unsubscribed. A process that has it may register at the same moment: it is given back.
        self._taken: set[str] = set()
        #: From when on a process that looks dead counts as dead.
        self._steady_at = 0.0
        self._dropping: set[str] = set()
        self._registered = False
        #: The subscription was made and reconciled once.
        self.subscribed = False
        #: It was tried to make it, or found that it may not be made yet.
        self.tried = asyncio.Event()

    async def subscribe(self) -> Subscription:
        """Say that we are there, subscribe, and end what nothing asks for any more."""
        try:
            if not await self._read_processes():
                await self._note_earlier()
            await self.register()
            subscription = await self._broker.subscribe(self._consumer.name, self._consumer.topics)
            try:
                await self._reconcile(await self._read_standing())
            except BaseException:
                await subscription.close()
                raise
        finally:
            self.tried.set()
        self.subscribed = True
        return subscription

    async def stay(self, stop: asyncio.Event) -> None:
        """Say from time to time that we are there; what a process that has ended had alone is unsubscribed then."""
        await pause(stop, BEAT_S)
        if stop.is_set():
            return
        processes = await self._read_processes()
        is_known = any(member.process == self._process and member.alive for member in processes)
        await self.register()
        with suppress(BrokerUnavailable):  # the next beat tries again
            if not is_known:
                # The database was away, or its clock has jumped: what is ours may have been taken from us, and others
                # that are alive look as dead as we did, until they have said that they are there.
                self._steady_at = time.monotonic() + ALIVE_S
                await self._subscribe(self._consumer.topics)
            elif time.monotonic() >= self._steady_at:
                await self._reconcile(judge(processes))

    async def register(self) -> None:
        """Say that this process is there."""
        await self._flow(register(self._database.dialect, self._consumer.name, self._process, self._consumer.topics))
        self._registered = True

    async def leave(self) -> None:
        if self._registered:
            await self._flow(leave(self._database.dialect, self._consumer.name, self._process))

    async def sift(self, deliveries: Sequence[Delivery]) -> tuple[Sequence[Delivery], Sequence[Delivery]]:
        """Those to be handled, and those of topics that the consumer no longer has: they were sent to it before, and
        are for a person to decide about. Whether a topic is wanted is asked anew: a process that has it registers
        before anything is sent to it."""
        suspects = [delivery for delivery in deliveries if self._topics_known.drops(_topic(delivery))]
        if not suspects:
            return deliveries, ()
        self._topics_known = await self._read_standing()
        dropped = [delivery for delivery in suspects if self._topics_known.drops(_topic(delivery))]
        for topic in {topic for delivery in dropped if (topic := _topic(delivery))} - self._dropping:
            self._dropping.add(topic)
            _log.warning(
                "consumer %r no longer has topic %r: what was sent to it before becomes dead letters (`onefold dlq`)",
                self._consumer.name,
                topic,
            )
        identities = set(map(id, dropped))
        return [delivery for delivery in deliveries if id(delivery) not in identities], dropped

    async def _reconcile(self, standing: Standing) -> None:
        """Unsubscribe what is no longer wanted."""
        gone = standing.former - self._ended
        if gone and isinstance(self._broker, ManagesSubscriptions):
            self._taken |= gone  # first: what follows may fail, or be cut off
            await self._broker.unsubscribe(self._consumer.name, sorted(gone))
            _log.info("consumer %r is unsubscribed from %s", self._consumer.name, ", ".join(sorted(gone)))
        # A process that registered in between has subscribed to what was taken away here.
        if self._taken and (back := self._taken & (await self._read_standing()).wanted):
            await self._subscribe(sorted(back))
            self._taken -= back
        self._topics_known, self._ended = standing, standing.former
        await self._flow(forget(self._database.dialect, self._consumer.name, standing.outdated))

    async def _subscribe(self, topics: Sequence[str]) -> None:
        """For the consumer as a whole: the subscription that is received from goes on."""
        await (await self._broker.subscribe(self._consumer.name, topics)).close()

    async def _note_earlier(self) -> None:
        """Register what the consumer had before there was a registry, where the broker can list it: processes of that
        time may still be running."""
        if isinstance(self._broker, ManagesSubscriptions):
            name = self._consumer.name
            found = [seen for seen in await self._broker.subscriptions([name]) if seen.consumer == name]
            if earlier := {topic for seen in found for topic in seen.topics or ()}:
                await self._flow(register(self._database.dialect, name, EARLIER, earlier))

    async def _read_processes(self) -> Sequence[RunningProcess]:
        return await self._flow(list_processes(self._database.dialect, self._consumer.name))

    async def _read_standing(self) -> Standing:
        return judge(await self._read_processes())

    async def _flow(self, flow: Flow[T]) -> T:
        return await run_async(flow, TaskExecutor(self._database))


def _topic(delivery: Delivery) -> str | None:
    """What it was sent to."""
    return delivery.origin.topic or (None if delivery.message is None else delivery.message.topic)
