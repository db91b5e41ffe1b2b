"""Forgetting expired records while an application lives, where it has a lifespan; saying so where nothing does it.

Invariant: it begins after the application has started and ends before the application's shutdown begins, so that it
never sees tables that are not migrated yet, nor a pool that is closed already. A failure is logged, and the next turn
may succeed. Each process of an application reaps, at times of its own: the first of them finds the work, the others
find none.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from onefold.errors import ConfigurationError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Reap: TypeAlias = Callable[[], Awaitable[object]]
AtShutdown: TypeAlias = Callable[[], Awaitable[None]]

EVERY_S = 300.0

_EVERY_S_LEAST, _EVERY_S_MOST = 0.1, 7 * 24 * 3600.0

_log = logging.getLogger("onefold.requests")


class Reaping:
    """What an application has decided about reaping, and whether it is known to happen."""

    def __init__(self, every_s: float | None) -> None:
        given: object = every_s
        if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
            raise ConfigurationError(
                f"reap_every_s={every_s!r} is not a number: write seconds, or None where expired records are deleted "
                "elsewhere (`onefold reap`, pg_cron)"
            )
        if every_s is not None and not _EVERY_S_LEAST <= every_s <= _EVERY_S_MOST:
            raise ConfigurationError(
                f"reap_every_s={every_s!r} is out of range: it must be from {_EVERY_S_LEAST} to {_EVERY_S_MOST:.0f}, "
                "or None where expired records are deleted elsewhere (`onefold reap`, pg_cron)"
            )
        self.every_s = every_s
        self.seen = every_s is None
        """Whether a lifespan or the application itself reaps, so that nothing has to be reported."""
        self.at_shutdown: AtShutdown | None = None
        """What else is to be done before the application's shutdown begins."""

    def report_missing(self, layer_name: str) -> None:
        """Say once that nothing in this process reaps. Called with the first request: logging is set up by then."""
        if self.seen:
            return
        self.seen = True
        _log.info(
            "nothing in this process deletes expired records: %s has seen no lifespan of its application. Run "
            "`onefold reap` from cron, schedule `onefold reap --print-cron`, or keep once.reaping() open; "
            "reap_every_s=None says that it is done elsewhere",
            layer_name,
        )


#: For a layer whose application reaps by other means.
REAPED_ELSEWHERE = Reaping(None)


async def reap_again_and_again(reap: Reap, every_s: float) -> None:
    """Until it is cancelled. Processes that were started together do not reap together."""
    from onefold._kernel.foreign_cancellations import resist  # for applications that have started

    while True:
        await asyncio.sleep(every_s * random.uniform(0.5, 1.5))
        try:
            await resist(reap())
        except Exception as error:
            _log_failure(error, every_s)


def reap_or_log(reap: Callable[[], object], every_s: float) -> None:
    """One turn on a thread."""
    try:
        reap()
    except Exception as error:
        _log_failure(error, every_s)


def _log_failure(error: Exception, every_s: float) -> None:
    _log.warning("expired records could not be deleted: %s; tried again in about %g s", error, every_s, exc_info=error)


class Lifespan:
    """An application's lifespan as it passes the layer: refused where something is wrong with the set-up, and reaping
    from its start to the beginning of its end."""

    def __init__(
        self, receive: Receive, send: Send, *, check_ready: Callable[[], None], reaping: Reaping, reap: Reap
    ) -> None:
        self._receive = receive
        self._send = send
        self._check_ready = check_ready
        self._reaping = reaping
        self._reap = reap
        self._task: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            # Routes may come as late as this. Frameworks end what they have begun, and report errors to the server.
            self._check_ready()
            self._begin()
        await self._send(message)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "lifespan.shutdown":
            await self.end()  # first: the application may close its pool now
            if self._reaping.at_shutdown is not None:
                await self._reaping.at_shutdown()
        return message

    def _begin(self) -> None:
        if self._reaping.every_s is not None:
            self._reaping.seen = True
            # A task of the server's own loop: it ends with that, and keeps no process alive.
            self._task = asyncio.create_task(
                reap_again_and_again(self._reap, self._reaping.every_s), name="onefold-reaper"
            )

    async def end(self) -> None:
        """Stop reaping; a batch that is under way is rolled back."""
        from onefold._kernel.foreign_cancellations import cancel_until_ended  # for applications that have started

        task, self._task = self._task, None
        if task is not None:
            await cancel_until_ended(task)
