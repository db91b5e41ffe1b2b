"""Slows failed sign-ins down, and limits them: guessing a token is hopeless.

A failure is answered after a pause. While one address has too many failures pending, or all together do, further
attempts are turned away before their token is compared: so the rate of guesses is bounded, and a right token is not
slowed otherwise.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

PAUSE_S: Final = 1.0
PENDING_PER_ADDRESS: Final = 3
PENDING_MAX: Final = 30


class SignInThrottle:
    """Of one console in one process."""

    def __init__(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._pending: Counter[str] = Counter()

    def is_full(self, address: str) -> bool:
        """Whether an attempt from there is to be turned away."""
        return self._pending[address] >= PENDING_PER_ADDRESS or self._pending.total() >= PENDING_MAX

    async def punish(self, address: str) -> None:
        """Let a failed attempt wait."""
        self._pending[address] += 1
        try:
            await self._sleep(PAUSE_S)
        finally:
            self._pending[address] -= 1
            if not self._pending[address]:
                del self._pending[address]
