"""Tasks of a consumer that go on whatever happens to them: nobody would notice that one is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from onefold._kernel.effects import Flow
from onefold.errors import StoreError
from onefold.worker.patience import Patience, pause, resist

_log = logging.getLogger("onefold.consumer")


def supervise(consumer: str, stop: asyncio.Event, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """A task that begins again when something unforeseen has ended it."""

    async def go_on() -> None:
        patience = Patience()
        while True:
            try:
                return await resist(work())
            except Exception:
                _log.exception("consumer %r: a worker failed, and begins again", consumer)
                await pause(stop, patience.next_s())

    return asyncio.create_task(go_on())


async def repeat(consumer: str, stop: asyncio.Event, work: Callable[[asyncio.Event], Flow[None]]) -> None:
    """Whatever fails in the background is tried again, after a pause. Handling does not wait for that: it may be
    the only statement that the database does not take."""
    what = work.__name__.lstrip("_")
    patience = Patience()
    while not stop.is_set():
        try:
            await resist(work(stop))
            patience.reset()
        except StoreError as error:
            if patience.failures == 0:
                _log.warning("consumer %r: %s failed, and is tried again: %s", consumer, what, error)
            await pause(stop, patience.next_s())
        except Exception:
            _log.exception("consumer %r: %s failed", consumer, what)
            await pause(stop, patience.next_s())
