"""Spans of messages, as the messaging conventions of OpenTelemetry have them.

An event is created in the transaction that publishes it: that span's context travels with it, through the outbox and
the broker, and nothing on the way changes it. The relay that sends it and the consumer that processes it are children
of that span, and linked to it. So are all attempts: they are found together.

Spans have the id of a message, its topic and its consumer; its key, its other headers and its data never.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onefold._kernel.messages import Message, pick_carried
from onefold._kernel.tracing import Attribute, Span, Tracer

#: What an event is in before a relay has sent it.
OUTBOX: Final = "onefold"

#: Of a batch: as many links as an SDK keeps of one span by default.
_LINKS_MAX: Final = 128


def system_of(broker: object) -> str:
    """What a broker is called in spans. One of the application's own says so by an attribute `system`."""
    return str(getattr(broker, "system", type(broker).__name__))


def trace_creation(tracer: Tracer, message: Message) -> dict[str, str]:
    """Make the span of an event that is published; the headers that it travels with."""
    attributes = _attributes(OUTBOX, message, "publish", "create")
    span = tracer.begin_span(f"publish {message.topic}", "producer", attributes, parent=message.headers)
    span.end()
    return {**message.headers, **span.carrier()}


def begin_sending(tracer: Tracer, message: Message, *, system: str, attempt: int) -> Span:
    """An event is handed to its broker, for the so many-th time."""
    attributes = _attributes(system, message, "send", "send")
    attributes["onefold.attempt"] = attempt
    if message.endpoint is not None:
        attributes["onefold.endpoint"] = message.endpoint
    return tracer.begin_span(
        f"send {message.topic}", "client", attributes, parent=message.headers, links=(message.headers,), inherits=False
    )


def begin_processing(
    tracer: Tracer,
    consumer: str,
    messages: Sequence[Message],
    *,
    system: str = "",
    attempt: int = 1,
    inherits: bool = False,
) -> Span:
    """A consumer handles a message, or a batch of them. A batch has no one parent: it is linked to each."""
    first, alone = messages[0], len(messages) == 1
    attributes = _attributes(system, first if alone else None, "process", "process")
    attributes |= {"messaging.destination.name": first.topic, "messaging.consumer.group.name": consumer}
    if alone:
        attributes["onefold.attempt"] = attempt
    else:
        attributes["messaging.batch.message_count"] = len(messages)
    return tracer.begin_span(
        f"process {first.topic}",
        "consumer",
        attributes,
        parent=first.headers if alone else None,
        links=[message.headers for message in messages[:_LINKS_MAX]],
        inherits=inherits,
    )


def _attributes(system: str, message: Message | None, name: str, kind: str) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {"messaging.operation.name": name, "messaging.operation.type": kind}
    if system:
        found["messaging.system"] = system
    if message is not None:
        found |= {"messaging.destination.name": message.topic, "messaging.message.id": message.id}
        if (correlation_id := pick_carried(message.headers).get("correlation-id")) is not None:
            found["messaging.message.conversation_id"] = correlation_id
            found["onefold.correlation_id"] = correlation_id
    return found
