"""Tracks the steps that run in this process, so that it can end between them.

Invariant: after `close` no step begins, and one that runs is waited for until Restate has its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class RunningStep:
    """One step that may run: replays do not run theirs."""

    def __init__(self, closed: asyncio.Event) -> None:
        self._closed = closed
        self._idle = asyncio.Event()
        self._idle.set()
        self.begun = False

    async def __aenter__(self) -> None:
        if self._closed.is_set():
            # Never: the connection is cut soon, and Restate has another process run it.
            await asyncio.Event().wait()
        self.begun = True
        self._idle.clear()

    async def __aexit__(self, *_: object) -> None:
        self._idle.set()

    async def ended(self) -> None:
        """Wait until it does not run."""
        await self._idle.wait()


class RunningSteps:
    """All running steps of this process."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()
        self._steps: set[RunningStep] = set()
        self._left = asyncio.Event()

    @contextmanager
    def begin(self) -> Iterator[RunningStep]:
        """Around a step, from before it runs until its record is in the journal."""
        step = RunningStep(self._closed)
        self._steps.add(step)
        try:
            yield step
        finally:
            self._steps.discard(step)
            self._left.set()

    async def close(self, within_s: float) -> None:
        """Begin no more steps, and wait for those that run."""
        self._closed.set()
        try:
            async with asyncio.timeout(within_s):
                while any(step.begun for step in self._steps):
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            pass
