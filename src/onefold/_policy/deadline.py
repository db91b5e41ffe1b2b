"""The one moment by which everything about a call is over: its attempts and the waits between them.

Invariant: a wait that fits ends before the deadline, so the attempt after it still has time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from onefold._policy.ranges import require


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock."""

    at: float

    NEVER: ClassVar[Deadline]
    """For callers who bound their calls by other means."""

    @classmethod
    def after(cls, total_s: float, now: float) -> Deadline:
        """The deadline of a call that begins now."""
        require("total_s", total_s)
        return cls(now + total_s)

    def expired(self, now: float) -> bool:
        """Nothing is left."""
        return now >= self.at

    def fits(self, wait_s: float, now: float) -> bool:
        """After this wait, something is left."""
        return now + wait_s < self.at


Deadline.NEVER = Deadline(inf)
