"""A process as a member of those that run a consumer: registers it, and reconciles the consumer's subscription with the
topics of all members. See `_inbox/registry.py` for the rule."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from onefold._inbox.consumer import Consumer
from onefold._inbox.others_topics import OthersTopics, Sifted
from onefold._inbox.registry import (
    BEAT_S,
    EARLIER,
    RunningProcess,
    Standing,
    forget,
    list_processes,
    note_ended,
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
        #: The topics of ended processes that are unsubscribed already.
        self._ended: frozenset[str] = frozenset()
        #: The topics this process has unsubscribed. A process that has one may register at the same moment: it is
        #: restored.
        self._unsubscribed: set[str] = set()
        #: What other processes have and this one does not; also for its failed messages.
        self.others = OthersTopics(consumer, self._process)
        self._registered = False
        #: The subscription was made and reconciled once.
        self.subscribed = False
        #: Set after the first attempt to subscribe, successful or not.
        self.tried = asyncio.Event()

    async def subscribe(self) -> Subscription:
        """Register this process, subscribe, and unsubscribe topics that no process has any more."""
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
        """Renew the registration at intervals, and unsubscribe topics that only ended processes had."""
        await pause(stop, BEAT_S)
        if stop.is_set():
            return
        processes = await self.register()
        with suppress(BrokerUnavailable):  # the next beat tries again
            if self.others.is_alive(processes):
                await self._reconcile(self.others.judge(processes))
            else:  # others may have unsubscribed our topics
                await self._subscribe(self._consumer.topics)

    async def register(self) -> Sequence[RunningProcess]:
        """Write this process to the registry; those that were there before."""
        processes = await self._read_processes()
        if not self.others.is_alive(processes):
            # It is new, or the database was away, or its clock has jumped: other live processes may look as dead,
            # until they have renewed their registration. Noted before the write: a look in between would find us alive.
            self.others.doubt()
        await self._flow(register(self._database.dialect, self._consumer.name, self._process, self._consumer.topics))
        self._registered = True
        return processes

    async def end(self) -> None:
        """Say that this process ends."""
        if self._registered:
            await self._flow(note_ended(self._database.dialect, self._consumer.name, self._process))

    async def sift(self, deliveries: Sequence[Delivery]) -> Sifted[Delivery]:
        """Split into deliveries to handle, those to keep for processes that have their topics, and those of topics that
        the consumer no longer has."""
        if not any(map(self.others.is_foreign, deliveries)):
            return Sifted(list(deliveries), [], [])
        return self.others.sift(deliveries, await self._read_processes())

    async def _reconcile(self, standing: Standing) -> None:
        """Unsubscribe topics that no running process has."""
        outdated = standing.former - self._ended
        if outdated and isinstance(self._broker, ManagesSubscriptions):
            self._unsubscribed |= outdated  # first: the next call may fail, or be cut off
            await self._broker.unsubscribe(self._consumer.name, sorted(outdated))
            _log.info("consumer %r is unsubscribed from %s", self._consumer.name, ", ".join(sorted(outdated)))
        # A process that registered in between had subscribed to a topic that was unsubscribed here.
        if self._unsubscribed and (restored := self._unsubscribed & (await self._read_standing()).wanted):
            await self._subscribe(sorted(restored))
            self._unsubscribed -= restored
        self._ended = standing.former
        await self._flow(forget(self._database.dialect, self._consumer.name, standing.outdated))

    async def _subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe the consumer as a whole to topics; the subscription that receives goes on."""
        await (await self._broker.subscribe(self._consumer.name, topics)).close()

    async def _note_earlier(self) -> None:
        """Register the topics that the consumer had before there was a registry, where the broker can list them:
        processes of that release may still be running."""
        if isinstance(self._broker, ManagesSubscriptions):
            name = self._consumer.name
            subscriptions = [seen for seen in await self._broker.subscriptions([name]) if seen.consumer == name]
            if earlier := {topic for seen in subscriptions for topic in seen.topics or ()}:
                await self._flow(register(self._database.dialect, name, EARLIER, earlier))

    async def _read_processes(self) -> Sequence[RunningProcess]:
        return await self._flow(list_processes(self._database.dialect, self._consumer.name))

    async def _read_standing(self) -> Standing:
        return self.others.judge(await self._read_processes())

    async def _flow(self, flow: Flow[T]) -> T:
        return await run_async(flow, TaskExecutor(self._database))
