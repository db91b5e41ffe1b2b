"""Restarts the tasks of a consumer when they fail: without one of them the consumer would do nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from onefold._kernel.effects import Flow
from onefold._kernel.foreign_cancellations import resist
from onefold._worker.backoff_timer import BackoffTimer, pause
from onefold.errors import StoreError

_log = logging.getLogger("onefold.consumer")


def supervise(consumer: str, stop: asyncio.Event, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Start a task that is restarted after an unexpected error."""

    async def run_again() -> None:
        backoff = BackoffTimer()
        while True:
            try:
                return await resist(work())
            except Exception:
                _log.exception("consumer %r: a worker failed, and is restarted", consumer)
                await pause(stop, backoff.next_s())

    return asyncio.create_task(run_again())


async def repeat(
    consumer: str, activity: str, stop: asyncio.Event, work: Callable[[asyncio.Event], Flow[None]]
) -> None:
    """Repeat background work, after a pause if it fails. Handling goes on meanwhile: this may be the only statement
    that the database refuses."""
    backoff = BackoffTimer()
    while not stop.is_set():
        try:
            await resist(work(stop))
            backoff.reset()
        except StoreError as error:
            if backoff.failures == 0:
                _log.warning("consumer %r: %s failed, and is tried again: %s", consumer, activity, error)
            await pause(stop, backoff.next_s())
        except Exception:
            _log.exception("consumer %r: %s failed, and is tried again", consumer, activity)
            await pause(stop, backoff.next_s())
