"""How a relay works: one value for all of its sessions, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from onefold._policy.ranges import require


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """What all sessions of a relay share."""

    lease_s: float = 30.0
    batch_max: int = 1000
    batch_bytes_max: int = 16 * 1024 * 1024
    """How much data is at hand at once; a single larger event goes alone."""
    keep_published_s: float = 0.0
    """How long published rows are kept to be looked at. 0: they are deleted at once."""
    attempts_max: int = 25
    """An event that was refused so often is a dead letter: it, and its key, wait for a person."""

    def __post_init__(self) -> None:
        require("lease_s", self.lease_s, least=0.5, most=3600)
        require("batch_max", self.batch_max, least=1, most=10_000)
        require("batch_bytes_max", self.batch_bytes_max, least=1, most=1024**3)
        require("keep_published_s", self.keep_published_s, most=366 * 86_400)
        require("attempts_max", self.attempts_max, least=1, most=1_000_000)
