"""The relay as a process: ticks while there is work, waits when there is none, survives its database and its broker.

Everything happens in one task, one thing after the other, so that no bucket is given away while its rows are in flight.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Flow
from onefold._kernel.executors import run_on
from onefold._kernel.foreign_cancellations import Interrupted, cancel_until_ended, resist
from onefold._kernel.ids import new_id
from onefold._kernel.log_context import log_extra
from onefold._kernel.message_trace import system_of
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.relay_events import (
    BucketsHeld,
    DestinationPaused,
    DestinationResumed,
    Forgotten,
    LeaseLost,
    Relayed,
    RelayPaused,
    RelayResumed,
    RelaysExpired,
    SetAside,
)
from onefold._kernel.tracing import tracer_of
from onefold._kernel.wakeup_signals import Signal, Wakeups
from onefold._outbox.claimed_rows import DIED_OF
from onefold._outbox.confirms import PublishRows, publish_rows
from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.endpoint_copies import EndpointsOf
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession, TickResult
from onefold._outbox.retention import FORGET_MAX, forget
from onefold._outbox.schedules import Timetable
from onefold._outbox.sending_trace import publish_traced
from onefold._policy.backoff import PAUSES, Draw, at_least_half
from onefold._policy.ranges import require
from onefold._worker.backlog_measuring import measure_outbox, measuring
from onefold._worker.broker_closing import close_broker
from onefold._worker.broker_watch import STALLED_S, BrokerWatch, RelayExecutor
from onefold._worker.notify_listener import listening
from onefold.errors import BrokerUnavailable, OnefoldError, ProgrammerError

T = TypeVar("T")

#: The first wait after there was nothing to do; each further one is twice as long, up to `poll_s_max`.
POLL_S_MIN: Final = 0.01

#: Factor for the poll interval where NOTIFY reports each commit: then polling is for events without a notification, of
#: a process that was killed after its COMMIT or while no relay listened.
NOTIFIED_FACTOR: Final = 10

#: The same for delayed events while none is due: writing one is notified, too.
NOTIFIED_DUE_FACTOR: Final = 60

#: How long a relay that stops tries to hand over its buckets.
LEAVE_S_MAX: Final = 10.0

#: How often a relay that keeps no published rows looks for those that were kept when it did.
SWEEP_EVERY_S: Final = 300.0

#: How often a relay looks, at least, whether recurring events are due.
FIRE_EVERY_S: Final = 30.0

_AT_ONCE: Final = float("-inf")

_log = logging.getLogger("onefold.relay")


class Relay:
    """Publishes what is in the outbox of one database to one broker. Run as many as you like, anywhere.

    With `listens`, on Postgres, one connection of the pool is kept for LISTEN, and at least one more is needed.
    Notifications of `sender` are ignored: it sets `signal`.
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
        attempts_max: int = 25,
        timetable: Timetable | None = None,
        signal: Signal | None = None,
        listens: bool = True,
        sender: str = "",
        listener: Listener | None = None,
        draw: Draw = random.random,
        new_id: Callable[[int], str] = new_id,
    ) -> None:
        require("poll_s_max", poll_s_max, least=POLL_S_MIN, most=60)
        self._settings = RelayConfig(
            lease_s=lease_s, batch_max=batch_max, keep_published_s=keep_published_s, attempts_max=attempts_max
        )
        self._poll_s_max = poll_s_max
        #: Set it (from any thread) when events were committed.
        self.signal = Signal() if signal is None else signal
        self._timetable = timetable
        self._database = database
        self._broker = broker
        self._listens = listens
        self._wakeups = Wakeups()
        self._sender = sender
        self._listener = listener
        tracer = tracer_of(listener)
        self._publish_rows: PublishRows = (
            publish_rows if tracer is None else functools.partial(publish_traced, tracer, system_of(broker))
        )
        self._draw = draw
        self._new_id = new_id
        #: Of a broker whose destinations change while it is open.
        self._refresh: Callable[[], Awaitable[None]] | None = getattr(broker, "refresh", None)
        self._buckets: int | None = None
        #: Why the relay is paused (broker, database, an unexpected error), and how often it has waited for its end.
        self._pauses: dict[str, int] = {}
        self._session = self._new_session()
        self._entered = False
        self._rebalance_at = self._chores_at = self._sweep_at = self._fire_at = _AT_ONCE
        self._looked_for_due_at = _AT_ONCE
        self._turned_at = time.monotonic()
        self._broker_watch = BrokerWatch()

    @property
    def idle_s(self) -> float:
        """Seconds since the relay last polled for events, checked whether its pause is over, or heard from its
        broker. The time in which a broker answers a call does not count, unless it takes far too long."""
        return time.monotonic() - max(self._turned_at, self._broker_watch.progress_at)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until stopped; then finish what is in flight and hand the buckets over.

        Raises errors that waiting cannot mend: a ConfigurationError of the broker, a mistake in the program.
        """
        stopping = asyncio.create_task(self._stop_with(stop))
        try:
            async with measuring(self._database, self._listener, measure_outbox):
                await self._until_open(stop)
                if self._listens:
                    async with listening(self._database, self.signal.set, sender=self._sender, wakeups=self._wakeups):
                        await self._live(stop)
                else:
                    await self._live(stop)
        finally:
            stopping.cancel()
            await close_broker(self._broker)

    async def _stop_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._session.stopping = True
        self.signal.set()

    async def _until_open(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.signal.clear()
            self._turned_at = time.monotonic()
            try:
                await resist(self._broker.open())
            except (BrokerUnavailable, Interrupted) as error:
                await self._pause("the broker", error, stop)
            else:
                self._resume("the broker")
                return

    async def _live(self, stop: asyncio.Event) -> None:
        poll_s = POLL_S_MIN
        while not stop.is_set():
            self.signal.clear()  # before the query: a commit after this wakes the relay
            try:
                sent = await resist(self._turn())
            except ProgrammerError:
                await self._leave()
                raise
            except OnefoldError as error:
                await self._pause("the database", error, stop)
                continue
            except Exception as error:  # if it ended the relay, nothing would be published until a restart
                _log.exception("relay %s failed; it tries again", self._session.relay)
                await self._pause("an unexpected error", error, stop)
                continue
            self._resume("the database")
            self._resume("an unexpected error")
            if sent.outage is not None:
                await self._pause("the broker", sent.outage, stop)
                continue
            if sent.confirmed or sent.failures or sent.idle:
                self._resume("the broker")
            if sent.claimed:
                poll_s = POLL_S_MIN
            if sent.more:
                poll_s = POLL_S_MIN
            elif await self._wait(poll_s):
                poll_s = POLL_S_MIN
                self._chores_at = min(self._chores_at, self._looked_for_due_at + self._poll_s_max)
            else:
                poll_s = min(poll_s * 2, self._poll_s_max)
        await self._leave()

    async def _turn(self) -> TickResult:
        """The chores that are due, and one tick."""
        now = self._turned_at = time.monotonic()
        if now >= self._rebalance_at:
            await self._renew_and_rebalance()
            self._rebalance_at = now + self._settings.lease_s / 3
        sent = await self._tick()
        if self._session.expired:
            self._rebalance_at = _AT_ONCE
        self._report(sent)
        if now >= self._chores_at:  # after the tick: an event just notified does not wait for them
            self._chores_at = now + await self._chores()
        if sent.failures:
            self._chores_at = min(self._chores_at, now + self._poll_s_max)
        return sent

    async def _tick(self) -> TickResult:
        """One tick. The lease is renewed beside it: a broker may take its time."""
        beating = asyncio.create_task(self._beat(self._session))
        try:
            if self._refresh is not None:
                with self._broker_watch:
                    await self._refresh()
            return await self._run(self._session.tick(probing="the broker" in self._pauses))
        finally:
            await cancel_until_ended(beating)

    async def _beat(self, session: RelaySession) -> None:
        """Renew the lease while a tick lasts. One whose database has stopped answering loses it: other relays, whose
        connections work, take its buckets over."""
        while not session.expired:
            await asyncio.sleep(self._settings.lease_s / 3)
            self._broker_watch.note()
            if not self._broker_watch.is_waiting and (idle_s := self.idle_s) > STALLED_S:
                _log.error(
                    "relay %s: the database has not answered for %.0f s; other relays take its buckets over. If it "
                    "does not go on by itself, restart the process",
                    session.relay,
                    idle_s,
                )
                return
            with suppress(Exception):  # the tick itself will find out
                await resist(self._run(session.renew()))

    def _report(self, sent: TickResult) -> None:
        if sent.confirmed or sent.failures:
            emit(self._listener, Relayed(len(sent.confirmed), len(sent.failures), sent.destinations))
        for id_, topic, error in sent.dead:
            emit(self._listener, SetAside(id_, topic, error))
        for name, unavailable in sent.paused.items():
            if sent.outage is None:
                _log.warning("destination %s is paused, other destinations go on: %s", name, unavailable)
            emit(self._listener, DestinationPaused(name, str(unavailable)))
        for name in sent.resumed:
            _log.info("destination %s takes events again", name)
            emit(self._listener, DestinationResumed(name))

    async def _renew_and_rebalance(self) -> None:
        if not self._entered:
            rebalanced = await self._run(self._session.enter())
        elif (found := await self._run(self._session.renew_and_rebalance())) is not None:
            rebalanced = found
        else:
            former, self._entered = self._session, False
            self._session = self._new_session(former)
            _log.warning("relay %s has lost its lease: it goes on as relay %s", former.relay, self._session.relay)
            emit(self._listener, LeaseLost(former.relay))
            rebalanced = await self._run(self._session.enter())
        self._entered = True
        if rebalanced.buckets != self._buckets:
            self._buckets = rebalanced.buckets
            emit(self._listener, BucketsHeld(self._session.relay, rebalanced.buckets))
        if rebalanced.expired:
            emit(self._listener, RelaysExpired(rebalanced.expired))
        for id_, topic in rebalanced.set_aside:
            extra = log_extra("event.dead", topic=topic, message_id=id_)
            _log.error(
                "event %s on %r is a dead letter (%s); see `onefold outbox list`", id_, topic, DIED_OF, extra=extra
            )
            emit(self._listener, SetAside(id_, topic, DIED_OF))

    async def _chores(self) -> float:
        """Make due events claimable, and delete published ones past their time; in how many seconds again."""
        await self._fire_recurring()
        self._looked_for_due_at = time.monotonic()
        next_s = await self._run(make_due_claimable(self._database.dialect, made=self.signal.set))
        keep_s, now = self._settings.keep_published_s, time.monotonic()
        # Without a retention there may be rows of an earlier one: they are looked for now and then.
        if keep_s or now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY_S
            if gone := await self._run(forget(self._database.dialect, keep_s=keep_s)):
                emit(self._listener, Forgotten(gone))
                if gone >= FORGET_MAX:  # after the next tick, however seldom there are chores: there may be many more
                    self._sweep_at = now
                    return 0.0
        most_s = self._poll_s_max * (NOTIFIED_DUE_FACTOR if self._wakeups.listeners and not keep_s else 1)
        until_fire_s = most_s if self._timetable is None else max(0.0, self._fire_at - now)
        return min(most_s if next_s is None else next_s, most_s, until_fire_s)

    async def _fire_recurring(self) -> None:
        """Publish recurring events that are due. Clocks may be set, so it checks now and then even if none should
        be."""
        now = time.monotonic()
        if self._timetable is not None and now >= self._fire_at:
            next_s = await self._run(self._timetable.fire())
            self.signal.set()
            self._fire_at = now + min(FIRE_EVERY_S if next_s is None else next_s, FIRE_EVERY_S)

    async def _wait(self, poll_s: float) -> bool:
        """Wait for a signal, or until it is time to poll; whether there was a signal. A relay that waits is not
        stalled."""
        if self._wakeups.listeners and not self._session.any_paused:  # nothing notifies of the end of a pause
            poll_s = self._poll_s_max * NOTIFIED_FACTOR
        until = min(time.monotonic() + poll_s, self._rebalance_at, self._chores_at)
        while (left_s := until - time.monotonic()) > 0:
            if await self.signal.wait(min(left_s, self._poll_s_max)):
                return True
            self._turned_at = time.monotonic()
        return self.signal.is_set()

    async def _leave(self) -> None:
        if not self._entered:
            return
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                if self._session.unmarked is not None:
                    await resist(self._run(self._session.tick()))
                await resist(self._run(self._session.leave()))
        except (OnefoldError, TimeoutError) as error:
            _log.warning(
                "relay %s could not hand over its buckets; others take them when its lease expires: %s",
                self._session.relay,
                error,
            )

    def _new_session(self, former: RelaySession | None = None) -> RelaySession:
        endpoints_of: EndpointsOf | None = getattr(self._broker, "destinations", None)
        session = RelaySession(
            self._new_id(wall_ms()), self._database.dialect, self._settings, self._draw, endpoints_of, former,
            publish=self._publish_rows,
        )  # fmt: skip
        if former is None:
            return session
        session.stopping = former.stopping
        if former.unmarked is not None:
            # What was confirmed is published, whichever session sent it; a failure is marked by a session with a row.
            former.unmarked.failures.clear()
            session.unmarked = former.unmarked
        return session

    async def _run(self, flow: Flow[T]) -> T:
        executor = RelayExecutor(self._database, self._broker, self._broker_watch)
        return await run_on(self._database, flow, executor)

    async def _pause(self, cause: str, error: Exception, stop: asyncio.Event) -> None:
        """Wait, longer each time but never so long that the lease expires; report the first wait."""
        if cause not in self._pauses:
            relay, extra = self._session.relay, log_extra("relay.paused")
            _log.warning("relay %s paused (%s): %s; it tries again", relay, cause, error, extra=extra)
            if not self._pauses:
                emit(self._listener, RelayPaused(f"{cause}: {error}"))
        count = self._pauses[cause] = self._pauses.get(cause, 0) + 1
        ceiling_s = min(PAUSES.ceiling_s(count, throttled=False), self._settings.lease_s / 3)
        wait_s = ceiling_s * at_least_half(self._draw)
        certain_s = min(wait_s, PAUSES.transient_base_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(certain_s):
                await stop.wait()
        # An event that is committed now may have another destination, which takes it.
        await self.signal.wait(wait_s - certain_s)

    def _resume(self, cause: str) -> None:
        """Note that the cause of a pause is gone. The relay is reported as resumed when there is no other."""
        if self._pauses.pop(cause, None) is None:
            return
        if self._pauses:
            _log.info(
                "relay %s: the pause (%s) is over; still paused (%s)",
                self._session.relay,
                cause,
                ", ".join(self._pauses),
            )
        else:
            _log.info("relay %s resumed (%s)", self._session.relay, cause, extra=log_extra("relay.resumed"))
            emit(self._listener, RelayResumed())
