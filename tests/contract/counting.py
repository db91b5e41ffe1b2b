"""A database that counts how often it is asked for a connection: the proof that something was decided without it."""

from __future__ import annotations

import inspect
import threading
from typing import Any

from onefold.db._drivers import async_database, sync_database
from tests.contract.backends import Backend
from tests.contract.rows import ASGI


class Counting:
    """A database that counts how often it is asked for a connection, in either colour."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.acquired = 0
        self.dialect: str = inner.dialect
        if inspect.iscoroutinefunction(inner.acquire):
            self.acquire, self.close = self._acquire_async, self._inner.close
        else:
            self.acquire, self.close = self._acquire, self._inner.close

    def _acquire(self) -> Any:
        with self._lock:
            self.acquired += 1
        return self._inner.acquire()

    async def _acquire_async(self) -> Any:
        self.acquired += 1
        return await self._inner.acquire()


def counted(backend: Backend) -> Counting:
    """The backend's own database, counted."""
    return Counting(async_database(backend.database) if backend.name in ASGI else sync_database(backend.database))
