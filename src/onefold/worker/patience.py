"""Waiting: pauses that grow, pauses that a stop ends, and waiting for tasks to end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import suppress

from onefold.policy.backoff import Backoff


class Patience:
    """Growing, jittered pauses."""

    def __init__(self) -> None:
        self.failures = 0
        self._backoff = Backoff(transient_base_s=0.1, throttled_base_s=0.1, cap_s=10.0)

    def next_s(self) -> float:
        self.failures += 1
        return self._backoff.wait_s(self.failures, throttled=False, draw=lambda: 0.5 + random.random() / 2)

    def reset(self) -> None:
        self.failures = 0


async def pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


async def either(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ended(running: Iterable[asyncio.Task[None]], grace_s: float | None) -> None:
    """Wait for tasks to end by themselves; those that do not in time, or until we are cancelled, are cancelled."""
    tasks = list(running)
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, timeout=grace_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
