"""What the log says of an event that was not taken: which, by whom, how often, why, and what happens next."""

from __future__ import annotations

import logging

from onefold._kernel.messages import Message
from onefold._outbox.claimed_rows import ClaimedRow
from onefold.errors import BrokerError

_log = logging.getLogger("onefold.relay")


def log_failure(row: ClaimedRow, error: BrokerError, *, attempt: int, attempts_max: int, wait_s: float) -> None:
    """One line for each event and attempt."""
    message = row.message
    dead = attempt >= attempts_max
    what = f"event {message.id} on {message.topic!r}" if isinstance(message, Message) else f"row {row.position}"
    then = "it is a dead letter, see `onefold outbox list`" if dead else f"it is tried again in {wait_s:.1f} s"
    _log.log(
        logging.ERROR if dead else logging.WARNING,
        "%s was not taken by %s (refused %d of %d times): %s; %s",
        what, row.destination, attempt, attempts_max, error, then,
    )  # fmt: skip


def log_not_subscribed(topic: str, error: BrokerError) -> None:
    """Once for a topic, until it takes something: nothing is wrong with any of its events."""
    _log.warning("events on %r are not sent yet: %s; `onefold outbox` shows them", topic, error)
