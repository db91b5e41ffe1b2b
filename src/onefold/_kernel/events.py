"""The telemetry contract: what happened, as values handed to a listener.

Metrics, traces and logs are made from these by adapters; the library itself counts nothing. A listener must be
quick and must not raise; what it raises is reported as a warning and changes no outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["run", "replay", "in_flight", "mismatch", "expired", "unprotected", "unavailable"]


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
    """Expired records and abandoned claims were forgotten."""

    records: int
    claims: int


Event: TypeAlias = Claimed | Settled | Released | Reaped
Listener: TypeAlias = Callable[[Event], None]

_log = logging.getLogger("onefold")


def tell(listener: Listener | None, event: Event) -> None:
    """Hand an event to the listener, whose failure is its own affair."""
    if listener is None:
        return
    try:
        listener(event)
    except Exception:
        _log.warning("the event listener %r raised on %r", listener, event, exc_info=True)
