"""Keeps deliveries of topics that only other processes have, beside the partitions: those do not wait for this.

A delivery is in hand until it is kept: the broker's time-out for it is extended, and what is not kept when the
subscription ends is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from onefold._inbox.handling import Inbox
from onefold._kernel.messages import Delivery
from onefold._worker.cancellation import either
from onefold._worker.consumer_health import ConsumerHealth
from onefold._worker.flow_runner import FlowRunner
from onefold._worker.partitions import Partition
from onefold.errors import StoreBusy

#: How many deliveries are kept by one transaction.
KEPT_AT_ONCE: Final = 100

Finish: TypeAlias = Callable[[list[Delivery]], None]
GiveBack: TypeAlias = Callable[[list[Delivery]], Awaitable[None]]


class KeepingForOthers(Partition):
    """Their queue."""

    __slots__ = ("_finish", "_health", "_inbox", "_runner")

    def __init__(self, inbox: Inbox, runner: FlowRunner, health: ConsumerHealth, finish: Finish) -> None:
        super().__init__()
        self._inbox = inbox
        self._runner = runner
        self._health = health
        self._finish = finish

    async def work(self, give_back: GiveBack, stop: asyncio.Event, leaving: asyncio.Event) -> None:
        """Keep what arrives, until `stop` or `leaving` is set."""
        while not (stop.is_set() or leaving.is_set()):
            if not self.queue:
                self.arrived.clear()
                await self.arrived.wait()
            elif not self._health.healthy.is_set():
                await either(leaving, self._health.healthy)
            else:
                await self._keep([self.queue.popleft() for _ in range(min(len(self.queue), KEPT_AT_ONCE))], give_back)

    async def _keep(self, deliveries: list[Delivery], give_back: GiveBack) -> None:
        try:
            await self._runner.run(self._inbox.keep_for_others(deliveries))
        except StoreBusy:
            self._put_back(deliveries)  # a lock is worth waiting for: once more
        except Exception as error:
            self._health.note_failure("handling", error)
            await give_back(deliveries)
        except BaseException:
            self._put_back(deliveries)  # to be given back with the others; those that are kept all the same are known
            raise
        else:
            self._finish(deliveries)

    def _put_back(self, deliveries: list[Delivery]) -> None:
        self.queue.extendleft(reversed(deliveries))
