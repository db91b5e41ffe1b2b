"""The telemetry contract: what happened, as values handed to a listener.

Metrics, traces and logs are made from these by adapters; the library itself counts nothing. A listener must be
quick and must not raise; what it raises is reported as a warning and changes no outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal[
    "run", "replay", "in_flight", "mismatch", "expired", "unprotected", "unavailable", "limited"
]
ShedReason: TypeAlias = Literal["queue full", "displaced", "waited too long", "deadline"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A keyed request was judged. `operation` is method and route template, never the key or the principal."""

    operation: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settled:
    """A request's answer was stored and committed together with its business rows."""

    operation: str
    status: int
    body_kept: bool


@dataclass(frozen=True, slots=True)
class Released:
    """A request left nothing behind; a retry runs again. `reason` says why in one phrase."""

    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reaped:
    """Expired records were forgotten."""

    records: int


@dataclass(frozen=True, slots=True)
class Relayed:
    """A relay handed events to the broker: so many were confirmed, so many refused and stopped until their next try."""

    published: int
    refused: int


@dataclass(frozen=True, slots=True)
class RelayPaused:
    """The broker confirms nothing, or the database cannot be reached: nothing is published until RelayResumed. Told
    once."""

    reason: str


@dataclass(frozen=True, slots=True)
class RelayResumed:
    """What had paused the relay is over."""


@dataclass(frozen=True, slots=True)
class DestinationPaused:
    """A topic or an endpoint takes nothing: its events wait, the others go on. Told once."""

    destination: str
    reason: str


@dataclass(frozen=True, slots=True)
class DestinationResumed:
    """A destination takes events again."""

    destination: str


@dataclass(frozen=True, slots=True)
class SetAside:
    """An event is a dead letter of the outbox: it was refused too often, or at hand when relays died. It waits for a
    person, and so does its key."""

    id: str
    topic: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BucketsHeld:
    """How many buckets a relay holds, whenever that changes."""

    relay: str
    buckets: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Published events past their retention were deleted."""

    events: int


@dataclass(frozen=True, slots=True)
class Handled:
    """A message was handled: its rows, its events and its ledger row are committed."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A message was delivered that this consumer has handled, or keeps as a failed message."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A later version of its key was handled before, and the consumer wants the latest only."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Parked:
    """A message waits for an earlier version of its key."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A handler failed, for the `failed`th time with this message; it is tried again."""

    consumer: str
    topic: str
    reason: str
    failed: int
    id: str = ""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message is not tried again until a person says so."""

    consumer: str
    topic: str
    reason: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Redriven:
    """Dead failed messages are being tried again, because `actor` said so."""

    consumer: str
    actor: str
    failed_messages: int


@dataclass(frozen=True, slots=True)
class ConsumerPaused:
    """The broker or the database cannot be reached, or an operator has paused the consumer (`reason` says which):
    nothing is handled until ConsumerResumed. Told once."""

    consumer: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerResumed:
    """What had paused the consumer is over."""

    consumer: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """One attempt of an outgoing call ended: with a status, or with an error. The share of attempts that succeed is
    what the host really achieves; the share of calls (CallEnded) is what the application gets."""

    host: str
    method: str
    attempt: int
    elapsed_s: float
    status: int | None = None
    error: str | None = None
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class RetryPlanned:
    """There will be another attempt, after a wait. `throttled`: the server asked for patience."""

    host: str
    method: str
    attempt: int
    wait_s: float
    throttled: bool


@dataclass(frozen=True, slots=True)
class CallEnded:
    """An outgoing call is over. `reason` says why there was no further attempt; None where none was needed."""

    host: str
    method: str
    attempts: int
    succeeded: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class BreakerMoved:
    """The breaker of a host is now closed, open or half-open."""

    host: str
    state: str


@dataclass(frozen=True, slots=True)
class Shed:
    """A request was turned away before its handler ran, and left nothing behind."""

    reason: ShedReason
    priority: int


@dataclass(frozen=True, slots=True)
class LimitMoved:
    """So many requests may run at once from now on."""

    limit: int


SheddingEvent: TypeAlias = Shed | LimitMoved
ClientEvent: TypeAlias = AttemptEnded | RetryPlanned | CallEnded | BreakerMoved
RelayEvent: TypeAlias = (
    Relayed | RelayPaused | RelayResumed | DestinationPaused | DestinationResumed | SetAside | BucketsHeld | Forgotten
)
InboxEvent: TypeAlias = Handled | Duplicate | Dropped | Parked | Failed | DeadLettered
ConsumerEvent: TypeAlias = InboxEvent | Redriven | ConsumerPaused | ConsumerResumed
Event: TypeAlias = Claimed | Settled | Released | Reaped | RelayEvent | ConsumerEvent | ClientEvent | SheddingEvent
Listener: TypeAlias = Callable[[Event], None]

_log = logging.getLogger("onefold.telemetry")


def tell(listener: Listener | None, event: Event) -> None:
    """Hand an event to the listener, whose failure is its own affair."""
    if listener is None:
        return
    try:
        listener(event)
    except Exception:
        _log.warning(
            "the listener %r raised on %r; it is called again for the next event", listener, event, exc_info=True
        )
