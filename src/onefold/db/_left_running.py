"""The end of a handler that may have left something behind: what comes after it, and how its connection is closed.

A handler may leave a thread behind, or be one whose request was cancelled: it goes on with what it was executing.
sqlite3 and libpq crash the process when their connection is closed under it, because they free what it uses next. So
the thread that closes a connection has that one leave early, and waits for it. One that does not leave (SQLite has
called a function of the application's that does not return) is waited for on a thread of our own: no request hangs for
it.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from onefold._kernel.effects import BatchItem, Boundary, Nested
from onefold.errors import TransactionMisused

_log = logging.getLogger("onefold.database")

#: How often a thread is interrupted. Once is not enough: SQLite forgets it when a statement is just about to begin.
PAUSE_S = 0.02

#: How many times before its connection is left to a thread of our own, and how often it is interrupted there.
TIMES = 250
_LATER_S = 1.0

#: How long the end of a transaction waits for a statement that a thread of the handler's is executing on a server.
END_S = 30.0


class Lock(Protocol):
    """Held by the thread that is inside."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


def is_end(items: Sequence[BatchItem]) -> bool:
    """Whether these items come after the handler: while it has the connection, all that we do there is to set and to
    end savepoints of its own, and what it asks for by itself, which makes sure first that it is begun."""
    if items[0] is Boundary.BEGIN and Boundary.COMMIT not in items and Boundary.ROLLBACK not in items:
        return False
    return not all(isinstance(item, Nested) for item in items)


def still_used_error(driver: str, patience_s: float, items: Sequence[BatchItem] | None = None) -> TransactionMisused:
    """The error for a transaction that cannot be ended by these items, because it is still in use.

    Where it was to be undone, that is done all the same, and the error reaches no caller: so why it took so long is
    logged, once.
    """
    error = TransactionMisused(
        f"what the handler left behind (a thread, a stream() that is not read to its end) still uses the request's "
        f"{driver} connection {patience_s:g} s after the handler's end: nothing is kept. Finish it before the handler "
        "returns"
    )
    if patience_s and items is not None and Boundary.COMMIT not in items:
        _log.warning("%s", error)
    return error


def is_free(lock: Lock, within_s: float) -> bool:
    """Whether no thread holds the lock, or it is released in time."""
    free = lock.acquire(timeout=within_s)
    if free:
        lock.release()
    return free


def close_when_left(
    has_left: Callable[[float], bool], wake: Callable[[], object], close: Callable[[], object], *, driver: str
) -> None:
    """Close a connection that no thread enters any more, when none is inside. `has_left` waits for that for some
    seconds and returns whether it is so; `wake` interrupts the thread inside."""
    for _ in range(TIMES):
        if has_left(0.0):
            close()
            return
        _try(wake)
        has_left(PAUSE_S)
    _log.warning(
        "%s: a thread that a handler left behind has been executing on the request's connection for %g s after the "
        "request's end and cannot be interrupted; the connection, and what it has locked, is free when that returns",
        driver,
        TIMES * PAUSE_S,
    )
    threading.Thread(target=_close_later, args=(has_left, wake, close), name="onefold-closing", daemon=True).start()


def close_unlocked(lock: Lock, wake: Callable[[], object], close: Callable[[], object], *, driver: str) -> None:
    """Close a connection whose threads inside hold a lock."""
    close_when_left(lambda seconds: is_free(lock, seconds), wake, close, driver=driver)


def _close_later(has_left: Callable[[float], bool], wake: Callable[[], object], close: Callable[[], object]) -> None:
    while not has_left(_LATER_S):
        _try(wake)
    try:
        close()
    except Exception:
        _log.warning("closing a broken connection failed; the server ends it when it notices", exc_info=True)


def hang_up(driver: Any) -> None:
    """Have threads that wait for the server's answer get the end of the stream. The descriptor stays open: another
    connection would be given its number, and that thread, or task, would wait on it."""
    if (terminate := getattr(driver, "terminate", None)) is not None:  # asyncpg: its loop closes it when that is safe
        terminate()
        return
    connected = socket.socket(fileno=driver.fileno())
    try:
        connected.shutdown(socket.SHUT_RDWR)
    finally:
        connected.detach()


def _try(wake: Callable[[], object]) -> None:
    with suppress(Exception):  # closed, or given up, by the thread itself
        wake()
