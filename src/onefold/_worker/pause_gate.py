"""Pauses a consumer in this process: running handlers finish; when it is resumed, it runs again.

Invariant: a consumer that is paused receives nothing and runs no failed message, in no process, whenever that was
started. It is stopped as at the end of its process: its messages wait at the broker, its failed messages in the
database. Threads that did not return, and the registration of this process, are kept over a pause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from onefold._inbox.consumer import Consumer
from onefold._inbox.pausing import pauses
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.foreign_cancellations import resist
from onefold._kernel.log_context import log_extra
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import ConsumerPaused, ConsumerResumed
from onefold._kernel.wakeup_signals import Signals, Wakeups
from onefold._worker.backoff_timer import BackoffTimer, pause
from onefold._worker.cancellation import join_tasks
from onefold._worker.consumer_worker import ConsumerWorker
from onefold._worker.halt import Halt
from onefold._worker.handler_calls import HandlerCalls
from onefold._worker.membership import Membership
from onefold.errors import StoreError

#: How often to check whether a consumer is paused: each check is one or two of the few transactions of an idle one.
LOOK_S: Final = 5.0
#: The same where operators' actions arrive by NOTIFY, which triggers a check at once.
LOOK_NOTIFIED_S: Final = 20.0

#: How long a stop waits for the registry to know of it.
END_S_MAX: Final = 3.0

MakeWorker: TypeAlias = Callable[[HandlerCalls, Membership], ConsumerWorker]

_log = logging.getLogger("onefold.consumer")


class PauseGate:
    """Runs one consumer while it is not paused. `make` makes its worker, a new one each time."""

    def __init__(
        self,
        database: AsyncDatabase[Any],
        broker: Broker,
        consumer: Consumer,
        make: MakeWorker,
        listener: Listener | None,
        wakeups: Wakeups | None = None,
    ) -> None:
        self._wakeups = wakeups
        self._database = database
        self._name = consumer.name
        self._make = make
        self._calls = HandlerCalls(consumer)
        self._membership = Membership(database, broker, consumer)
        #: Set after the consumer's first attempt to subscribe, successful or not.
        self.tried = self._membership.tried
        self._listener = listener
        self._paused = False
        self._looked_at = time.monotonic()
        #: Runs the consumer; None while it is paused.
        self.worker: ConsumerWorker | None = None

    async def run(self, stop: asyncio.Event, grace_s: float, opened: asyncio.Event) -> None:
        """Run the consumer whenever it is not paused, until `stop` is set. `opened` is set when the broker is open."""
        try:
            while await self._wait_unpaused(stop):
                await self._run(stop, grace_s, opened)
        finally:
            with suppress(StoreError, TimeoutError):  # then it counts as ended when it has not been seen for a while
                async with asyncio.timeout(END_S_MAX):
                    await self._membership.end()

    async def _run(self, stop: asyncio.Event, grace_s: float, opened: asyncio.Event) -> None:
        halt = Halt(grace_s)
        watches = [asyncio.create_task(work) for work in (_pass_on(stop, halt), self._watch(halt))]
        self.worker = self._make(self._calls, self._membership)
        try:
            await self.worker.run(halt, opened)
        finally:
            self.worker = None
            self._calls.end()
            await join_tasks(watches, 0.0)

    def turn(self) -> None:
        """Note that the runner is trying to open the broker once more."""
        if self.worker is not None:
            self.worker.turn()

    def alive(self) -> dict[str, float]:
        """Seconds since the consumer's loops last turned; while it is paused, since the pause was last checked. For
        each handler past its time limit, seconds since it began."""
        if self.worker is not None:
            name, since = self._name, self.worker.turned_at
        else:
            name, since = f"{self._name}: paused" if self._paused else self._name, self._looked_at
        overdue = self._calls.overdue().items()
        return {
            name: time.monotonic() - since,
            **{f"{self._name}: handler of message {message_id}": seconds for message_id, seconds in overdue},
        }

    async def _wait_unpaused(self, stop: asyncio.Event) -> bool:
        """Wait until the consumer may run; False: `stop` was set. While its pause cannot be read, it does not run."""
        backoff = BackoffTimer()
        while not stop.is_set():
            try:
                if not await self._look():
                    return True
                await resist(self._membership.register())  # paused, but alive
                wait_s = LOOK_S
            except Exception as error:
                if backoff.failures == 0:
                    is_unexpected = not isinstance(error, StoreError)
                    _log.warning(
                        "consumer %r is waiting: could not read whether it is paused; retrying: %s",
                        self._name,
                        error,
                        exc_info=is_unexpected,
                    )
                wait_s = backoff.next_s()
            self.tried.set()
            await pause(stop, wait_s)
        return False

    async def _watch(self, halt: asyncio.Event) -> None:
        """Stop the consumer when it is paused. If that cannot be read, it keeps running."""
        actions = Signals() if self._wakeups is None else self._wakeups.actions
        action_signal = actions.listen()
        try:
            while not halt.is_set():
                await action_signal.wait(
                    LOOK_NOTIFIED_S if self._wakeups is not None and self._wakeups.listeners else LOOK_S
                )
                action_signal.clear()
                await self._halt_if_paused(halt)
        finally:
            actions.leave(action_signal)

    async def _halt_if_paused(self, halt: asyncio.Event) -> None:
        try:
            if not halt.is_set() and await self._look():
                halt.set()
        except StoreError:
            pass
        except Exception:
            _log.exception("consumer %r: could not read whether it is paused; it keeps running", self._name)

    async def _look(self) -> bool:
        """Whether it is paused. A change is logged, and emitted to the listener."""
        found = await resist(run_async(pauses(self._database.dialect, self._name), TaskExecutor(self._database)))
        self._looked_at = time.monotonic()
        if bool(found) is not self._paused:
            self._paused = bool(found)
            if found:
                _log.warning(
                    "consumer %r is paused by %s; it receives nothing until it is resumed: onefold consumers resume %s",
                    self._name, found[0].actor, self._name, extra=log_extra("consumer.paused", consumer=self._name),
                )  # fmt: skip
                emit(self._listener, ConsumerPaused(self._name, f"paused by {found[0].actor}"))
            else:
                extra = log_extra("consumer.resumed", consumer=self._name)
                _log.warning("consumer %r is resumed by an operator", self._name, extra=extra)
                emit(self._listener, ConsumerResumed(self._name))
        return self._paused


async def _pass_on(stop: asyncio.Event, halt: asyncio.Event) -> None:
    await stop.wait()
    halt.set()
