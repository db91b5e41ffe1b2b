"""The stop of a consumer, and the one deadline of all that it has in hand: what still runs then is cut off."""

from __future__ import annotations

import asyncio
import time


class Halt(asyncio.Event):
    """Set, the consumer stops; what it has in hand may take `grace_s` from then on."""

    def __init__(self, grace_s: float) -> None:
        super().__init__()
        self._grace_s = grace_s
        self._cut_off_at = 0.0

    def set(self) -> None:
        if not self.is_set():
            self._cut_off_at = time.monotonic() + self._grace_s
        super().set()

    @property
    def remaining_s(self) -> float:
        """What is left of the grace: all of it before the stop."""
        return max(0.0, self._cut_off_at - time.monotonic()) if self.is_set() else self._grace_s
