"""The telemetry of an application beside its requests: `measuring` reports what waits in its outbox, also where no
relay does; and the activity history, whose counts are written at shutdown, too."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, ParamSpec

from onefold._http.route_policy import is_bool
from onefold._kernel.context_managers import on_tasks, on_threads
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry import Listener
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._app.base_app import BaseOnefold
    from onefold._worker.embedded import Work

P = ParamSpec("P")

_NAME = "once.measuring()"
_EVERY_S = 15.0


class ActivityHistory:
    """What both apps share."""

    #: A ThreadActivity or a TaskActivity, or None.
    _activity: Any

    def _begin_activity(self, is_enabled: object) -> None:
        is_bool("activity", is_enabled)
        self._activity = None
        if is_enabled:
            from onefold._observe.activity.writing import TaskActivity, ThreadActivity

            once: Any = self
            self._activity = (TaskActivity if once._asynchronous else ThreadActivity)(once._database)

    async def _write_activity(self) -> None:
        """Write the counts so far: the pool may be closed next, or the process end. A database that is away delays that
        by CLOSE_S at most."""
        if self._activity is not None:
            from onefold._observe.activity.writing import CLOSE_S

            once: Any = self
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await run_async(self._activity.write(), TaskExecutor(once._for_workers()))

    @property
    def listener(self) -> Listener | None:
        """The listener of this application, for clients beside it: `Retrying(listener=once.listener)`."""
        once: Any = self
        listener: Listener | None = once._layer.listener
        return listener


def writes_activity(work: Callable[P, Awaitable[None]]) -> Callable[P, Coroutine[Any, Any, None]]:
    """Decorate a method that runs workers: when they have ended, write their counts, before the process ends."""

    @functools.wraps(work)
    async def to_its_end(*args: P.args, **named: P.kwargs) -> None:
        once: Any = args[0]
        try:
            await work(*args, **named)
        finally:
            await once._write_activity()

    return to_its_end


class ThreadMeasuring:
    """Of Onefold."""

    def measuring(self, *, every_s: float = _EVERY_S) -> AbstractContextManager[None]:
        """Report what waits in the outbox to the listener, every `every_s`, on a thread, for as long as the block
        lasts."""
        from onefold._worker.embedded import on_a_thread

        once: Any = self
        return on_threads(on_a_thread(_work(once, every_s), "measuring"), _NAME)


class TaskMeasuring:
    """Of AsyncOnefold."""

    def measuring(self, *, every_s: float = _EVERY_S) -> AbstractAsyncContextManager[None]:
        """Report what waits in the outbox to the listener, every `every_s`, as a task, for as long as the block
        lasts."""
        from onefold._worker.embedded import as_task

        once: Any = self
        return on_tasks(as_task(_work(once, every_s), "measuring"), _NAME)


def _work(once: BaseOnefold[Any], every_s: float) -> Work:
    require("every_s", every_s, least=0.05, most=86_400)
    listener = once._layer.listener
    if listener is None:
        raise ConfigurationError(
            f"{_NAME} of {once!r} has no listener to report to: give it one, as in listener=prometheus_metrics()"
        )

    async def work(stop: asyncio.Event, begun: Callable[[], None]) -> None:
        from onefold._worker.backlog_measuring import measure_outbox, measuring

        begun()
        async with measuring(once._for_workers(), listener, measure_outbox, every_s=every_s):
            await stop.wait()

    return work
