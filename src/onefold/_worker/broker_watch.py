"""A relay's broker, watched: since when it has not answered, and a client of it that was cancelled elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from onefold._kernel.executors import BrokerExecutor
from onefold._kernel.foreign_cancellations import resist
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.ports import AsyncDatabase, Broker

#: How long a broker may leave a call unanswered before the relay counts as standing still: webhooks take their time.
STILL_S: Final = 300.0

_log = logging.getLogger("onefold.relay")


class BrokerWatch:
    """Since when the broker has not answered, while it is asked for something."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told = False

    @property
    def waited_s(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def stands_still_s(self) -> float | None:
        """For how long it has not answered, where that is too long."""
        return self.waited_s if self.waited_s > STILL_S else None

    def note(self) -> None:
        """Log, once for each wait, that it takes too long."""
        if self.waited_s > STILL_S and not self._told:
            self._told = True
            _log.error(
                "the broker has not answered for %.0f s: what was sent to it waits, and the relay stands still until "
                "it answers. Restart the process, and give the broker's client a time-out",
                self.waited_s,
            )

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._told:
            _log.warning("the broker has answered after %.0f s", self.waited_s)
        self._since, self._told = None, False


class RelayExecutor(BrokerExecutor[Any]):
    """A broker's client that is cancelled elsewhere has failed. Taken for a stop, that would end the relay."""

    __slots__ = ("_broker_watch",)

    def __init__(self, database: AsyncDatabase[Any], broker: Broker, broker_watch: BrokerWatch) -> None:
        super().__init__(database, broker)
        self._broker_watch = broker_watch

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        with self._broker_watch:
            return await resist(super().publish(messages))
