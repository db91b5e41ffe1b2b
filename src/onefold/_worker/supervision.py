"""Tasks of a consumer that go on whatever happens to them: without one of them the consumer would stand still."""

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
    """A task that begins again when something unforeseen has ended it."""

    async def go_on() -> None:
        backoff = BackoffTimer()
        while True:
            try:
                return await resist(work())
            except Exception:
                _log.exception("consumer %r: a worker failed, and is restarted", consumer)
                await pause(stop, backoff.next_s())

    return asyncio.create_task(go_on())


async def repeat(consumer: str, what: str, stop: asyncio.Event, work: Callable[[asyncio.Event], Flow[None]]) -> None:
    """Whatever fails in the background is tried again, after a pause. Handling does not wait for that: it may be
    the only statement that the database does not take."""
    backoff = BackoffTimer()
    while not stop.is_set():
        try:
            await resist(work(stop))
            backoff.reset()
        except StoreError as error:
            if backoff.failures == 0:
                _log.warning("consumer %r: %s failed, and is tried again: %s", consumer, what, error)
            await pause(stop, backoff.next_s())
        except Exception:
            _log.exception("consumer %r: %s failed, and is tried again", consumer, what)
            await pause(stop, backoff.next_s())
