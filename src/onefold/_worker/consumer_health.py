"""What keeps a consumer from working: the broker, the database, or something in our own code. It is told once when a
consumer pauses and once when it goes on, and each trouble has its own growing pauses.

A trouble is over when what failed has worked. Handling may not be asked for again (the message went elsewhere): then it
is over when the database has been there for a while and nothing has failed. That it can be read is not enough: one that
takes no writes can be read as well, and each look would tell of a recovery that is none.
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
        #: What is wrong, and when that was last seen.
        self._seen: dict[Trouble, float] = {}
        #: Whether handlers may run. By itself it is set again after a pause.
        self.healthy = asyncio.Event()
        self.healthy.set()

    def note_failure(self, trouble: Trouble, error: Exception) -> None:
        """The database or the broker is away, or our own code is wrong: in any case not to be repeated at once."""
        # Without the broker failed messages, and what is at hand, can be handled all the same.
        if trouble != "broker" and self.healthy.is_set():
            self.healthy.clear()
            # By a timer: the task that noted it goes on to other things, the one that receives may wait for the broker.
            asyncio.get_running_loop().call_later(self._backoff[trouble].next_s(), self.healthy.set)
        if not isinstance(error, StoreError | BrokerUnavailable):
            _log.error("consumer %r: %s", self._consumer, error, exc_info=error)
        if not self._seen:
            extra = log_extra("consumer.paused", consumer=self._consumer)
            _log.warning("consumer %r paused (%s): %s; it tries again", self._consumer, trouble, error, extra=extra)
            emit(self._listener, ConsumerPaused(self._consumer, f"{type(error).__name__}: {error}"))
        self._seen[trouble] = self._now()

    def note_success(self, where: Trouble) -> None:
        """It works there."""
        self._backoff[where].reset()
        if not self._seen:
            return
        self._seen.pop(where, None)
        if where == "failed messages" and self._seen.get("handling", self._now()) <= self._now() - QUIET_S:
            del self._seen["handling"]
        if not self._seen:
            _log.warning(
                "consumer %r resumed", self._consumer, extra=log_extra("consumer.resumed", consumer=self._consumer)
            )
            emit(self._listener, ConsumerResumed(self._consumer))

    async def pause(self, stop: asyncio.Event, trouble: Trouble, error: Exception) -> None:
        """Note it and wait, longer each time."""
        self.note_failure(trouble, error)
        if trouble == "broker":
            await pause(stop, self._backoff[trouble].next_s())
        else:
            await either(stop, self.healthy)
