"""sqlite3, the embedded default: one file, many readers, one writer at a time.

A transaction takes the write lock when it begins (BEGIN IMMEDIATE), so it can never fail half-way because its
snapshot is old. The handler's transaction begins when the handler first touches its connection: what it does
before that holds no lock. Writers of this process queue on a lock of our own, because SQLite's busy handler
polls with growing sleeps; writers of other processes are waited for by that busy handler.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold._kernel.ports import Connection
from onefold.db.threads import LaneThread, ThreadedDatabase
from onefold.errors import (
    ConfigurationError,
    OnefoldError,
    RequiredValueMissing,
    SchemaMissing,
    StatementRefused,
    StoreBusy,
    StoreReadOnly,
    StoreUnavailable,
    TransactionMisused,
    UniqueViolated,
)

T = TypeVar("T")

#: SQLite result codes (extended first, then primary) to errors.
CODES: dict[int, type[OnefoldError]] = {
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: UniqueViolated,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: UniqueViolated,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: RequiredValueMissing,
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
    sqlite3.SQLITE_CANTOPEN: StoreUnavailable,
    sqlite3.SQLITE_IOERR: StoreUnavailable,
    sqlite3.SQLITE_FULL: StoreUnavailable,
    sqlite3.SQLITE_CORRUPT: StoreUnavailable,
    sqlite3.SQLITE_NOTADB: StoreUnavailable,
}


def error_for(error: sqlite3.Error, where: str = "SQLite") -> OnefoldError:
    """Our error for sqlite3's."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or "no such table" in str(error) or "has no column" in str(error):
        missing = "no such table" in str(error) or "has no column" in str(error)
        if missing:
            return SchemaMissing(f"{where}: {error}; run `onefold migrate` to create onefold's tables")
        return StatementRefused(f"{where}: {error}")
    kind = CODES.get(code) or CODES.get(code & 0xFF) or StatementRefused
    return kind(f"{where}: {error}")


class SqliteDatabase:
    """One database file and its connections."""

    dialect = "sqlite"

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 5.0) -> None:
        self.path = str(path)
        if self.path in ("", ":memory:"):
            raise ConfigurationError(
                f"SQLite database {self.path!r} exists in one connection only; give the path of a file"
            )
        self._busy_timeout_s = busy_timeout_s
        self._idle: list[SqliteConnection] = []
        self._writer = threading.Lock()

    def acquire(self) -> SqliteConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return SqliteConnection(self._open(), self._writer, self._busy_timeout_s, self._idle)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().discard()

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            # Readers do not block the writer in WAL; FULL makes a commit survive a power cut, not just a crash.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise error_for(error, f"SQLite file {self.path!r}") from error
        return connection


class SqliteConnection:
    """One connection to the file."""

    def __init__(
        self, connection: sqlite3.Connection, writer: threading.Lock, busy_timeout_s: float, idle: list[SqliteConnection]
    ) -> None:
        self._connection = connection
        self._writer = writer
        self._busy_timeout_s = busy_timeout_s
        self._idle = idle
        self._light = False
        self._writing = False
        self._ours = True
        self._trespass: str | None = None
        connection.set_authorizer(self._authorize)

    @property
    def handle(self) -> sqlite3.Connection:
        """The sqlite3 connection, in its transaction, which begins here."""
        try:
            if not self._writing:
                self._begin(light=False)
        finally:
            self._ours = False
        return self._connection

    def batch(self, steps: Sequence[Step]) -> int:
        self._reclaim()
        count = 0
        try:
            for step in steps:
                if isinstance(step, Statement):
                    cursor = self._connection.execute(step.sql, step.values)
                    count = len(cursor.fetchall()) if cursor.description else max(cursor.rowcount, 0)
                else:
                    self._cross(step)
                    count = 0
        except sqlite3.Error as error:
            raise error_for(error) from error
        return count

    def fetch(self, statement: Statement) -> list[Row]:
        self._reclaim()
        try:
            return self._connection.execute(statement.sql, statement.values).fetchall()
        except sqlite3.Error as error:
            raise error_for(error) from error

    def release(self) -> None:
        self._ours = True
        self._trespass = None
        if self._connection.in_transaction:
            self._cross(Boundary.ROLLBACK)
        self._let_go()
        self._idle.append(self)

    def discard(self) -> None:
        self._ours = True
        try:
            self._connection.close()  # rolls back what is open
        except sqlite3.Error as error:
            raise error_for(error) from error
        finally:
            self._let_go()

    def _reclaim(self) -> None:
        """Our turn again. Whatever the handler tried on the transaction itself is reported now."""
        self._ours = True
        trespass, self._trespass = self._trespass, None
        if trespass is not None:
            raise TransactionMisused(
                f"the handler tried to {trespass} on the request's transaction; onefold commits it together with "
                "the key and the response: remove the call (a savepoint is allowed)"
            )

    def _cross(self, boundary: Boundary) -> None:
        match boundary:
            case Boundary.BEGIN | Boundary.BEGIN_LIGHT:
                if not self._writing:
                    self._begin(light=boundary is Boundary.BEGIN_LIGHT)
            case Boundary.COMMIT | Boundary.ROLLBACK:
                if self._writing:
                    self._connection.execute(boundary.value)
                    self._let_go()
            case Boundary.SAVEPOINT | Boundary.ROLLBACK_TO_SAVEPOINT | Boundary.RELEASE_SAVEPOINT:
                if not self._writing:
                    self._begin(light=False)  # a savepoint alone would begin a transaction without the write lock
                self._connection.execute(f"{boundary.value} onefold")

    def _begin(self, *, light: bool) -> None:
        if not self._writer.acquire(timeout=self._busy_timeout_s):
            raise StoreBusy(f"SQLite: another transaction of this process held the write lock for {self._busy_timeout_s} s")
        self._writing = True
        try:
            if light != self._light:
                # A lease may be lost in a power cut: everyone who could have acted on it is gone too.
                self._connection.execute(f"PRAGMA synchronous={'NORMAL' if light else 'FULL'}")
                self._light = light
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._let_go()
            raise error_for(error) from error

    def _let_go(self) -> None:
        if self._writing:
            self._writing = False
            self._writer.release()

    def _authorize(self, action: int, operation: str | None, *_: object) -> int:
        """Keep COMMIT, ROLLBACK and BEGIN for ourselves, however the handler spells them."""
        if action == sqlite3.SQLITE_TRANSACTION and not self._ours:
            self._trespass = operation
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


class AsyncSqlite:
    """What an async handler works with: the request's sqlite3 connection, used on its own thread."""

    __slots__ = ("_connection", "_thread")

    def __init__(self, connection: Connection[sqlite3.Connection], thread: LaneThread) -> None:
        self._connection = connection
        self._thread = thread

    async def execute(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> sqlite3.Cursor:
        """Execute one statement; the cursor tells `rowcount` and `lastrowid`."""
        return await self.run(lambda connection: connection.execute(sql, parameters))

    async def fetch(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[Any]:
        """Execute one statement and return all its rows."""
        return await self.run(lambda connection: connection.execute(sql, parameters).fetchall())

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do anything with the real connection, in one hop."""
        return await self._thread.run(lambda: work(self._connection.handle))


def async_sqlite(path: str | Path, *, busy_timeout_s: float = 5.0) -> ThreadedDatabase[sqlite3.Connection, AsyncSqlite]:
    """The same database for asyncio."""
    return ThreadedDatabase(SqliteDatabase(path, busy_timeout_s=busy_timeout_s), AsyncSqlite)
