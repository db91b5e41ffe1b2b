"""Awaiting what is usually there already, and paying for a time limit only when it is not.

A timer of its own costs more than most bodies take to arrive and most pools take to give a connection. So the first
step is made without one, and all that really have to wait share the timer of their event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedTimer:
    """Tells the tasks of one event loop when their time is over."""

    __slots__ = ("_alarms", "_rings_at", "_timer", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._alarms: dict[Callable[[], None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def set(self, seconds: float, ring: Callable[[], None]) -> None:
        """Call `ring` then, unless it is stopped before."""
        until = self._alarms[ring] = self.loop.time() + seconds
        if self._timer is None or until < self._rings_at:
            self._arm(until)

    def stop(self, ring: Callable[[], None]) -> None:
        # The timer stays: under load the next alarm is set soon, and a timer that finds nothing to ring costs nothing.
        self._alarms.pop(ring, None)

    def _arm(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at, self._timer = until, self.loop.call_at(until, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self.loop.time()
        for ring in [ring for ring, until in self._alarms.items() if until <= now]:
            del self._alarms[ring]
            ring()
        if self._alarms:
            self._arm(min(self._alarms.values()))


class _OfThread(threading.local):
    """The timer of the loop that a thread ran last."""

    timer: SharedTimer | None = None


_of_thread = _OfThread()


def _timer_here() -> SharedTimer:
    loop = asyncio.get_running_loop()
    timer = _of_thread.timer
    if timer is None or timer.loop is not loop:
        # A thread may run several loops in turn. The timer that is replaced here rings on, as its loop refers to it.
        timer = _of_thread.timer = SharedTimer(loop)
    return timer


def within(seconds: float, awaitable: Awaitable[T]) -> Awaitable[T]:
    """Await it on whatever loop this thread runs: the result, or TimeoutError if it is not there in time."""
    return _Within(seconds, awaitable)


def finish_within(seconds: float, begun: Coroutine[Any, Any, T], waits_for: Any) -> Awaitable[T]:
    """`within` for a coroutine that was sent its first None already, and waits for what that gave."""
    return _Rest(seconds, begun, waits_for)


class _Within(Generic[T]):
    """Awaits without a timer until the first suspension: what is there already needs none."""

    __slots__ = ("_awaitable", "_seconds")

    def __init__(self, seconds: float, awaitable: Awaitable[T]) -> None:
        self._seconds = seconds
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Generator[Any, Any, T] = self._awaitable.__await__()
        try:
            waits_for = next(steps)
        except StopIteration as done:
            at_once: T = done.value
            return at_once
        return (yield from _Rest(self._seconds, steps, waits_for).__await__())


class _Rest(Generic[T]):
    """What has begun, and is continued until its time is over.

    The alarm cancels the future that is waited for, not the task: `asyncio.timeout` does the latter and costs three
    times as much, because it must then distinguish its own cancellation from another.
    """

    __slots__ = ("_due", "_rang", "_seconds", "_steps", "_waits_for")

    def __init__(self, seconds: float, steps: Generator[Any, Any, T] | Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._seconds = seconds
        self._steps = steps
        self._waits_for = waits_for
        self._rang = self._due = False

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._steps
        ring, timer, task = self._ring, _timer_here(), asyncio.current_task()
        # Not 0 in what a cancelled task still does, as in its `finally`: there, too, this limit is one.
        cancelled_before = 0 if task is None else task.cancelling()
        timer.set(self._seconds, ring)
        try:
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
            if self._rang and (task is None or task.cancelling() <= cancelled_before):
                raise TimeoutError(f"not there after {self._seconds:g} s") from error
            raise
        finally:
            timer.stop(ring)

    def _ring(self) -> None:
        self._rang = True
        # A bare yield, or a future that is done, resumes by itself: the time-out is raised then.
        self._due = self._waits_for is None or not self._waits_for.cancel()
