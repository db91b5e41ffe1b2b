"""What a relay did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Relayed:
    """A relay handed events to the broker: so many were confirmed, so many refused and stopped until their next try.
    `destinations` has both counts for each topic or endpoint."""

    published: int
    refused: int
    destinations: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)


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
class RelaysExpired:
    """A relay found others whose lease had run out, and shares out their buckets."""

    relays: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A relay stood still for longer than its lease, and begins anew. `relay` is the id it had."""

    relay: str


@dataclass(frozen=True, slots=True)
class OutboxMeasured:
    """What is in the outbox now. Each relay emits it now and then. Counts are cut at 10,000, of stopped events at
    1,000: a look costs the same however much there is."""

    pending: Mapping[str, int]
    """Events that can be sent, by topic or endpoint."""
    oldest_s: float
    """For how long the oldest of them has waited; 0 where there is none."""
    delayed: int
    """Published for later."""
    retrying: int
    """Refused, and tried again."""
    dead: int
    """Refused too often: they wait for a person."""
    relays: int
    """That have a lease."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Published events past their retention were deleted."""

    events: int


RelayEvent: TypeAlias = (
    Relayed
    | RelayPaused
    | RelayResumed
    | DestinationPaused
    | DestinationResumed
    | SetAside
    | BucketsHeld
    | RelaysExpired
    | LeaseLost
    | OutboxMeasured
    | Forgotten
)
