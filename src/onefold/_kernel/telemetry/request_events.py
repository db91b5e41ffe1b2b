"""What happened to requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal[
    "run", "replay", "in_flight", "mismatch", "expired", "unprotected", "unavailable", "limited"
]


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


RequestEvent: TypeAlias = Claimed | Settled | Released | Reaped
