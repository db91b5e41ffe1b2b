"""Running consumers over one broker and one database, until they are told to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onefold._kernel.events import Listener
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._kernel.transaction import Transaction
from onefold.errors import BrokerUnavailable, ConfigurationError
from onefold.inbox.model import Consumer
from onefold.worker.patience import Patience, pause
from onefold.worker.station import MakeTransaction, Station

_log = logging.getLogger("onefold")


class Consuming:
    """Consumers of one broker over one database, until they are told to stop. They open the broker, and close it."""

    def __init__(
        self,
        database: AsyncDatabase[Any],
        broker: Broker,
        consumers: Sequence[Consumer],
        *,
        transaction: MakeTransaction = Transaction,
        listener: Listener | None = None,
        grace_s: float = 30.0,
    ) -> None:
        names = [consumer.name for consumer in consumers]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"two consumers are named {name!r}: they would share their messages")
        for consumer in consumers:
            consumer.check_redelivery(broker.redelivery_s)
        self._broker = broker
        self._grace_s = grace_s
        # Sync handlers have a thread each: in a shared pool they would wait for one another.
        threads = sum(consumer.concurrency for consumer in consumers if not consumer.is_async)
        self._threads = ThreadPoolExecutor(threads, "onefold-handler") if threads else None
        self._stations = [
            Station(database, broker, consumer, transaction, listener, self._threads) for consumer in consumers
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; then finish what is being handled, and give back the rest."""
        try:
            await self._opened(stop)
            async with asyncio.TaskGroup() as group:
                for station in self._stations:
                    group.create_task(station.run(stop, self._grace_s))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            await self._broker.close()
            if self._threads is not None:
                self._threads.shutdown(wait=False)

    def alive(self) -> dict[str, float]:
        """For each consumer, how many seconds ago it last got round, at the broker and at its letters."""
        now = time.monotonic()
        return {station.consumer.name: now - min(station.turned_at, station.polled_at) for station in self._stations}

    async def _opened(self, stop: asyncio.Event) -> None:
        patience = Patience()
        while not stop.is_set():
            try:
                return await self._broker.open()
            except BrokerUnavailable as error:
                if patience.failures == 0:
                    _log.warning("the broker is not there yet: %s", error)
                await pause(stop, patience.next_s())
        return None
