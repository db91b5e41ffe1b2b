"""Virtual time: what happens when, in order. A minute passes as fast as its events can be worked off.

Invariant: time never steps back, and what was entered first for a moment happens first, so a run is a function of its
inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


class EventQueue:
    """The entries still to come, and the present moment."""

    __slots__ = ("_entries", "_number", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._entries: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = count().__next__

    def at(self, moment: float, action: Callable[[T], None], thing: T) -> None:
        """Have something done with something, at a moment that is not over."""
        heappush(self._entries, (moment, self._number(), action, thing))

    def run(self, until: float) -> None:
        """Work off everything that is due until a moment, this moment included."""
        entries = self._entries
        while entries and entries[0][0] <= until:
            self.now, _, action, thing = heappop(entries)
            action(thing)
        self.now = until
