"""One thread for one connection, or for one handler: what a loop hands it is done in order, and the loop is told what
came of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class SerialThread:
    """One thread that does what it is handed, in order.

    A ThreadPoolExecutor would do, at twice the price of a hop: it makes a future with a lock and a condition for every
    errand, and chains it to one of the loop's.
    """

    __slots__ = ("_begun", "_errands", "_name", "_started", "done")

    def __init__(self, name: str = "onefold") -> None:
        self._name = name
        self._errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False
        #: How many functions it was given, and how many it is through with, which is counted on the thread itself.
        self._begun = 0
        self.done = 0

    @property
    def is_idle(self) -> bool:
        """It has nothing to do, and so touches nothing."""
        return self._begun == self.done

    def hand(self, errand: Callable[[], None]) -> None:
        """To be done, whether or not a task waits for it. It must not raise."""
        if not self._started:
            self._started = True
            # A daemon: what it has not committed when the process ends rolls back, as after a crash.
            threading.Thread(target=_work, args=(self._errands,), name=self._name, daemon=True).start()
        self._errands.put(errand)

    def run(self, function: Callable[[], T], *, on_abandoned: Callable[[T], None] | None = None) -> asyncio.Future[T]:
        """What the function answers, to be awaited. `on_abandoned` gets it instead, on a thread, when no task waits
        any more: the wait was cancelled, or its loop is closed."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._begun += 1
        self.hand(partial(_tell, self, loop, answer, function, on_abandoned))
        return answer

    def end(self) -> None:
        self._errands.put(None)

    def __del__(self) -> None:
        """A database that was let go without being closed leaves no thread behind: that knows only its errands."""
        self.end()


def _work(errands: SimpleQueue[Callable[[], None] | None]) -> None:
    while (errand := errands.get()) is not None:
        errand()
        del errand  # it may hold a connection: let go of it before the next one comes, which may take long


def _tell(
    thread: SerialThread,
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[T],
    function: Callable[[], T],
    on_abandoned: Callable[[T], None] | None,
) -> None:
    """Call the function here, and have the loop told what came of it."""
    try:
        try:
            result = function()
        finally:
            thread.done += 1
    except BaseException as error:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_raise, answer, error)
    else:
        try:
            loop.call_soon_threadsafe(_answer, answer, result, on_abandoned)
        except RuntimeError:
            if on_abandoned is not None:
                on_abandoned(result)
    finally:
        # The error's traceback holds this frame, and the answer holds the error: do not close the circle.
        del answer, function


def _answer(answer: asyncio.Future[T], result: T, on_abandoned: Callable[[T], None] | None) -> None:
    if not answer.cancelled():
        answer.set_result(result)
    elif on_abandoned is not None:  # not on its own thread: that has ended, or serves another request by now
        threading.Thread(target=on_abandoned, args=(result,), name="onefold-unheard", daemon=True).start()


def _raise(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.cancelled():
        answer.set_exception(error)
