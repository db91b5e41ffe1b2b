"""A connection to the key journal before the deadline of the call, also where its driver allows more time for
connecting.

Failure windows. A connection that comes too late goes back to its pool. On threads it is waited for by a thread of its
own, because a driver that connects cannot be broken off; such threads are counted, so that calls to a journal that does
not answer leave no crowd of them behind.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final

from onefold._kernel.ports import AsyncConnection, AsyncDatabase, Connection, Database
from onefold._kernel.timeouts import within
from onefold.errors import StoreBusy, StoreError

#: How the call ended is noted after its deadline, too: a connection that lies ready is had in less.
_LEAST_S: Final = 0.25

#: More than a pool has connections. A call that finds all of them waiting for a connection waits for one of them.
_THREADS_MAX: Final = 32


class JournalConnector:
    """How many threads wait for a connection to one journal."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(_THREADS_MAX)

    def acquire(self, database: Database[Any], until: float) -> Connection[Any]:
        """On threads. A file is opened at once, or not at all, and belongs to the thread that opens it."""
        if database.dialect == "sqlite":
            return database.acquire()
        if not self._free.acquire(timeout=_left_s(until)):
            raise _no_connection()
        pending: Future[Connection[Any]] = Future()
        try:
            threading.Thread(target=copy_context().run, args=(self._connect, database, pending), daemon=True).start()
        except BaseException:
            self._free.release()
            raise
        try:
            return pending.result(_left_s(until))
        except BaseException as error:
            if not pending.cancel() and isinstance(error, TimeoutError):
                return pending.result()  # it came just now, or its driver gave up just now
            if isinstance(error, TimeoutError):
                raise _no_connection() from None
            raise

    def _connect(self, database: Database[Any], pending: Future[Connection[Any]]) -> None:
        try:
            connection = database.acquire()
        except BaseException as error:
            with suppress(InvalidStateError):  # the call gave up waiting
                pending.set_exception(error)
            return
        finally:
            self._free.release()
        try:
            pending.set_result(connection)
        except InvalidStateError:
            with suppress(StoreError):
                connection.release()


async def acquire_async(database: AsyncDatabase[Any], until: float) -> AsyncConnection[Any]:
    """On asyncio."""
    try:
        return await within(_left_s(until), database.acquire())
    except TimeoutError as error:
        raise _no_connection() from error


def _left_s(until: float) -> float:
    return min(max(until - time.monotonic(), _LEAST_S), threading.TIMEOUT_MAX)


def _no_connection() -> StoreBusy:
    return StoreBusy("no connection to the key journal could be had before the deadline of the call: is its server up?")
