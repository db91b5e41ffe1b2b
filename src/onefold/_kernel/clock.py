"""The clocks, as inputs. The wall clock is only for what never meets another host's clock."""

from __future__ import annotations

import time
from typing import Final


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


#: Seconds since some moment: never backwards, and of no meaning to another process.
monotonic_s: Final = time.monotonic


def milliseconds(seconds: float) -> int:
    """As databases count them; none is too short to be noticed."""
    return max(1, round(seconds * 1000))
