"""Log lines about an event that was refused: which, by what, how often, why, and what happens next."""

from __future__ import annotations

import logging

from onefold._kernel.log_context import LogField, log_extra
from onefold._kernel.messages import Message, pick_carried
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
        extra=_describe(row, "event.dead" if dead else "event.refused", attempt),
    )  # fmt: skip


def log_not_subscribed(topic: str, error: BrokerError) -> None:
    """Once for a topic, until it takes something: nothing is wrong with any of its events."""
    extra = log_extra("topic.not_subscribed", topic=topic)
    _log.warning("events on %r are not sent yet: %s; `onefold outbox` shows them", topic, error, extra=extra)


def _describe(row: ClaimedRow, event: str, attempt: int) -> dict[str, dict[str, LogField]]:
    message = row.message
    if not isinstance(message, Message):
        return log_extra(event, topic=row.destination, attempt=attempt)
    correlation_id = pick_carried(message.headers).get("correlation-id")
    return log_extra(event, topic=message.topic, message_id=message.id, attempt=attempt, correlation_id=correlation_id)
