"""One thread for one connection, or for one handler: it runs the jobs that a loop submits in order, and sets their
results on futures of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


async def call_in_thread(function: Callable[[], T]) -> T:
    """`asyncio.to_thread`, for a function of the application's: it may raise StopIteration."""

    def call() -> T:
        try:
            return function()
        except StopIteration as error:
            raise _as_runtime_error(error) from error

    return await asyncio.to_thread(call)


def _as_runtime_error(error: StopIteration) -> RuntimeError:
    """As it leaves a generator. No future takes a StopIteration: what awaits it would wait for ever, with all it holds.
    A `next(...)` that finds nothing raises one."""
    return RuntimeError(f"a function on a thread raised StopIteration({error}), as next() does that finds nothing")


class SerialThread:
    """One thread that runs the jobs submitted to it, in order.

    A ThreadPoolExecutor would do, at twice the price of a hop: it makes a future with a lock and a condition for every
    job, and chains it to one of the loop's.
    """

    __slots__ = ("_begun", "_jobs", "_name", "_started", "done")

    def __init__(self, name: str = "onefold") -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False
        #: How many functions were begun by `run`, and how many have ended, which is counted on the thread itself.
        self._begun = 0
        self.done = 0

    @property
    def is_idle(self) -> bool:
        """Whether it runs nothing, and so touches nothing."""
        return self._begun == self.done

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job that is run whether or not a task waits for it. It must not raise."""
        if not self._started:
            self._started = True
            # A daemon: what it has not committed when the process ends rolls back, as after a crash.
            threading.Thread(target=_run_jobs, args=(self._jobs,), name=self._name, daemon=True).start()
        self._jobs.put(job)

    async def obtain(self, function: Callable[[], T], on_abandoned: Callable[[T], None]) -> T:
        """The function's result, for a task that has to dispose of it. `on_abandoned` gets it instead, on a thread,
        when no task waits any more: the wait was cancelled, or its loop is closed."""
        answer = self.run(function, on_abandoned)
        try:
            return await answer
        except (asyncio.CancelledError, GeneratorExit):
            # Ended after the result was set and before it went on, the task never sees what it waited for.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _abandon(answer.result(), on_abandoned)
            raise

    def run(self, function: Callable[[], T], on_abandoned: Callable[[T], None] | None = None) -> asyncio.Future[T]:
        """The function's result, to be awaited; by `obtain` where the task has to dispose of it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._begun += 1
        self.submit(partial(_run, self, loop, answer, function, on_abandoned))
        return answer

    def end(self) -> None:
        self._jobs.put(None)

    def __del__(self) -> None:
        """A database that is dropped without being closed leaves no thread behind: that refers only to the jobs."""
        self.end()


def _run_jobs(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it may hold a connection: release it before waiting for the next job, which may take long


def _run(
    thread: SerialThread,
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[T],
    function: Callable[[], T],
    on_abandoned: Callable[[T], None] | None,
) -> None:
    """Call the function on this thread, and set its result or error on the future, in the loop."""
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
        # The error's traceback holds this frame, and the future holds the error: break the reference cycle.
        del answer, function


def _answer(answer: asyncio.Future[T], result: T, on_abandoned: Callable[[T], None] | None) -> None:
    if not answer.cancelled():
        answer.set_result(result)
    elif on_abandoned is not None:
        _abandon(result, on_abandoned)


def _abandon(result: T, on_abandoned: Callable[[T], None]) -> None:
    """Not on its own thread: that ends, or serves another request."""
    threading.Thread(target=on_abandoned, args=(result,), name="onefold-abandoned", daemon=True).start()


def _raise(answer: asyncio.Future[Any], error: BaseException) -> None:
    if isinstance(error, StopIteration):
        refused = _as_runtime_error(error)
        refused.__cause__ = error
        error = refused
    if not answer.cancelled():
        answer.set_exception(error)
