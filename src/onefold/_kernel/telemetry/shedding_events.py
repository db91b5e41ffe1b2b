"""What shedding did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ShedReason: TypeAlias = Literal["queue full", "displaced", "waited too long", "deadline"]


@dataclass(frozen=True, slots=True)
class Shed:
    """A request was turned away before its handler ran, and left nothing behind."""

    reason: ShedReason
    priority: int


@dataclass(frozen=True, slots=True)
class LimitMoved:
    """So many requests may run at once from now on. Told at the start, too."""

    limit: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A request waited for its turn; `entered` says whether it came."""

    waited_s: float
    priority: int
    entered: bool


SheddingEvent: TypeAlias = Shed | LimitMoved | Queued
