"""Watches a relay's broker: how long a call is unanswered, and cancellations that come out of its client."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from onefold._kernel.executors import BrokerExecutor
from onefold._kernel.foreign_cancellations import resist
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.ports import AsyncDatabase, Broker

#: How long a broker, or the database, may leave a call unanswered before the relay counts as stalled: webhooks take
#: their time.
STALLED_S: Final = 300.0

_log = logging.getLogger("onefold.relay")


class BrokerWatch:
    """Measures how long the broker has not answered the current call."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._answered_at = float("-inf")
        self._is_logged = False

    @property
    def is_waiting(self) -> bool:
        return self._since is not None

    @property
    def waited_s(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def progress_at(self) -> float:
        """When the broker last answered. While a call is not unanswered for too long: now."""
        if self._since is None:
            return self._answered_at
        return self._since if self.waited_s > STALLED_S else time.monotonic()

    def note(self) -> None:
        """Log a call that takes too long, once."""
        if self.waited_s > STALLED_S and not self._is_logged:
            self._is_logged = True
            _log.error(
                "the broker has not answered for %.0f s: its events wait, and the relay publishes nothing until it "
                "answers. Restart the process, and give the broker's client a time-out",
                self.waited_s,
            )

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._is_logged:
            _log.warning("the broker has answered after %.0f s", self.waited_s)
        self._since, self._is_logged = None, False
        self._answered_at = time.monotonic()


class RelayExecutor(BrokerExecutor[Any]):
    """Turns a CancelledError out of the broker's client into a failure. Taken for a stop, it would end the relay."""

    __slots__ = ("_broker_watch",)

    def __init__(self, database: AsyncDatabase[Any], broker: Broker, broker_watch: BrokerWatch) -> None:
        super().__init__(database, broker)
        self._broker_watch = broker_watch

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        with self._broker_watch:
            return await resist(super().publish(messages))
