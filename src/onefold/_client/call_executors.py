"""Executors of outgoing calls: the waits between attempts, and the way to the journal.

It is the one place where the client sleeps, so that tests can do without.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from onefold._client.journal_store import AsyncJournalDatabase, JournalDatabase
from onefold._kernel.executors import TaskExecutor, ThreadExecutor


class Waits:
    """Whether waits are really waited; `onefold.testing.no_waiting` switches them off for the whole process."""

    skipped: bool = False


def wait(seconds: float) -> None:
    """Wait, on a thread."""
    if not Waits.skipped:
        time.sleep(seconds)


async def wait_async(seconds: float) -> None:
    """Wait, on a loop."""
    await asyncio.sleep(0 if Waits.skipped else seconds)


class CallExecutor(ThreadExecutor[Any]):
    """The executor of an outgoing call on a thread. Its database is the journal's, which is reached before the
    deadline; the call of a function has none."""

    __slots__ = ("_until",)

    def __init__(self, journal: JournalDatabase | None, until: float) -> None:
        super().__init__(cast(Any, journal))
        self._until = until

    def acquire(self) -> None:
        if self._connection is None:
            journal: Any = self._database
            self._connection = journal.acquire(self._until)

    def sleep(self, seconds: float) -> None:
        wait(seconds)

    def call(self, function: Callable[[], Any]) -> Any:
        return function()  # the adapters' own, which are known to be no coroutine functions


class AsyncCallExecutor(TaskExecutor[Any]):
    """`CallExecutor` for asyncio."""

    __slots__ = ("_until",)

    def __init__(self, journal: AsyncJournalDatabase | None, until: float) -> None:
        super().__init__(cast(Any, journal))
        self._until = until

    async def acquire(self) -> None:
        if self._connection is None:
            journal: Any = self._database
            self._connection = await journal.acquire(self._until)

    async def sleep(self, seconds: float) -> None:
        await wait_async(seconds)
