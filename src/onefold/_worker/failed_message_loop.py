"""A consumer's failed messages at work: those that are due are started and run, whether or not the broker is there.

A failed message is run in the partition of its stream, between deliveries. What a stop cuts off counts as not started:
it would otherwise look as if its process had died of it. What is in hand for long, in a handler or waiting for the turn
of its partition, is renewed: another process would take it otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from contextlib import suppress
from typing import Final

from onefold._inbox.catching_up import put_back, run_in_one_go
from onefold._inbox.failed_messages import next_due, take, take_run
from onefold._inbox.handling import Inbox
from onefold._inbox.in_hand import give_up, renew_in_hand, wake_stranded
from onefold._inbox.stored_message import FailedMessage, StoredMessage
from onefold._kernel.telemetry import Listener
from onefold._kernel.telemetry.consumer_events import Duplicate, Handled
from onefold._kernel.wakeup_signals import News, Signal
from onefold._worker.backoff_timer import pause
from onefold._worker.cancellation import either, join_tasks
from onefold._worker.consumer_health import ConsumerHealth
from onefold._worker.flow_runner import FlowRunner
from onefold._worker.handler_calls import HandlerCalls
from onefold._worker.partitions import Partitions
from onefold.errors import OnefoldError, StoreError

POLL_S_MIN: Final = 0.05
POLL_S_MAX: Final = 2.0
#: Where it is heard of what operators do (NOTIFY): what fails in this process is known here, and what failed in one
#: that died is found by looking.
POLL_HEARD_S_MAX: Final = 20.0
#: How long a partition catches up before the deliveries that queue there have a turn.
CATCH_UP_S_MAX: Final = 1.0
#: Renewals within the time for which `take` keeps others away, which is two leases: all but one may fail.
RENEWALS: Final = 6
#: How often it is looked for messages that no other wakes.
WAKE_STRANDED_EVERY_S: Final = 300.0
#: How long what was cut off may take to be put back.
GIVE_UP_S_MAX: Final = 10.0


class FailedMessageLoop:
    """The failed messages of one consumer."""

    def __init__(
        self,
        inbox: Inbox,
        runner: FlowRunner,
        calls: HandlerCalls,
        partitions: Partitions,
        health: ConsumerHealth,
        listener: Listener | None,
        news: News | None,
    ) -> None:
        self._inbox = inbox
        self._runner = runner
        self._calls = calls
        self._partitions = partitions
        self._health = health
        self._listener = listener
        self._stop = asyncio.Event()
        #: Those that are being run, or wait for the turn of their partition.
        self._running: dict[asyncio.Task[None], FailedMessage] = {}
        #: Set when there may be one that is due sooner than those that were known.
        self.due_signal = news.actions.listen() if news else Signal()
        self._news = news
        self.polled_at = time.monotonic()
        self._stranded_at = self.polled_at if inbox.consumer.order == "strict" else math.inf

    async def run(self, stop: asyncio.Event) -> None:
        """Run what is due; when nothing is, look again soon, and then less and less soon."""
        self._stop = stop
        wait_s = POLL_S_MIN
        try:
            while not stop.is_set():
                wait_s = await self._look(stop, wait_s)
                self.polled_at = time.monotonic()
                if self._running:
                    await asyncio.wait(self._running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await pause(stop, POLL_S_MIN)  # what is told all the time is not looked for all the time
                    await self._wait(wait_s - POLL_S_MIN)
        except StoreError as error:
            await self._health.pause(stop, "failed messages", error)

    async def _wait(self, seconds: float) -> None:
        """Until something may be due. A loop that waits does not stand still."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if await self.due_signal.wait(min(left_s, POLL_S_MAX)):
                return
            self.polled_at = time.monotonic()

    async def renew(self, stop: asyncio.Event) -> None:
        """Renew what is in hand since the last time."""
        names = set(self._inbox.in_hand)
        await pause(stop, 2 * self._inbox.consumer.lease_s / RENEWALS)
        names &= self._inbox.in_hand.keys()
        if names:
            await self._runner.run(renew_in_hand(self._inbox, names))

    async def end(self, grace_s: float) -> None:
        """Wait for those that are being run, and put back what was cut off. Should that fail, they are suspects."""
        if self._news is not None:
            self._news.actions.leave(self.due_signal)
        started = dict(self._running)
        try:
            await join_tasks(started, grace_s)
        finally:
            self._inbox.abandon(failed_message for task, failed_message in started.items() if task.cancelled())
        if self._inbox.unfinished:
            with suppress(OnefoldError, TimeoutError):
                async with asyncio.timeout(GIVE_UP_S_MAX):
                    await self._runner.run(give_up(self._inbox))

    async def _look(self, stop: asyncio.Event, waited_s: float) -> float:
        """Start what is due; in how many seconds to look again."""
        if not self._health.healthy.is_set():
            await either(stop, self._health.healthy)
        if self._inbox.unfinished:
            await self._runner.run(give_up(self._inbox))
        if time.monotonic() >= self._stranded_at:
            await self._runner.run(wake_stranded(self._inbox))
            self._stranded_at = time.monotonic() + WAKE_STRANDED_EVERY_S
        self.due_signal.clear()  # before looking: what comes after this wakes us
        due_in_s = await self._runner.run(next_due(self._inbox))
        found = await self._start() if due_in_s is not None and due_in_s <= 0 else 0
        self._health.note_success("failed messages")
        heard = self._news is not None and self._news.heard
        most_s = min(POLL_HEARD_S_MAX, max(POLL_S_MAX, self._inbox.consumer.lease_s / 2)) if heard else POLL_S_MAX
        wait_s = POLL_S_MIN if found else min(2 * waited_s, most_s)
        if due_in_s is not None and due_in_s > 0:
            wait_s = min(wait_s, max(POLL_S_MIN, due_in_s))
        return wait_s

    async def _start(self) -> int:
        """Start as many failed messages as there is room for, and at most one suspect at a time; how many there
        were."""
        if not self._calls.room.is_set():
            return 0
        free = self._inbox.consumer.concurrency - len(self._running)
        count = self._begin(await self._runner.run(take(self._inbox, free))) if free > 0 else 0
        if not any(failed_message.started > failed_message.failed + 1 for failed_message in self._running.values()):
            suspects = take(self._inbox, 1, suspects=True, listener=self._listener)
            count += self._begin(await self._runner.run(suspects))
        return count

    def _begin(self, failed_messages: list[FailedMessage]) -> int:
        for failed_message in failed_messages:
            task = asyncio.create_task(self._run(failed_message))
            self._running[task] = failed_message
            task.add_done_callback(self._running.pop)
        return len(failed_messages)

    async def _run(self, failed_message: FailedMessage) -> None:
        async with self._partitions.of_stream(failed_message.stream).turn:
            try:
                event = await self._runner.handle(functools.partial(self._inbox.run_failed, failed_message))
                if self._inbox.consumer.order == "strict" and isinstance(event, Handled):
                    await self._catch_up(failed_message)
            except Exception as error:
                self._health.note_failure("handling", error)

    async def _catch_up(self, last: StoredMessage) -> None:
        """Run what is parked behind it, one go after the other, as long as all goes well; others of the
        partition wait, but not for long."""
        over_at = time.monotonic() + CATCH_UP_S_MAX
        while time.monotonic() < over_at and not self._stop.is_set():
            failed_messages = left = await self._runner.run(take_run(self._inbox, last))
            if not failed_messages:
                return
            try:
                events = await self._runner.handle(functools.partial(run_in_one_go, self._inbox, failed_messages))
                if events:
                    last = failed_messages[len(events) - 1]
                    continue
                while left:
                    event = await self._runner.handle(functools.partial(self._inbox.run_failed, left[0]))
                    left = left[1:]
                    if not isinstance(event, Handled | Duplicate):
                        break
                if left:
                    await self._runner.run(put_back(self._inbox, left))
                return
            except BaseException:
                self._inbox.abandon(left)
                raise
