"""Awaiting what is usually there already, and paying for a time limit only when it is not.

A timer costs more than most bodies take to arrive. So the first step is made without one; only an awaitable that
really has to wait is continued under the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def within(awaitable: Awaitable[T], seconds: float) -> T:
    """The result, or TimeoutError if it is not there in time."""
    steps: Generator[Any, Any, T] = awaitable.__await__()
    try:
        waits_for = next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(seconds):
        return await _Resumed(steps, waits_for)


class _Resumed(Generic[T]):
    """An awaitable whose first step was made already: what it waits for is handed to the loop now."""

    __slots__ = ("_steps", "_waits_for")

    def __init__(self, steps: Generator[Any, Any, T], waits_for: Any) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        steps, waits_for = self._steps, self._waits_for
        while True:
            answer, error = None, None
            try:
                answer = yield waits_for
            except BaseException as raised:  # cancelled, or out of time: the awaitable decides what becomes of it
                error = raised
            try:
                waits_for = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
