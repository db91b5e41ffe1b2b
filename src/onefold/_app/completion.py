"""Completes abandoned requests: connects the completer's flows with the application that they call and the database."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from onefold._app.completer_methods import CompleterSettings
from onefold._http.repeated_requests import RequestRepeater, check_installed
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.foreign_cancellations import resist
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.runners import run, run_async
from onefold._policy.ranges import require
from onefold._steps.completer import CompletedWorks, Completer, CompleterConfig

if TYPE_CHECKING:
    from onefold._app.base_app import BaseOnefold
    from onefold._http.install import Layer
    from onefold._worker.embedded import Work

_LIMIT: Final = 100

_log = logging.getLogger("onefold.steps")


class Completion:
    """The completer of one `Onefold`."""

    def __init__(self, layer: Layer, dialect: str, settings: CompleterSettings) -> None:
        check_installed(layer.installed, layer.name)
        self._layer = layer
        self._dialect = dialect
        self._config = CompleterConfig(**settings)
        self.installed = layer.installed
        self._repeater = RequestRepeater(layer.installed, layer.stepped().sealing, attempt_s=self._config.attempt_s)

    def on_thread(self, database: Database[Any], limit: int) -> CompletedWorks:
        """One round."""
        return run(self._flow(self._repeater.attempt, limit, lambda: False), ThreadExecutor(database))

    async def on_loop(
        self, database: AsyncDatabase[Any], limit: int, stopped: Callable[[], bool] = lambda: False
    ) -> CompletedWorks:
        """One round. An attempt that runs when `stopped` turns true goes on to its end."""
        return await run_async(self._flow(self._repeater.attempt_on_loop, limit, stopped), TaskExecutor(database))

    def _flow(self, attempt: Callable[..., Any], limit: int, stopped: Callable[[], bool]) -> Flow[CompletedWorks]:
        require("limit", limit, least=1, most=100_000)
        completer = Completer(
            self._dialect, attempt, config=self._config, draw=random.random, listener=self._layer.listener
        )
        return completer.complete(limit, stopped)

    async def until(self, stop: asyncio.Event, database: AsyncDatabase[Any], every_s: float) -> None:
        """Round after round, the first one at once."""
        while not stop.is_set():
            try:
                await resist(self.on_loop(database, _LIMIT, stop.is_set))
            except Exception as error:
                _log.warning(
                    "a round of the completer failed: %s; the next one is in about %g s",
                    error, every_s, exc_info=error,
                )  # fmt: skip
            await _pause(stop, every_s)


def completion_of(once: BaseOnefold[Any], settings: CompleterSettings) -> Completion:
    return Completion(once._layer, once._database.dialect, settings)


def completing_work(once: BaseOnefold[Any], every_s: float, settings: CompleterSettings) -> Work:
    """The work of both `completing()` blocks. It pauses first, until the application around it has started."""
    check_every(every_s)
    completion = completion_of(once, settings)

    async def work(stop: asyncio.Event, begun: Callable[[], None]) -> None:
        begun()
        await _pause(stop, every_s)
        await completion.until(stop, once._for_workers(), every_s)

    return work


async def _pause(stop: asyncio.Event, every_s: float) -> None:
    # Processes that were started together do not look together.
    with suppress(TimeoutError):
        async with asyncio.timeout(every_s * random.uniform(0.5, 1.5)):
            await stop.wait()


def check_every(every_s: float) -> float:
    require("every_s", every_s, least=0.001, most=86_400)
    return every_s
