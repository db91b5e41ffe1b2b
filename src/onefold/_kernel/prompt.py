"""Awaiting what is usually there already, and paying for a time limit only when it is not.

A timer of its own costs more than most bodies take to arrive and most pools take to give a connection. So the first
step is made without one, and all that really have to wait share the timer of their alarm clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class AlarmClock:
    """Limits how long its users wait. It serves one event loop at a time."""

    __slots__ = ("_loop", "_rings_at", "_timer", "_waiting")

    def __init__(self) -> None:
        self._waiting: set[_Within[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def within(self, seconds: float, awaitable: Awaitable[T]) -> Awaitable[T]:
        """Await it: the result, or TimeoutError if it is not there in time."""
        return _Within(self, seconds, awaitable)

    def add(self, waiter: _Within[Any], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        waiter.until = until = loop.time() + seconds
        self._waiting.add(waiter)
        if self._timer is None or until < self._rings_at or loop is not self._loop:
            self._set(loop, until)

    def remove(self, waiter: _Within[Any]) -> None:
        # The timer stays: under load the next waiter comes soon, and a timer that finds nobody costs nothing.
        self._waiting.discard(waiter)

    def _set(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop, self._rings_at, self._timer = loop, until, loop.call_at(until, self._ring)

    def _ring(self) -> None:
        assert self._loop is not None
        self._timer = None
        now = self._loop.time()
        for waiter in [waiter for waiter in self._waiting if waiter.until <= now]:
            self._waiting.remove(waiter)
            waiter.ring()
        if self._waiting:
            self._set(self._loop, min(waiter.until for waiter in self._waiting))


class _Within(Generic[T]):
    """An awaitable whose first step is free, and that is continued until its time is over.

    The clock cancels the future that is waited for, not the task: `asyncio.timeout` does the latter and costs three
    times as much, because it must then tell its own cancellation from somebody else's.
    """

    __slots__ = ("_awaitable", "_clock", "_due", "_rang", "_seconds", "_waits_for", "until")

    def __init__(self, clock: AlarmClock, seconds: float, awaitable: Awaitable[T]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._awaitable = awaitable
        self._rang = self._due = False
        self.until = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Generator[Any, Any, T] = self._awaitable.__await__()
        try:
            self._waits_for = next(steps)
            self._clock.add(self, self._seconds)
            while True:
                answer, error = None, None
                try:
                    answer = yield self._waits_for
                except BaseException as raised:  # cancelled, or out of time: the awaitable decides what becomes of it
                    error = raised
                if self._due:
                    self._due, error = False, error or asyncio.CancelledError()
                self._waits_for = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as done:
            result: T = done.value
            return result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._rang and not (task is not None and task.cancelling()):
                raise TimeoutError(f"not there after {self._seconds:g} s") from error
            raise
        finally:
            self._clock.remove(self)

    def ring(self) -> None:
        self._rang = True
        self._due = self._waits_for is None  # a bare yield comes back by itself, and is told then
        if not self._due:
            self._waits_for.cancel()
