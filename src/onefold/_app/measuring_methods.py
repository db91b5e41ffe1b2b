"""`measuring` of Onefold and AsyncOnefold: an application that publishes tells what waits in its outbox, also where no
relay runs that would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

from onefold._kernel.context_managers import on_tasks, on_threads
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._app.base_app import BaseOnefold
    from onefold._worker.embedded import Work

_NAME = "once.measuring()"
_EVERY_S = 15.0


class ThreadMeasuring:
    """Of Onefold."""

    def measuring(self, *, every_s: float = _EVERY_S) -> AbstractContextManager[None]:
        """Tell the listener what waits in the outbox, on a thread, for as long as the block lasts."""
        from onefold._worker.embedded import on_a_thread

        once: Any = self
        return on_threads(on_a_thread(_work(once, every_s), "measuring"), _NAME)


class TaskMeasuring:
    """Of AsyncOnefold."""

    def measuring(self, *, every_s: float = _EVERY_S) -> AbstractAsyncContextManager[None]:
        """Tell the listener what waits in the outbox, as a task, for as long as the block lasts."""
        from onefold._worker.embedded import as_task

        once: Any = self
        return on_tasks(as_task(_work(once, every_s), "measuring"), _NAME)


def _work(once: BaseOnefold[Any], every_s: float) -> Work:
    require("every_s", every_s, least=0.05, most=86_400)
    listener = once._layer.listener
    if listener is None:
        raise ConfigurationError(
            f"{_NAME} of {once!r} has no listener to tell: give it one, as in listener=prometheus_metrics()"
        )

    async def work(stop: asyncio.Event, begun: Callable[[], None]) -> None:
        from onefold._worker.backlog_measuring import measure_outbox, measuring

        begun()
        async with measuring(once._for_workers(), listener, measure_outbox, every_s=every_s):
            await stop.wait()

    return work
