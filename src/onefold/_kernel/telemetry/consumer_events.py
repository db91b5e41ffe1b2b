"""The events of messages, and of the processes that consume them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Handled:
    """A message was handled: its rows, its events and its ledger row are committed. `elapsed_s` is how long its
    transaction took, and None where many messages shared one. `redriven`: it had been a dead letter."""

    consumer: str
    topic: str
    elapsed_s: float | None = field(default=None, compare=False, repr=False)
    redriven: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A message was delivered that this consumer has handled, or keeps as a failed message; one that is being handled
    in recorded steps elsewhere is kept, too, until it is known to be handled."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A later version of its key was handled before, and the consumer wants the latest only."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Parked:
    """A message waits: for an earlier version of its key, for the process that has its recorded steps, or for one that
    has its topic."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A handler failed, for the `failed`th time with this message; it is tried again in `retry_s` seconds."""

    consumer: str
    topic: str
    reason: str
    failed: int
    id: str = ""
    redriven: bool = field(default=False, compare=False, repr=False)
    retry_s: float | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message is not tried again until a person says so."""

    consumer: str
    topic: str
    reason: str
    id: str = ""
    redriven: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Redriven:
    """Dead failed messages are being tried again, at the request of `actor`."""

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
class LedgerReaped:
    """Ledger rows past their retention were deleted: their messages would be handled again."""

    consumer: str
    messages: int


@dataclass(frozen=True, slots=True)
class FailedMessagesMeasured:
    """How many failed messages a consumer has now: waiting for their next attempt or for a process that has their
    topic, parked behind a gap in their stream, dead. Counted up to 10,000. Each process that runs the consumer emits it
    now and then."""

    consumer: str
    waiting: int
    parked: int
    dead: int


InboxEvent: TypeAlias = Handled | Duplicate | Dropped | Parked | Failed | DeadLettered
ConsumerEvent: TypeAlias = (
    InboxEvent | Redriven | ConsumerPaused | ConsumerResumed | LedgerReaped | FailedMessagesMeasured
)
