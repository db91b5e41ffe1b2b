"""Workers beside an application: as a task of its loop, or on a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

from onefold._worker.backoff_timer import resist

#: Works until it is told to stop.
Work: TypeAlias = Callable[[asyncio.Event], Coroutine[Any, Any, None]]

_log = logging.getLogger("onefold.worker")


@asynccontextmanager
async def as_task(work: Work, name: str) -> AsyncIterator[None]:
    """Work while the block lasts. What ended it early is raised when the block ends, and logged when it happens."""
    stop = asyncio.Event()
    task = asyncio.create_task(_logged(work(stop), name), name=name)
    try:
        yield
    finally:
        stop.set()
        await task


@contextmanager
def on_a_thread(work: Work, name: str) -> Iterator[None]:
    """The same, for applications without a loop."""
    begun = threading.Event()
    told: list[Callable[[], object]] = []
    failures: list[BaseException] = []

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        told.append(lambda: loop.call_soon_threadsafe(stop.set))
        begun.set()
        await _logged(work(stop), name)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        if thread.is_alive():
            told[0]()
        thread.join()
    if failures:
        raise failures[0]


async def _logged(work: Awaitable[None], name: str) -> None:
    try:
        await resist(work)
    except Exception:
        _log.exception("the %s has ended", name)
        raise
