"""What happened at the answer cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: hit: a stored answer, or 422. in_flight: a mark, which decides nothing. refused: something that this application did
#: not write, or that is past its time. failed: no answer, or an error. skipped: it failed before, and is left alone.
LookOutcome: TypeAlias = Literal["hit", "miss", "in_flight", "refused", "failed", "skipped"]
StoreOutcome: TypeAlias = Literal["stored", "too_large", "too_late", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class CacheLooked:
    """A keyed request looked into the answer cache before it asked the database."""

    operation: str
    outcome: LookOutcome


@dataclass(frozen=True, slots=True)
class CacheStored:
    """An answer that is committed was to be stored in the answer cache."""

    operation: str
    outcome: StoreOutcome


CacheEvent: TypeAlias = CacheLooked | CacheStored
