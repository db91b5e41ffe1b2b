"""The events of outgoing calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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


ClientEvent: TypeAlias = AttemptEnded | RetryPlanned | CallEnded | BreakerMoved
