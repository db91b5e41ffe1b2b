"""The activity history of an application: what counts for it is made here, and writes what is left at an end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec

from onefold._http.route_policy import is_bool
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry import Listener

P = ParamSpec("P")


class ActivityHistory:
    """What both apps share."""

    #: A ThreadActivity or a TaskActivity, or None.
    _activity: Any

    def _begin_activity(self, wanted: object) -> None:
        is_bool("activity", wanted)
        self._activity = None
        if wanted:
            from onefold._observe.activity.writing import TaskActivity, ThreadActivity

            once: Any = self
            self._activity = (TaskActivity if once._asynchronous else ThreadActivity)(once._database)

    async def _write_activity(self) -> None:
        """What was counted until now: the pool may be closed next, or the process end. A database that is away does not
        keep it from ending."""
        if self._activity is not None:
            from onefold._observe.activity.writing import CLOSE_S

            once: Any = self
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await run_async(self._activity.write(), TaskExecutor(once._for_workers()))

    @property
    def listener(self) -> Listener | None:
        """What hears of this application, for what is made beside it: `Retrying(listener=once.listener)`."""
        once: Any = self
        found: Listener | None = once._layer.listener
        return found


def writes_activity(work: Callable[P, Awaitable[None]]) -> Callable[P, Coroutine[Any, Any, None]]:
    """A method that runs workers: when they have ended, so that what they counted is not lost with the process."""

    @functools.wraps(work)
    async def to_its_end(*args: P.args, **named: P.kwargs) -> None:
        once: Any = args[0]
        try:
            await work(*args, **named)
        finally:
            await once._write_activity()

    return to_its_end
