"""Log lines about messages that fail, for operators."""

from __future__ import annotations

import logging

from onefold._kernel.log_context import log_extra
from onefold._kernel.telemetry.consumer_events import DeadLettered, Failed, InboxEvent

_log = logging.getLogger("onefold.consumer")


def log_failure(event: InboxEvent, attempts: int) -> None:
    """Log that a message failed, or that it is not tried again."""
    match event:
        case Failed(consumer, topic, reason, failed, id_, retry_s=retry_s):
            _log.warning(
                "consumer %r: message %s on %r failed, attempt %d of %d: %s; it is tried again%s",
                consumer, id_, topic, failed, attempts, reason, "" if retry_s is None else f" in {retry_s:.3g} s",
                extra=log_extra("message.failed", consumer=consumer, topic=topic, message_id=id_, attempt=failed),
            )  # fmt: skip
        case DeadLettered(consumer, topic, reason, id_):
            _log.error(
                "consumer %r: message %s on %r is a dead letter: %s; `onefold dlq` shows and redrives it",
                consumer, id_, topic, reason,
                extra=log_extra("message.dead", consumer=consumer, topic=topic, message_id=id_),
            )  # fmt: skip
        case _:
            pass
