"""An open SQLite file, as it goes from request to request."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from os import getpid

from onefold.db._left_running import close_unlocked, is_free, still_used_error
from onefold.db.sqlite._guarded_connection import GuardedConnection
from onefold.db.sqlite._locks import KeyLocks

#: What needs no transaction to be in: it changes nothing.
_READS = (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)

#: PRAGMAs that take an argument and only read.
_READING_PRAGMAS = frozenset(
    {
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)


class Shared:
    """What the connections of one database share, within one process."""

    __slots__ = ("idle", "writer")

    def __init__(self) -> None:
        self.idle: list[SqliteFile] = []
        #: Writers queue here, because SQLite's busy handler polls with growing sleeps.
        self.writer = threading.Lock()


#: What was out when a parent forked. SQLite forbids the child to use it, and to close it, as sqlite3 does with what it
#: frees.
_kept_open: list[SqliteFile] = []


def keep_open(opened: SqliteFile) -> None:
    """Never use it again, and never let go of it."""
    _kept_open.append(opened)


def make_private(path: str) -> None:
    """Create the file, for its owner only, unless it is there; SQLite's other files get the same rights. Nothing that
    is there is opened: closing it again would drop the locks SQLite has on it."""
    with suppress(OSError):  # SQLite says what is wrong with it
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


class SqliteFile:
    """An open file and what outlives a request: whose turn it is, the keys it has locked, and the second connection for
    short work."""

    __slots__ = ("_open_light", "connection", "locks", "opened_light", "process")

    def __init__(
        self, connection: GuardedConnection, open_light: Callable[[], sqlite3.Connection], locks: KeyLocks
    ) -> None:
        self.connection = connection
        self._open_light = open_light
        #: `light`, once it is open: then using it touches no disk but to read.
        self.opened_light: sqlite3.Connection | None = None
        self.locks = locks
        self.process = getpid()
        locks.offer(connection)
        connection.set_authorizer(self._authorize)
        connection.ours = False

    @property
    def light(self) -> sqlite3.Connection:
        """Nothing but our own short work happens here: reads by key, and transactions whose loss would be harmless."""
        if self.opened_light is None:
            self.opened_light = self._open_light()
            self.locks.offer(self.opened_light)
        return self.opened_light

    @property
    def is_a_parents(self) -> bool:
        """Opened before a fork, in another process: SQLite must not even close it here."""
        return self.process != getpid()

    def __enter__(self) -> sqlite3.Connection:
        """Our turn, which begins when what the handler is executing is done: as long as it lasts, transactions may
        begin and end, and a thread of the handler's waits."""
        self.connection.lock.acquire()
        self.connection.ours = True
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.ours = False
        self.connection.lock.release()

    def shut(self, patience_s: float) -> None:
        """The handler's transaction is about to end. What a thread of the handler's is executing is waited for, within
        limits; nothing comes after that."""
        self.connection.over = True
        if not is_free(self.connection.lock, patience_s):
            raise still_used_error("SQLite", patience_s)

    def when_left(self, work: Callable[[], object]) -> None:
        """The handler has ended: do this when no thread of its own is inside SQLite, where it is interrupted. No
        variable here refers to the connection: `is_held` counts."""
        self.connection.over = True
        close_unlocked(self.connection.lock, lambda: self.connection.interrupt(), work, driver="SQLite")

    @property
    def in_transaction(self) -> bool:
        try:
            return self.connection.in_transaction
        except sqlite3.ProgrammingError:
            return False  # closed

    def is_held(self) -> bool:
        """Whether a reference besides ours is left to the connection, or a cursor of it: what a handler has kept of it.
        Such a one is not for the next request. sqlite3 makes one object of a file's connection, which cannot be taken
        back."""
        return _references(self) > _least()

    def is_left(self) -> bool:
        """Whether no thread is inside SQLite at this moment."""
        return is_free(self.connection.lock, 0.0)

    def is_unfit(self) -> bool:
        """Whether it is not for the next handler, because of what the last one has kept of it, or left in it."""
        return self.is_held() or self.is_altered()

    def is_altered(self) -> bool:
        """Whether a handler has left something in it that is not for the next one: a temporary table, a PRAGMA, an
        attached database, a function, a callback, a mode."""
        connection = self.connection
        try:
            mode = (connection.isolation_level, getattr(connection, "autocommit", -1))
        except sqlite3.ProgrammingError:
            return True  # closed
        return connection.altered or mode != (None, -1)

    def rollback(self) -> None:
        self.connection.rollback()
        if self.opened_light is not None:
            self.opened_light.rollback()

    def close(self) -> None:
        # A cursor that is still referred to keeps a closed connection half alive, and its lock: so first roll back.
        with self:
            with suppress(sqlite3.Error):
                self.rollback()
            if self.in_transaction:
                # An interruption lasts until no cursor is in the middle of its rows, and ROLLBACK is interrupted, too.
                # SQLite rolls back by itself when it interrupts a statement that takes the write lock.
                with suppress(sqlite3.Error):
                    self.connection.execute("BEGIN IMMEDIATE -- onefold")
            if self.opened_light is not None:
                self.opened_light.close()
            self.connection.close()

    def _authorize(self, action: int, operation: str | None, value: str | None, database: str | None, _: object) -> int:
        """Keep COMMIT, ROLLBACK and BEGIN for ourselves, however the handler spells them.

        SQLite asks when it compiles a statement. Ours must not be found in sqlite3's cache of compiled ones, so we
        end transactions with `commit()` and `rollback()`, which do not use it.
        """
        if self.connection.ours or action in _READS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_TRANSACTION:
            self.connection.trespass = operation
            return sqlite3.SQLITE_DENY
        if (
            action == sqlite3.SQLITE_ATTACH
            or database == "temp"
            or (action == sqlite3.SQLITE_PRAGMA and value is not None and operation not in _READING_PRAGMAS)
        ):
            self.connection.altered = True
        return sqlite3.SQLITE_OK if self.connection.in_transaction else sqlite3.SQLITE_DENY


_COUNTS = hasattr(sys, "getrefcount")


class _LoneConnection:
    """Holds a connection alone, to count the references that sqlite3 itself keeps."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", factory=GuardedConnection)


def _references(holder: SqliteFile | _LoneConnection) -> int:
    """How many there are to the connection, counted as we count them here. Where Python does not count: too many."""
    return sys.getrefcount(holder.connection) if _COUNTS else sys.maxsize


@cache
def _least() -> int:
    """How many references there are to a connection that is in use nowhere: sqlite3 keeps some itself."""
    sample = _LoneConnection()
    try:
        return min(_references(sample), sys.maxsize - 1)
    finally:
        sample.connection.close()
