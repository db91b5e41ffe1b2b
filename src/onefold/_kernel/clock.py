"""The wall clock, as an input. Only what never meets another host's clock may use it."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def milliseconds(seconds: float) -> int:
    """As databases count them; none is too short to be noticed."""
    return max(1, round(seconds * 1000))
