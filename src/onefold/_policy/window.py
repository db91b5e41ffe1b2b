"""Successes and failures of the last few seconds, counted in slices.

Its owner holds a lock, except for one append to `successes` before the slice of now ends, which is whole by
itself: nearly all calls succeed, and a lock would cost them more than the rest of it. A success that is appended while
another thread turns the slice is counted with the slice before, or not at all.

Invariant: what is older than the window is not counted, and what is younger than the window less one slice is.
"""

from __future__ import annotations

from collections import deque
from math import inf


class Window:
    """The slice of now, and those before it. Time may step back a little: what comes late is counted now."""

    __slots__ = ("_failures", "_past", "_slice_s", "_slices", "_tick", "ends_at", "successes")

    def __init__(self, window_s: float, slices: int) -> None:
        self._slice_s = window_s / slices
        self._slices = slices
        self._tick = -inf
        self.ends_at = -inf
        self._past: deque[tuple[float, int, int]] = deque(maxlen=slices - 1)
        self.successes: list[None] = []
        self._failures = 0

    def clear(self) -> None:
        """Count anew."""
        self._past.clear()
        self.successes = []
        self._failures = 0

    def succeed(self, now: float) -> None:
        """Count a success."""
        if now >= self.ends_at:
            self._turn(now)
        self.successes.append(None)

    def fail(self, now: float) -> tuple[int, int]:
        """Count a failure; returns the failures and the calls in the window."""
        if now >= self.ends_at:
            self._turn(now)
        self._failures += 1
        failures, calls = self._failures, self._failures + len(self.successes)
        for tick, past_successes, past_failures in self._past:
            if tick > self._tick - self._slices:
                failures += past_failures
                calls += past_failures + past_successes
        return failures, calls

    def _turn(self, now: float) -> None:
        tick = now // self._slice_s
        if tick <= self._tick:  # the end of the slice was rounded down
            return
        self._past.append((self._tick, len(self.successes), self._failures))
        self.successes = []
        self._failures = 0
        self._tick = tick
        self.ends_at = (tick + 1) * self._slice_s
