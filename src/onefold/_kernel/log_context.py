"""What a log line says beside its text: the event, its ids, and the request or message that it was written at.

A line of onefold's own brings its fields as `extra`. Those of the request or the message that this task or thread is at
are looked up when a line is formatted, so that a request of which nothing is logged pays nothing for them; they are on
the lines of the application's own loggers, too.

Invariant: a key is in no field but as its hash, and neither a principal nor a body is in any.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

LogField: TypeAlias = str | int

#: The attribute of a log record that has the fields of a line.
ATTRIBUTE: Final = "onefold"


class AtHand(Protocol):
    """A request or a message, as log lines have it."""

    def log_fields(self) -> Mapping[str, LogField]: ...


#: The message, or the batch, that is being handled here.
message_at_hand: ContextVar[AtHand | None] = ContextVar("onefold_current_message", default=None)


def log_extra(event: str, **fields: LogField | None) -> dict[str, dict[str, LogField]]:
    """For `extra` of a log call. What is None is left out."""
    return {ATTRIBUTE: {"event": event, **{name: value for name, value in fields.items() if value is not None}}}


def fields_here() -> dict[str, LogField]:
    """Of the request and the message that this task or thread is at."""
    from onefold._kernel.current_transaction import current_request  # a client has no need of it

    found: dict[str, LogField] = {}
    for at_hand in (current_request.get(), message_at_hand.get()):
        if at_hand is not None:
            found |= at_hand.log_fields()
    return found
