"""What a relay did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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


RelayEvent: TypeAlias = (
    Relayed | RelayPaused | RelayResumed | DestinationPaused | DestinationResumed | SetAside | BucketsHeld | Forgotten
)
