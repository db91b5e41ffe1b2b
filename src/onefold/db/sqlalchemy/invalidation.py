"""SQLite connections that SQLAlchemy throws away: their locks are freed before they are closed.

An open cursor keeps a closed SQLite connection half alive, and its locks with it. SQLAlchemy closes a connection at
once when a statement on it is cancelled, the handler's or ours, and the cursor stays in the traceback until the garbage
collector comes by. So the cursors that may be open are noted, in the pool's own notes about a connection that is out
with us; connections of the application's are left alone.
"""

from __future__ import annotations

from asyncio import CancelledError
from contextlib import suppress
from traceback import clear_frames
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.pool import ConnectionPoolEntry

_CURSORS = "onefold_cursors"


def watch(engine: Engine) -> None:
    """Be told of the connections the engine throws away. To be told twice would do no harm."""
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
    for let_go in (*(cursor.close for cursor in cursors), driver.rollback):
        # Cancelled once more, it is on its way to the driver's thread all the same, ahead of the closing.
        with suppress(Exception, CancelledError):
            let_go()
