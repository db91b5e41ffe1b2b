"""Tracks what keeps a consumer from working: the broker, the database, or an error in our own code. A pause is reported
once when it begins and once when it ends, and each trouble has its own growing pauses.

A trouble is over when what failed has worked. There may be nothing more to handle (the message went elsewhere): then it
is over when the database was available for QUIET_S without a failure. A successful read is not enough: a database that
takes no writes can be read, and each poll would report a false recovery.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from onefold._kernel.log_context import log_extra
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import ConsumerPaused, ConsumerResumed
from onefold._worker.backoff_timer import BackoffTimer, pause
from onefold._worker.cancellation import either
from onefold.errors import BrokerUnavailable, StoreError

Trouble: TypeAlias = Literal["broker", "handling", "failed messages"]

#: After how long without a failure handling counts as working, if nothing was handled: some of the longest pauses.
QUIET_S: Final = 30.0

_log = logging.getLogger("onefold.consumer")


class ConsumerHealth:
    """The troubles of one consumer."""

    def __init__(self, consumer: str, listener: Listener | None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._consumer = consumer
        self._listener = listener
        self._now = now
        self._backoff = {trouble: BackoffTimer() for trouble in ("broker", "handling", "failed messages")}
        #: The current troubles, and when each last failed.
        self._failed_at: dict[Trouble, float] = {}
        #: Whether handlers may run. By itself it is set again after a pause.
        self.healthy = asyncio.Event()
        self.healthy.set()

    def note_failure(self, trouble: Trouble, error: Exception) -> None:
        """Record a failure of the database, the broker or our own code, and pause before the next attempt."""
        # Without the broker, failed messages and received deliveries can still be handled.
        if trouble != "broker" and self.healthy.is_set():
            self.healthy.clear()
            # By a timer: the task that noted it goes on to other things, the one that receives may wait for the broker.
            asyncio.get_running_loop().call_later(self._backoff[trouble].next_s(), self.healthy.set)
        if not isinstance(error, StoreError | BrokerUnavailable):
            _log.error("consumer %r: %s", self._consumer, error, exc_info=error)
        if not self._failed_at:
            extra = log_extra("consumer.paused", consumer=self._consumer)
            _log.warning("consumer %r paused (%s): %s; it tries again", self._consumer, trouble, error, extra=extra)
            emit(self._listener, ConsumerPaused(self._consumer, f"{type(error).__name__}: {error}"))
        self._failed_at[trouble] = self._now()

    def note_success(self, trouble: Trouble) -> None:
        """Record a success, which ends this trouble."""
        self._backoff[trouble].reset()
        if not self._failed_at:
            return
        self._failed_at.pop(trouble, None)
        if trouble == "failed messages" and self._failed_at.get("handling", self._now()) <= self._now() - QUIET_S:
            del self._failed_at["handling"]
        if not self._failed_at:
            _log.warning(
                "consumer %r resumed", self._consumer, extra=log_extra("consumer.resumed", consumer=self._consumer)
            )
            emit(self._listener, ConsumerResumed(self._consumer))

    async def pause(self, stop: asyncio.Event, trouble: Trouble, error: Exception) -> None:
        """Record the failure and wait, longer each time."""
        self.note_failure(trouble, error)
        if trouble == "broker":
            await pause(stop, self._backoff[trouble].next_s())
        else:
            await either(stop, self.healthy)
