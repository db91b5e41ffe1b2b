"""How long to wait before the next attempt: full jitter under a ceiling that doubles.

Invariant: a wait is never negative, and never above the cap, however many attempts there were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ldexp
from typing import Final, TypeAlias

from onefold._kernel.arguments import named_settings
from onefold._policy.ranges import require

Draw: TypeAlias = Callable[[], float]
"""Chance, as an input: returns a number from 0 up to, but not including, 1."""

DOUBLINGS_MAX = 1023  # the largest power of two a float can hold


def at_least_half(draw: Draw) -> float:
    """The part of a wait where half of it is certain: where not to wait would be to try again at once."""
    return 0.5 + draw() / 2


@named_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A server that failed once is called again soon; one that is overloaded is given time."""

    transient_base_s: float = 0.25
    """The longest wait after the first attempt, where the server stumbled; it doubles with each further one."""
    throttled_base_s: float = 1.0
    """The same, where the server asks for patience."""
    cap_s: float = 20.0
    """No wait is longer."""

    def __post_init__(self) -> None:
        require("cap_s", self.cap_s, most=86_400)
        require("transient_base_s", self.transient_base_s, most=self.cap_s)
        require("throttled_base_s", self.throttled_base_s, most=self.cap_s)

    def ceiling_s(self, attempt: int, *, throttled: bool) -> float:
        """The longest wait after this `attempt`; the first is number 1. `throttled`: the server asks for patience."""
        if attempt < 1:
            raise ValueError(f"attempt={attempt} was never made: the first attempt is number 1")
        base_s = self.throttled_base_s if throttled else self.transient_base_s
        # A float that grows too large becomes infinite, and the cap is below that; an int would fill the memory.
        return min(self.cap_s, base_s * ldexp(1.0, min(attempt - 1, DOUBLINGS_MAX)))

    def wait_s(self, attempt: int, *, throttled: bool, draw: Draw) -> float:
        """The wait after this `attempt`, below its ceiling (`throttled` as there). `draw` is the chance in it."""
        # The cap comes before the jitter: clients that have reached it stay spread out.
        return draw() * self.ceiling_s(attempt, throttled=throttled)

    def pause_s(self, attempt: int, *, draw: Draw) -> float:
        """A wait after this `attempt` of which half is certain; `draw` is the chance in the other half."""
        return at_least_half(draw) * self.ceiling_s(attempt, throttled=False)


#: Between tries of what is away: a broker, a database, a destination.
PAUSES: Final = Backoff(transient_base_s=0.1, cap_s=10.0)
