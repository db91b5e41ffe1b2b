"""Runs a consumer's failed messages when they are due, whether or not the broker is available.

A failed message is run in the partition of its stream, between deliveries. An attempt that a stop cuts off counts as
not started: it would otherwise look as if it had killed its process. The lease of a message that is in hand for long,
in a handler or waiting for its partition, is renewed: another process would take it otherwise.
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
from onefold._kernel.effects import Flow
from onefold._kernel.telemetry import Listener
from onefold._kernel.telemetry.consumer_events import Duplicate, Handled
from onefold._kernel.wakeup_signals import Signal, Wakeups
from onefold._worker.backoff_timer import pause
from onefold._worker.cancellation import either, join_tasks
from onefold._worker.consumer_health import ConsumerHealth
from onefold._worker.flow_runner import FlowRunner
from onefold._worker.handler_calls import HandlerCalls
from onefold._worker.partitions import Partitions
from onefold.errors import OnefoldError, StoreError

POLL_S_MIN: Final = 0.05
POLL_S_MAX: Final = 2.0
#: The same where operators' actions arrive by NOTIFY: failures in this process are known here, and those of a process
#: that died are found by polling.
POLL_NOTIFIED_S_MAX: Final = 20.0
#: How long a partition catches up before the deliveries that queue there have a turn.
CATCH_UP_S_MAX: Final = 1.0
#: Renewals within the time for which `take` keeps others away, which is two leases: all but one may fail.
RENEWALS: Final = 6
#: How often to look for messages that no other wakes.
WAKE_STRANDED_EVERY_S: Final = 300.0
#: Time limit for putting back messages that were cut off.
PUT_BACK_S_MAX: Final = 10.0


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
        wakeups: Wakeups | None,
    ) -> None:
        self._inbox = inbox
        self._runner = runner
        self._calls = calls
        self._partitions = partitions
        self._health = health
        self._listener = listener
        self._stop = asyncio.Event()
        #: Messages that are being run, or wait for the turn of their partition.
        self._running: dict[asyncio.Task[None], FailedMessage] = {}
        #: Set when one of them ends.
        self._ended = asyncio.Event()
        #: Set when a message may be due sooner than the next known one.
        self.due_signal = wakeups.actions.listen() if wakeups else Signal()
        self._wakeups = wakeups
        self.polled_at = time.monotonic()
        self._stranded_at = self.polled_at if inbox.consumer.order == "strict" else math.inf

    async def run(self, stop: asyncio.Event) -> None:
        """Run what is due; when nothing is, poll at growing intervals."""
        self._stop = stop
        wait_s = POLL_S_MIN
        try:
            while not stop.is_set():
                self._ended.clear()
                wait_s = await self._look(stop, wait_s)
                self.polled_at = time.monotonic()
                if self._running:
                    await either(stop, self._ended, timeout_s=wait_s)
                else:
                    await pause(stop, POLL_S_MIN)  # constant signals do not cause constant polling
                    await self._wait(wait_s - POLL_S_MIN)
        except StoreError as error:
            await self._health.pause(stop, "failed messages", error)

    async def _wait(self, seconds: float) -> None:
        """Wait until something may be due. A loop that waits is alive, and says so."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if await self.due_signal.wait(min(left_s, POLL_S_MAX)):
                return
            self.polled_at = time.monotonic()

    async def renew(self, stop: asyncio.Event) -> None:
        """Renew the leases of messages that were in hand at the last renewal, too."""
        names = set(self._inbox.in_hand)
        await pause(stop, 2 * self._inbox.consumer.lease_s / RENEWALS)
        names &= self._inbox.in_hand.keys()
        if names:
            await self._runner.run(renew_in_hand(self._inbox, names))

    async def cut_off(self, after_s: float) -> None:
        """Wait for those that run; those that still do after so long are cancelled."""
        started = dict(self._running)
        try:
            await join_tasks(started, after_s)
        finally:
            self._inbox.abandon(failed_message for task, failed_message in started.items() if task.cancelled())

    async def put_back(self) -> None:
        """Put back what was cut off. Should that fail, these are suspects."""
        if self._inbox.unfinished or self._inbox.suspects:
            with suppress(OnefoldError, TimeoutError):
                async with asyncio.timeout(PUT_BACK_S_MAX):
                    await self._runner.run(give_up(self._inbox))

    async def end(self) -> None:
        """Cut off what still runs, and put it back."""
        if self._wakeups is not None:
            self._wakeups.actions.leave(self.due_signal)
        try:
            await self.cut_off(0.0)
        finally:
            await self.put_back()

    async def _look(self, stop: asyncio.Event, waited_s: float) -> float:
        """Start what is due; in how many seconds to look again."""
        if not self._health.healthy.is_set():
            await either(stop, self._health.healthy)
        if self._inbox.unfinished or self._inbox.suspects:
            await self._runner.run(give_up(self._inbox))
        if time.monotonic() >= self._stranded_at:
            await self._runner.run(wake_stranded(self._inbox))
            self._stranded_at = time.monotonic() + WAKE_STRANDED_EVERY_S
        self.due_signal.clear()  # before the query: a signal after this wakes the loop
        due_in_s = await self._runner.run(next_due(self._inbox))
        started = await self._start() if due_in_s is not None and due_in_s <= 0 else 0
        self._health.note_success("failed messages")
        notified = self._wakeups is not None and self._wakeups.listeners
        most_s = min(POLL_NOTIFIED_S_MAX, max(POLL_S_MAX, self._inbox.consumer.lease_s / 2)) if notified else POLL_S_MAX
        wait_s = POLL_S_MIN if started else min(2 * waited_s, most_s)
        if due_in_s is not None and due_in_s > 0:
            wait_s = min(wait_s, max(POLL_S_MIN, due_in_s))
        return wait_s

    async def _start(self) -> int:
        """Start as many failed messages as there is room for, and at most one suspect at a time; how many."""
        if not self._calls.room.is_set():
            return 0
        free = self._inbox.consumer.concurrency - len(self._running)
        count = self._begin(await self._take(take(self._inbox, free))) if free > 0 else 0
        if not any(failed_message.started > failed_message.failed + 1 for failed_message in self._running.values()):
            suspects = take(self._inbox, 1, suspects=True, listener=self._listener)
            count += self._begin(await self._take(suspects))
        return count

    async def _take(self, taking: Flow[list[FailedMessage]]) -> list[FailedMessage]:
        """What this starts. A task that is cancelled meanwhile waits for the answer and puts it back: a message that
        was started and is in no hand looks as if it had killed its process."""
        task = asyncio.create_task(self._runner.run(taking))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with suppress(OnefoldError, TimeoutError):
                async with asyncio.timeout(PUT_BACK_S_MAX):
                    self._inbox.abandon(await task)
            raise

    def _begin(self, failed_messages: list[FailedMessage]) -> int:
        for failed_message in failed_messages:
            task = asyncio.create_task(self._run(failed_message))
            self._running[task] = failed_message
            task.add_done_callback(self._forget)
        return len(failed_messages)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._ended.set()

    async def _run(self, failed_message: FailedMessage) -> None:
        async with self._partitions.of_stream(failed_message.stream).turn:
            try:
                event = await self._runner.handle(functools.partial(self._inbox.run_failed, failed_message))
                if self._inbox.consumer.order == "strict" and isinstance(event, Handled):
                    await self._catch_up(failed_message)
            except Exception as error:
                self._health.note_failure("handling", error)

    async def _catch_up(self, last: StoredMessage) -> None:
        """Run what is parked behind `last`, one transaction after the other, until one fails; other messages of the
        partition wait CATCH_UP_S_MAX at most."""
        over_at = time.monotonic() + CATCH_UP_S_MAX
        while time.monotonic() < over_at and not self._stop.is_set():
            failed_messages = remaining = await self._take(take_run(self._inbox, last))
            if not failed_messages:
                return
            try:
                events = await self._runner.handle(functools.partial(run_in_one_go, self._inbox, failed_messages))
                if events:
                    last = failed_messages[len(events) - 1]
                    continue
                while remaining:
                    event = await self._runner.handle(functools.partial(self._inbox.run_failed, remaining[0]))
                    remaining = remaining[1:]
                    if not isinstance(event, Handled | Duplicate):
                        break
                if remaining:
                    await self._runner.run(put_back(self._inbox, remaining))
                return
            except BaseException:
                self._inbox.abandon(remaining)
                raise
