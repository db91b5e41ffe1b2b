"""sqlite3, the embedded default: one file, many readers, one writer at a time.

A transaction takes the write lock when it begins (BEGIN IMMEDIATE), so it can never fail half-way because its
snapshot is old. The handler's transaction begins when the handler first touches its connection: what it does
before that holds no lock. Writers of this process queue on a lock of our own, because SQLite's busy handler
polls with growing sleeps; writers of other processes are waited for by that busy handler.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from onefold._kernel.effects import HandlerStatement, NamedRows
from onefold._kernel.fork_and_loop import Process
from onefold._kernel.savepoints import UNDO_S_MAX
from onefold._kernel.serial_thread import SerialThread
from onefold.db._threaded import ThreadedDatabase, call_until_done
from onefold.db.sqlite._connection import SqliteConnection, query_handle
from onefold.db.sqlite._errors import error_for
from onefold.db.sqlite._file import Shared, SqliteFile, make_private
from onefold.db.sqlite._guarded_connection import GuardedConnection
from onefold.db.sqlite._interruptible import Interruptible
from onefold.db.sqlite._locks import KeyLocks, lock_file
from onefold.db.sqlite._version import check_version
from onefold.errors import ConfigurationError

__all__ = ["AsyncSqlite", "SqliteDatabase", "async_sqlite"]

T = TypeVar("T")

#: How long a cancelled statement in a savepoint may go on: until the rollback to that savepoint has given up on it.
LONGEST_S = UNDO_S_MAX + 1.0


class SqliteDatabase:
    """One database file (`path`) and its connections. A lock of others is waited for at most `busy_timeout_s`."""

    dialect = "sqlite"

    #: Taking a connection's handle waits for the write lock: not to be done on an event loop.
    handle_waits = True

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 5.0) -> None:
        check_version()
        if str(path) in ("", ":memory:"):
            raise ConfigurationError(
                f"SQLite database {str(path)!r} exists in one connection only; give the path of a file"
            )
        #: As it is found from here: a process that changes its directory would open another file with each connection.
        #: `..` stays: which directory that is after a symbolic link, only the operating system knows.
        self.path = str(Path(path).absolute())
        self._busy_timeout_s = busy_timeout_s
        self._shared = Shared()
        self._process = Process()

    def acquire(self) -> SqliteConnection:
        return self.at_hand() or SqliteConnection(self._open_file(), self._here, self._busy_timeout_s)

    def acquire_glancing(self) -> SqliteConnection:
        """`acquire`, with what `glance` needs."""
        connection = self.acquire()
        connection.prepare_to_glance()
        return connection

    def at_hand(self) -> SqliteConnection | None:
        """A connection that is open already. Taking it touches no disk."""
        shared = self._here
        try:
            file = shared.idle.pop()
        except IndexError:
            return None
        return SqliteConnection(file, shared, self._busy_timeout_s)

    def close(self) -> None:
        idle = self._here.idle
        while idle:
            idle.pop().close()
        lock_file(os.path.realpath(self.path)).rest()

    @property
    def _here(self) -> Shared:
        """SQLite's connections cannot be carried across a fork, nor can a lock that another thread may have held."""
        self._process.renew(self._replace_shared)
        return self._shared

    def _replace_shared(self) -> None:
        self._process.keep(self._shared)
        self._shared = Shared()

    def _open_file(self) -> SqliteFile:
        return SqliteFile(self._open(), self._open_light, KeyLocks(self.path))

    def _open(self) -> GuardedConnection:
        make_private(self.path)
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self._busy_timeout_s,
                isolation_level=None,
                check_same_thread=False,
                factory=GuardedConnection,
            )
            try:
                # Readers do not block the writer in WAL; FULL makes a commit survive a power cut, not just a crash.
                self._convert_to_wal(connection)
                connection.execute("PRAGMA synchronous=FULL")
            except sqlite3.Error:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise error_for(error, f"SQLite file {self.path!r}", self.path) from error
        return connection

    def _open_light(self) -> sqlite3.Connection:
        """For what may be lost in a power cut (a lease: everyone who could have acted on it is gone then, too), and for
        reads that must not wait: SQLite has no patience here, and where some is wanted we have it ourselves.

        A connection of its own, because changing the level and the patience of one back and forth costs four statements
        a request, half of them while others wait for the write lock.
        """
        connection = self._open()
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA busy_timeout=0")
        return connection

    def _convert_to_wal(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                # Of two who convert a new file at once, SQLite lets neither wait for the other.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)


class AsyncSqlite:
    """What an async handler works with: the request's sqlite3 connection, used on its own thread."""

    __slots__ = ("_connection", "_term", "_thread")

    def __init__(self, connection: SqliteConnection, thread: SerialThread) -> None:
        self._connection = connection
        #: The transaction it is for. After it, and before the connection is gone, another would begin, and be lost.
        self._term = connection.term
        self._thread = thread

    async def execute(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        """Execute one statement; the cursor has `rowcount` and `lastrowid`."""
        return await self.run(lambda connection: connection.execute(sql, parameters))

    async def fetch(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[Any]:
        """Execute one statement and return all its rows."""
        return await self.run(lambda connection: connection.execute(sql, parameters).fetchall())

    async def query(self, statement: HandlerStatement) -> NamedRows:
        """For `tx.insert_once` and its siblings: `fetch`, with the names of the columns."""
        return await self.run(partial(query_handle, statement=statement))

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do anything with the real connection, in one hop."""
        job = Interruptible(self._connection, self._term, work)
        try:
            return await self._thread.run(job)
        except (asyncio.CancelledError, GeneratorExit):
            # What has begun goes on: this comes after it, and before whatever ends the transaction.
            self._thread.submit(job.abandon)
            if job.drop():
                # Outside of any savepoint nothing of the transaction can be kept any more. Inside of one all of it may,
                # if the statement ends soon, because SQLite rolls everything back when it interrupts a write.
                call_until_done(job.interrupt, after_s=LONGEST_S if job.part else 0.0)
            raise


def async_sqlite(path: str | Path, *, busy_timeout_s: float = 5.0) -> ThreadedDatabase[sqlite3.Connection, AsyncSqlite]:
    """The same database for asyncio; `busy_timeout_s` as there."""
    database = SqliteDatabase(path, busy_timeout_s=busy_timeout_s)
    return ThreadedDatabase(
        database,
        AsyncSqlite,
        acquire=database.acquire_glancing,
        at_hand=database.at_hand,
        release_at_rest=SqliteConnection.release_at_rest,
        glance=SqliteConnection.glance,
        interrupt=SqliteConnection.interrupt,
        end_handler=SqliteConnection.end_handler,
    )
