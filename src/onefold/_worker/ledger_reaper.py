"""Deletes expired ledger rows of consumers without a worker, which receive their messages by other means.

A process that handles such a message deletes, after it and every few minutes, the rows of its consumer that are past
their retention. So few expired rows pile up wherever messages are handled at all, and nothing has to be started.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from onefold._kernel.effects import Flow
from onefold._kernel.telemetry import Listener
from onefold._policy.ranges import require
from onefold.errors import OnefoldError

DAY_S: Final = 86_400.0
RETENTION_S: Final = 7 * DAY_S
EVERY_S: Final = 300.0

#: At most so many rows are deleted after one message.
BATCH_ROWS: Final = 1000
BATCHES_MAX: Final = 10

_log = logging.getLogger("onefold.consumer")


class LedgerReaper:
    """Schedules the deletion of expired ledger rows, per consumer, in this process."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._next_at: dict[str, float] = {}

    def check(self, consumer: str, retention_s: float) -> None:
        """Refuse a retention out of range."""
        require(f"consumer {consumer!r}: retention_s", retention_s, least=1, most=3650 * DAY_S)

    def due(self, consumer: str, retention_s: float, listener: Listener | None = None) -> Flow[None] | None:
        """The flow that deletes, if it is due: with the first message here, and then every EVERY_S."""
        now = time.monotonic()
        if now < self._next_at.get(consumer, now):
            return None
        self._next_at[consumer] = now + EVERY_S
        return self._forget(consumer, retention_s, listener)

    async def _forget(self, consumer: str, retention_s: float, listener: Listener | None) -> None:
        from onefold._inbox.retention import reap

        try:
            limits = {"limit": BATCH_ROWS, "batches_max": BATCHES_MAX}
            await reap(self._dialect, consumer, retention_s, **limits, listener=listener)
        except OnefoldError as error:  # the message is handled, with or without the deletion
            _log.warning(
                "consumer %r: ledger rows past their retention could not be deleted; tried again %g s later: %s",
                consumer, EVERY_S, error,
            )  # fmt: skip
