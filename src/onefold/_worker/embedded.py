"""Runs workers beside an application: as a task of its loop, or on a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias

from onefold._kernel.foreign_cancellations import resist

#: Works until its event is set, and calls the second argument when it has begun.
Work: TypeAlias = Callable[[asyncio.Event, Callable[[], None]], Coroutine[Any, Any, None]]

#: A block waits no longer than this for its work to begin: a broker that does not answer stops no application.
START_S_MAX: Final = 10.0

_log = logging.getLogger("onefold.worker")


@asynccontextmanager
async def as_task(work: Work, name: str, *, waits: bool = False) -> AsyncIterator[None]:
    """Work while the block lasts; with `waits`, the block begins when the work has begun, and raises if it has failed
    by then. A later failure is logged at once, and raised when the block ends, unless the block itself raises."""
    stop, begun = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(_log_end(work(stop, begun.set), name), name=name)
    task.add_done_callback(lambda _: begun.set())
    try:
        if waits:
            with suppress(TimeoutError):
                async with asyncio.timeout(START_S_MAX):
                    await begun.wait()
            if task.done():
                task.result()
        yield
    except BaseException:
        stop.set()
        with suppress(Exception):
            await task
        raise
    stop.set()
    await task


@contextmanager
def on_a_thread(work: Work, name: str, *, waits: bool = False) -> Iterator[None]:
    """Work on a thread of its own, for applications without a loop."""
    begun, leaving = threading.Event(), threading.Event()
    stoppers: list[Callable[[], object]] = []
    failures: list[BaseException] = []

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stoppers.append(lambda: loop.call_soon_threadsafe(stop.set))
        if leaving.is_set():
            stop.set()
        await _log_end(work(stop, begun.set), name)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:  # a signal's handler may raise anywhere from here on
        thread.start()
        if waits:
            begun.wait(START_S_MAX)
            _raise_first(failures)
        yield
    finally:
        leaving.set()
        for stop_work in stoppers:
            with suppress(RuntimeError):  # its loop is closed
                stop_work()
        if thread.ident is not None:
            thread.join()
    _raise_first(failures)


def _raise_first(failures: Sequence[BaseException]) -> None:
    if failures:
        raise failures[0]


async def _log_end(work: Awaitable[None], name: str) -> None:
    try:
        await resist(work)
    except Exception:
        _log.exception("the embedded %s stopped because of an error", name)
        raise
