"""Keeping a long handler's lease alive, where keys are leased (SQLite).

A lease is renewed at a third of its length, from a connection of its own. Not while the handler's transaction is
open: that holds the write lock, without which nobody can take the key over, and which the renewal would wait for.
A renewal that fails is tried again; a lease that runs out all the same is the fence's business at settle.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.runners import run, run_async
from onefold.http.exchange import Passage

_log = logging.getLogger("onefold")

#: Beats per lease.
_BEATS = 3


class TaskPulse:
    """One passage's pulse on asyncio: a timer that most handlers outrun."""

    __slots__ = ("_beat_s", "_database", "_passage", "_task", "_timer")

    def __init__(self, passage: Passage, database: AsyncDatabase[Any]) -> None:
        self._passage = passage
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._beat_s = passage.policy.lease_s / _BEATS
        self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._start)

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        while not self._passage.over:
            try:
                await run_async(self._passage.renew(), TaskLane(self._database))
            except Exception:
                _log.warning("the lease of %s could not be renewed", self._passage.operation, exc_info=True)
            await asyncio.sleep(self._beat_s)


class ThreadPulse:
    """All passages' pulse on threads: one daemon thread, alive only while there is a passage to watch."""

    def __init__(self, database: Database[Any]) -> None:
        self._database = database
        self._due_at: dict[Passage, float] = {}
        self._changed = threading.Condition()
        self._running = False

    def start(self, passage: Passage) -> None:
        with self._changed:
            self._due_at[passage] = time.monotonic() + passage.policy.lease_s / _BEATS
            if not self._running:
                self._running = True
                threading.Thread(target=self._loop, name="onefold-pulse", daemon=True).start()

    def stop(self, passage: Passage) -> None:
        with self._changed:
            self._due_at.pop(passage, None)

    def _loop(self) -> None:
        while True:
            with self._changed:
                if not self._due_at:
                    # Wait a little for the next request before letting the thread go.
                    self._changed.wait(1.0)
                    if not self._due_at:
                        self._running = False
                        return
                now = time.monotonic()
                due = [passage for passage, at in self._due_at.items() if at <= now]
                for passage in due:
                    self._due_at[passage] = now + passage.policy.lease_s / _BEATS
                if not due:
                    self._changed.wait(max(0.01, min(self._due_at.values()) - now))
                    continue
            for passage in due:
                self._beat(passage)

    def _beat(self, passage: Passage) -> None:
        try:
            run(passage.renew(), ThreadLane(self._database))
        except Exception:
            _log.warning("the lease of %s could not be renewed", passage.operation, exc_info=True)
