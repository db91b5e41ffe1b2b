"""Pauses that grow, and that a stop ends."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from onefold._policy.backoff import PAUSES


class BackoffTimer:
    """Growing, jittered pauses."""

    def __init__(self) -> None:
        self.failures = 0

    def next_s(self) -> float:
        self.failures += 1
        return PAUSES.pause_s(self.failures, draw=random.random)

    def reset(self) -> None:
        self.failures = 0


async def pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
