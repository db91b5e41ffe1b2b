"""The relay as a process: ticks while there is work, waits when there is none, survives its database and its broker.

Everything happens in one task, one thing after the other, so that no bucket is given away while its rows are in flight.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Flow
from onefold._kernel.events import (
    BucketsHeld,
    Forgotten,
    Listener,
    Relayed,
    RelayPaused,
    RelayResumed,
    SetAside,
    tell,
)
from onefold._kernel.ids import new_id
from onefold._kernel.lanes import BrokerLane
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._kernel.runners import run_async
from onefold.errors import BrokerUnavailable, OnefoldError, ProgrammerError
from onefold.outbox.relay import PROBE_ROWS, Carrier, Sent, Settings, release_due
from onefold.outbox.retention import forget
from onefold.policy.backoff import Backoff, Draw
from onefold.policy.ranges import require
from onefold.worker.wakeup import Signal, listening

T = TypeVar("T")

#: Between tries while the broker or the database is away.
PAUSES: Final = Backoff(transient_base_s=0.1, cap_s=10.0)

#: The first wait after there was nothing to do; each further one is twice as long, up to `poll_s_max`.
POLL_S_MIN: Final = 0.01

#: How long a relay that stops tries to hand over its buckets.
LEAVE_S_MAX: Final = 10.0

_AT_ONCE: Final = float("-inf")

_log = logging.getLogger("onefold")


class Relay:
    """Publishes what is in the outbox of one database to one broker. Run as many as you like, anywhere.

    With `listens`, on Postgres, one connection of the pool is kept for LISTEN, and at least one more is needed.
    """

    def __init__(
        self,
        database: AsyncDatabase[Any],
        broker: Broker,
        *,
        lease_s: float = 30.0,
        batch_max: int = 1000,
        keep_published_s: float = 0.0,
        poll_s_max: float = 1.0,
        signal: Signal | None = None,
        listens: bool = True,
        listener: Listener | None = None,
        draw: Draw = random.random,
        new_id: Callable[[int], str] = new_id,
    ) -> None:
        require("poll_s_max", poll_s_max, least=POLL_S_MIN, most=60)
        self._settings = Settings(lease_s=lease_s, batch_max=batch_max, keep_published_s=keep_published_s)
        self._poll_s_max = poll_s_max
        #: Set it (from any thread) when events were committed.
        self.signal = Signal() if signal is None else signal
        self._database = database
        self._broker = broker
        self._listens = listens
        self._listener = listener
        self._draw = draw
        self._new_id = new_id
        self._buckets: int | None = None
        #: Who does not take part at present, and how often that was waited for.
        self._paused_by: str | None = None
        self._pauses = 0
        self._carrier = self._reborn()
        self._entered = False
        self._tend_at = self._chores_at = _AT_ONCE

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until stopped; then finish what is in flight and hand the buckets over.

        Raises what no waiting will mend: a ConfigurationError of the broker, a mistake in the program.
        """
        stopping = asyncio.create_task(self._stop_with(stop))
        try:
            await self._until_open(stop)
            if self._listens:
                async with listening(self._database, self.signal):
                    await self._live(stop)
            else:
                await self._live(stop)
        finally:
            stopping.cancel()
            await self._broker.close()

    async def _stop_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._carrier.stopping = True
        self.signal.set()

    async def _until_open(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._broker.open()
            except BrokerUnavailable as error:
                await self._pause("the broker", error, stop)
            else:
                self._resume("the broker")
                return

    async def _live(self, stop: asyncio.Event) -> None:
        poll_s = POLL_S_MIN
        while not stop.is_set():
            self.signal.clear()  # before looking: who commits after this wakes us
            try:
                sent = await self._turn()
            except ProgrammerError:
                raise
            except OnefoldError as error:
                await self._pause("the database", error, stop)
                continue
            self._resume("the database")
            if sent.outage is not None:
                await self._pause("the broker", sent.outage, stop)
            elif sent.claimed:
                self._resume("the broker")
                poll_s = POLL_S_MIN
            elif await self.signal.wait(self._until_next(poll_s)):
                poll_s = POLL_S_MIN
            else:
                poll_s = min(poll_s * 2, self._poll_s_max)
        await self._leave()

    async def _turn(self) -> Sent:
        """What is to be done now, and one tick."""
        now = time.monotonic()
        if now >= self._tend_at:
            await self._tend()
            self._tend_at = now + self._settings.lease_s / 3
        if now >= self._chores_at:
            self._chores_at = now + await self._chores()
        sent = await self._run(self._carrier.tick(rows_max=PROBE_ROWS if self._paused_by else None))
        if self._carrier.buried:
            self._tend_at = _AT_ONCE
        if sent.confirmed or sent.failures:
            tell(self._listener, Relayed(len(sent.confirmed), len(sent.failures)))
        return sent

    async def _tend(self) -> None:
        if not self._entered:
            tended = await self._run(self._carrier.enter())
        elif (found := await self._run(self._carrier.tend())) is not None:
            tended = found
        else:
            _log.warning("relay %s was taken for dead: it begins anew", self._carrier.relay)
            self._carrier, self._entered = self._reborn(self._carrier), False
            tended = await self._run(self._carrier.enter())
        self._entered = True
        if tended.buckets != self._buckets:
            self._buckets = tended.buckets
            tell(self._listener, BucketsHeld(self._carrier.relay, tended.buckets))
        for id_, topic in tended.set_aside:
            _log.error("event %s on %r was at hand when a relay died, too often: it is set aside", id_, topic)
            tell(self._listener, SetAside(id_, topic))

    async def _chores(self) -> float:
        """Let go what is due, forget what is past its time; in how many seconds again."""
        next_s = await self._run(release_due(self._database.dialect))
        keep_s = self._settings.keep_published_s
        if keep_s and (gone := await self._run(forget(self._database.dialect, keep_s=keep_s))):
            tell(self._listener, Forgotten(gone))
        return self._poll_s_max if next_s is None else min(next_s, self._poll_s_max)

    def _until_next(self, poll_s: float) -> float:
        now = time.monotonic()
        return max(0.0, min(poll_s, self._tend_at - now, self._chores_at - now))

    async def _leave(self) -> None:
        if not self._entered:
            return
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                if self._carrier.owed is not None:
                    await self._run(self._carrier.tick())
                await self._run(self._carrier.leave())
        except (OnefoldError, TimeoutError) as error:
            _log.warning(
                "relay %s could not hand over its buckets (%s): its lease runs out", self._carrier.relay, error
            )

    def _reborn(self, former: Carrier | None = None) -> Carrier:
        carrier = Carrier(self._new_id(wall_ms()), self._database.dialect, self._settings, self._draw)
        if former is not None and former.owed is not None:
            # What was confirmed is published, under whatever name; a failure is for those to mark who are still there.
            former.owed.failures.clear()
            carrier.owed = former.owed
        return carrier

    async def _run(self, flow: Flow[T]) -> T:
        lane = BrokerLane(self._database, self._broker)
        return await run_async(flow, lane)

    async def _pause(self, who: str, error: OnefoldError, stop: asyncio.Event) -> None:
        """Wait, longer each time but never so long that the lease runs out; tell it the first time."""
        if self._paused_by != who:
            self._paused_by, self._pauses = who, 0
            _log.warning("the relay pauses, because %s does not take part: %s", who, error)
            tell(self._listener, RelayPaused(f"{who}: {error}"))
        self._pauses += 1
        ceiling_s = min(PAUSES.ceiling_s(self._pauses, throttled=False), self._settings.lease_s / 3)
        with suppress(TimeoutError):
            async with asyncio.timeout(ceiling_s * (0.5 + self._draw() / 2)):
                await stop.wait()

    def _resume(self, who: str) -> None:
        if self._paused_by == who:
            self._paused_by, self._pauses = None, 0
            _log.info("the relay goes on: %s takes part again", who)
            tell(self._listener, RelayResumed())
