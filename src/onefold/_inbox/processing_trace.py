"""Attempts at messages, as spans and log lines have them: a span for each, and one for messages that share a
transaction.

An attempt at a failed message, also one of a redrive, belongs to the trace of the first: the message is
kept with the context that it came with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from onefold._inbox.stored_message import FailedMessage, StoredMessage
from onefold._kernel.effects import Flow
from onefold._kernel.log_context import LogField, message_at_hand
from onefold._kernel.message_trace import begin_processing
from onefold._kernel.messages import Delivery, pick_carried
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.telemetry.consumer_events import (
    DeadLettered,
    Dropped,
    Duplicate,
    Failed,
    Handled,
    InboxEvent,
    Parked,
)
from onefold._kernel.tracing import Span, Tracer

_OUTCOMES: Final[Mapping[type, str]] = {
    Handled: "handled",
    Duplicate: "duplicate",
    Dropped: "dropped",
    Parked: "parked",
    Failed: "failed",
    DeadLettered: "dead",
}

#: An attempt at a message.
Attempt: TypeAlias = Callable[[StoredMessage, OwnedTransaction[Any]], Flow[InboxEvent]]


class _LoggedMessage(NamedTuple):
    """A message as log lines have it that are written while it is handled."""

    consumer: str
    stored: StoredMessage

    def log_fields(self) -> dict[str, LogField]:
        stored = self.stored
        fields: dict[str, LogField] = {
            "consumer": self.consumer,
            "topic": stored.topic,
            "message_id": stored.id,
            "attempt": _attempt_of(stored),
        }
        carried = {} if stored.message is None else pick_carried(stored.message.headers)
        if "correlation-id" in carried:
            fields["correlation_id"] = carried["correlation-id"]
        return fields


def _attempt_of(stored: StoredMessage) -> int:
    return stored.failed + 1 if isinstance(stored, FailedMessage) else 1


@contextmanager
def trace_handling(
    tracer: Tracer, consumer: str, message_id: str, delivery: Delivery | None
) -> Iterator[Callable[[bool], bool]]:
    """The span of a block of `once.handling(...)`; the block notes whether its message is new. Its queue may have a
    span of its own, which is the parent; else the context of the message is."""
    attributes = {
        "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.message.id": message_id, "messaging.consumer.group.name": consumer,
    }  # fmt: skip
    headers: Mapping[str, str] = {} if delivery is None else delivery.headers
    span = tracer.begin_span(f"process {consumer}", "consumer", attributes, parent=headers, links=(headers,))
    outcome = "failed"

    def note(is_new: bool) -> bool:
        nonlocal outcome
        outcome = "handled" if is_new else "duplicate"
        return is_new

    try:
        with span.active():
            yield note
    except BaseException as error:
        outcome = "failed"
        span.fail(error)
        raise
    finally:
        span.set("onefold.outcome", outcome)
        span.end()


class ProcessingTrace:
    """The spans of one consumer; none, where there is no tracer."""

    def __init__(self, tracer: Tracer | None, consumer: str) -> None:
        self._tracer = tracer
        self._consumer = consumer

    def wrap(self, attempt: Attempt) -> Attempt:
        """An attempt at a message in a span of its own, with the message's fields on log lines."""
        tracer, consumer = self._tracer, self._consumer

        async def note(stored: StoredMessage, tx: OwnedTransaction[Any]) -> InboxEvent:
            token = message_at_hand.set(_LoggedMessage(consumer, stored))
            try:
                return await attempt(stored, tx)
            finally:
                message_at_hand.reset(token)

        if tracer is None:
            return note

        async def follow(stored: StoredMessage, tx: OwnedTransaction[Any]) -> InboxEvent:
            span = self._begin(tracer, stored)
            try:
                with span.active():
                    event = await note(stored, tx)
                self._note(span, event)
                return event
            except BaseException as error:
                span.fail(error)
                raise
            finally:
                span.end()

        return follow

    async def follow_many(
        self, stored_messages: Sequence[StoredMessage], attempt: Flow[Exception | None]
    ) -> Exception | None:
        """Handle messages that share a transaction in a span that is linked to each. An error: none was handled."""
        if self._tracer is None:
            return await attempt
        messages = [stored.message for stored in stored_messages if stored.message is not None]
        system = stored_messages[0].origin.broker
        span = begin_processing(self._tracer, self._consumer, messages, system=system)
        try:
            with span.active():
                error = await attempt
            span.set("onefold.outcome", "handled" if error is None else "failed")
            if error is not None:
                span.fail(error)
            return error
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            span.end()

    def note(self, stored: StoredMessage, event: InboxEvent) -> InboxEvent:
        """The outcome of a message without an attempt at it."""
        if self._tracer is not None:
            span = self._begin(self._tracer, stored)
            self._note(span, event)
            span.end()
        return event

    def _begin(self, tracer: Tracer, stored: StoredMessage) -> Span:
        assert stored.message is not None
        failed_message = stored if isinstance(stored, FailedMessage) else None
        system, attempt = stored.origin.broker, _attempt_of(stored)
        span = begin_processing(tracer, self._consumer, [stored.message], system=system, attempt=attempt)
        if failed_message is not None and failed_message.redrive is not None:
            span.set("onefold.redriven", True)
        return span

    @staticmethod
    def _note(span: Span, event: InboxEvent) -> None:
        span.set("onefold.outcome", _OUTCOMES[type(event)])
        if isinstance(event, Failed | DeadLettered):
            kind = event.reason.partition(":")[0]  # the class of the exception: what follows may hold anything
            span.fail(kind if kind.isidentifier() else "refused")
