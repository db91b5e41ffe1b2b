"""What a run has counted, second by second.

Calls are what users ask for; attempts are what reaches the network. A call belongs to the second in which it began,
however late it ended; attempts, answers and work belong to the second in which they happened.
"""

from __future__ import annotations

from collections.abc import Sequence


class Counters:
    """Counts per second of virtual time, in lists that are as long as the run."""

    __slots__ = ("answered", "attempts", "calls", "served", "succeeded", "wasted")

    def __init__(self, seconds: int) -> None:
        self.calls = [0] * seconds
        self.succeeded = [0] * seconds
        """Of the calls that began in this second."""
        self.attempts = [0] * seconds
        self.answered = [0] * seconds
        """Calls that succeeded in this second: the goodput."""
        self.served = [0] * seconds
        self.wasted = [0] * seconds
        """Of what was served in this second: work whose caller had given up."""

    @property
    def seconds(self) -> int:
        return len(self.calls)

    def success(self, first: int = 0, last: int | None = None) -> float:
        """The share of calls that succeeded, of those that began from `first` up to, but not including, `last`."""
        return share(self.succeeded[first:last], self.calls[first:last])

    def load(self, first: int = 0, last: int | None = None) -> float:
        """Attempts per call."""
        return share(self.attempts[first:last], self.calls[first:last])

    def goodput(self, first: int, last: int) -> float:
        """Calls that succeeded, per second."""
        return sum(self.answered[first:last]) / (last - first)

    def waste(self, first: int = 0, last: int | None = None) -> float:
        """The share of the served work whose caller had given up."""
        return share(self.wasted[first:last], self.served[first:last])


def share(part: Sequence[int], whole: Sequence[int]) -> float:
    """How much of a whole; of nothing, nothing."""
    total = sum(whole)
    return sum(part) / total if total else 0.0
