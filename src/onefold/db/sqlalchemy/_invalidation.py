"""SQLite connections that SQLAlchemy throws away: their locks are freed before they are closed.

An open cursor keeps a closed SQLite connection half alive, and its locks with it. SQLAlchemy closes a connection at
once when a statement on it is cancelled, the handler's or ours, and the cursor stays in the traceback until the garbage
collector comes by. So the cursors that may be open are noted, in the pool's own notes about a connection that is out
with us; connections of the application's are left alone. On asyncio, a statement that was cancelled goes on in the
driver's thread, where the rollback would wait for it: it is interrupted.
"""

from __future__ import annotations

import inspect
from asyncio import CancelledError, get_running_loop
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from traceback import clear_frames
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.pool import ConnectionPoolEntry

from onefold.db._left_running import PAUSE_S

_CURSORS = "onefold_cursors"


def watch(engine: Engine) -> None:
    """Listen for connections that the engine discards. To listen twice would do no harm."""
    if engine.dialect.name == "sqlite":
        event.listen(engine, "invalidate", _free_locks)


def note(connection: Connection, cursor: Any) -> None:
    """A statement is about to be executed with this cursor."""
    cursors = connection.info.setdefault(_CURSORS, [])
    # On asyncio, others than streams are read to their end before the next statement.
    cursors[:] = [*(other for other in cursors if getattr(other, "server_side", False)), cursor]


def forget(connection: Connection) -> None:
    """The connection goes back to the application's pool."""
    connection.info.pop(_CURSORS, None)


def _free_locks(driver: DBAPIConnection, record: ConnectionPoolEntry, reason: BaseException | None) -> None:
    cursors: list[DBAPICursor] | None = record.info.pop(_CURSORS, None)
    if cursors is None:
        return
    if isinstance(reason, CancelledError):
        clear_frames(reason.__traceback__)  # where SQLAlchemy 2.0 keeps the driver's cursor, and nowhere else
        with _interrupting(record.driver_connection), suppress(Exception, CancelledError):
            driver.rollback()
    for let_go in (*(cursor.close for cursor in cursors), driver.rollback):
        # Cancelled once more, it is on its way to the driver's thread all the same, ahead of the closing.
        with suppress(Exception, CancelledError):
            let_go()


def interrupt(driver: Any) -> None:
    """sqlite3's own, or aiosqlite's, which is a coroutine that waits for nothing."""
    if inspect.iscoroutine(interrupting := driver.interrupt()):
        with suppress(StopIteration):
            interrupting.send(None)


@contextmanager
def _interrupting(driver: Any) -> Iterator[None]:
    """Interrupt what is executed meanwhile, again and again: SQLite forgets it when a statement is about to begin."""
    loop = get_running_loop()
    lasts = True

    def again() -> None:
        if lasts:
            with suppress(Exception):  # closed
                interrupt(driver)
            loop.call_later(PAUSE_S, again)

    again()
    try:
        yield
    finally:
        lasts = False
