"""sqlite3, the embedded default: one file, many readers, one writer at a time.

A transaction takes the write lock when it begins (BEGIN IMMEDIATE), so it can never fail half-way because its
snapshot is old. The handler's transaction begins when the handler first touches its connection: what it does
before that holds no lock. Writers of this process queue on a lock of our own, because SQLite's busy handler
polls with growing sleeps; writers of other processes are waited for by that busy handler.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold._kernel.ports import Connection
from onefold.db.sqlite.errors import VENDOR_ERRORS, error_for
from onefold.db.sqlite.link import Link
from onefold.db.sqlite.version import check_version
from onefold.db.threads import LaneThread, ThreadedDatabase
from onefold.errors import ConfigurationError, StoreBusy, TransactionEnded, TransactionMisused

T = TypeVar("T")

#: The comment keeps it from being found in sqlite3's cache of compiled statements by a handler that begins.
_BEGIN = "BEGIN IMMEDIATE -- onefold"

#: How many open connections are kept for later.
_IDLE_MAX = 32

#: How long a light transaction waits for the write lock before its flow looks around and tries again.
_LIGHT_PATIENCE_S = 0.1


def _patience_s(busy_timeout_s: float, *, light: bool) -> float:
    return min(busy_timeout_s, _LIGHT_PATIENCE_S) if light else busy_timeout_s


class SqliteDatabase:
    """One database file and its connections."""

    dialect = "sqlite"

    #: Whoever takes a connection's handle waits for the write lock: not to be done on an event loop.
    handle_waits = True

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 5.0) -> None:
        check_version()
        self.path = str(path)
        if self.path in ("", ":memory:"):
            raise ConfigurationError(
                f"SQLite database {self.path!r} exists in one connection only; give the path of a file"
            )
        self._busy_timeout_s = busy_timeout_s
        self._idle: list[Link] = []
        self._writer = threading.Lock()

    def acquire(self) -> SqliteConnection:
        return self.at_hand() or self._connection(Link(self._open(), self._open_light))

    def at_hand(self) -> SqliteConnection | None:
        """A connection that is open already. Taking it touches no disk."""
        try:
            return self._connection(self._idle.pop())
        except IndexError:
            return None

    def _connection(self, link: Link) -> SqliteConnection:
        return SqliteConnection(link, self._writer, self._busy_timeout_s, self._idle)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                # Readers do not block the writer in WAL; FULL makes a commit survive a power cut, not just a crash.
                self._convert_to_wal(connection)
                connection.execute("PRAGMA synchronous=FULL")
            except sqlite3.Error:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise error_for(error, f"SQLite file {self.path!r}") from error
        return connection

    def _open_light(self) -> sqlite3.Connection:
        """For leases, which may be lost in a power cut: everyone who could have acted on one is gone then, too.

        A connection of its own, because changing the level and the patience of one back and forth costs four statements
        a request, half of them while others wait for the write lock.
        """
        connection = self._open()
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA busy_timeout={round(_patience_s(self._busy_timeout_s, light=True) * 1000)}")
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


class SqliteConnection:
    """One connection to the file, for as long as it is out."""

    __slots__ = ("_busy_timeout_s", "_idle", "_lent", "_light", "_writer", "_writing")

    def __init__(self, link: Link, writer: threading.Lock, busy_timeout_s: float, idle: list[Link]) -> None:
        self._lent: Link | None = link
        self._writer = writer
        self._busy_timeout_s = busy_timeout_s
        self._idle = idle
        self._writing = False
        #: Whether the transaction under way is a light one.
        self._light = False

    @property
    def handle(self) -> sqlite3.Connection:
        """The sqlite3 connection, in its transaction, which begins here."""
        with self._link as connection:
            self._begin(light=False)
        return connection

    def batch(self, steps: Sequence[Step]) -> int:
        self._check(undone=steps[0] is Boundary.ROLLBACK)
        try:
            with self._link:
                match steps:
                    case (Boundary.BEGIN_LIGHT, Statement() as statement, Boundary.COMMIT):
                        return self._commit_alone(statement)
                    case _:
                        return self._step_by_step(steps)
        except VENDOR_ERRORS as error:
            raise error_for(error) from error

    def fetch(self, statement: Statement) -> list[Row]:
        self._check()
        try:
            with self._link:
                return self._execute(statement).fetchall()
        except VENDOR_ERRORS as error:
            raise error_for(error) from error

    def is_at_rest(self) -> bool:
        """Releasing it now touches no disk."""
        return not self._writing and not self._link.in_transaction and len(self._idle) < _IDLE_MAX

    def release(self) -> None:
        link, self._lent = self._link, None
        link.trespass = None
        try:
            with link as connection:
                link.rollback()
            # What the handler may have set for itself is not for the next one.
            connection.row_factory, connection.text_factory = None, str
        except sqlite3.Error:
            link.close()
        else:
            self._idle.append(link)
            if len(self._idle) > _IDLE_MAX:
                self._idle.pop(0).close()
        finally:
            self._let_go()

    def discard(self) -> None:
        link, self._lent = self._lent, None
        try:
            if link is not None:
                link.close()
        except sqlite3.Error as error:
            raise error_for(error) from error
        finally:
            self._let_go()

    @property
    def _link(self) -> Link:
        if self._lent is None:
            raise TransactionMisused(
                "the request that this SQLite connection belonged to is over; finish the work before the handler "
                "returns (a task left behind would write into another request's transaction)"
            )
        return self._lent

    @property
    def _current(self) -> sqlite3.Connection:
        return self._link.light if self._light else self._link.connection

    def _check(self, *, undone: bool = False) -> None:
        """What became of the transaction in the handler's hands? It does not matter if it is undone now."""
        link = self._link
        trespass, link.trespass = link.trespass, None
        if undone:
            return
        if trespass is not None:
            raise TransactionMisused(
                f"the handler tried to {trespass} on the request's transaction; onefold commits it together with "
                "the key and the response: remove the call (a savepoint is allowed)"
            )
        if self._writing and not self._light and not link.in_transaction:
            raise TransactionEnded(
                "SQLite: the transaction is gone (an ON CONFLICT ROLLBACK, an error that rolls back, or close())"
            )

    def _execute(self, statement: Statement) -> sqlite3.Cursor:
        cursor = self._current.cursor()
        cursor.row_factory = None
        return cursor.execute(statement.sql, statement.values)

    def _cross(self, boundary: Boundary) -> None:
        connection = self._current
        match boundary:
            case Boundary.BEGIN | Boundary.BEGIN_LIGHT:
                self._begin(light=boundary is Boundary.BEGIN_LIGHT)
            case Boundary.COMMIT:
                connection.commit()
                self._let_go()
            case Boundary.ROLLBACK:
                connection.rollback()
                self._let_go()
            case Boundary.SAVEPOINT:
                self._begin(light=False)  # the handler's first touch may be a savepoint
                connection.execute(f"{boundary.value} onefold")
            case Boundary.ROLLBACK_TO_SAVEPOINT | Boundary.RELEASE_SAVEPOINT:
                connection.execute(f"{boundary.value} onefold")

    def _step_by_step(self, steps: Sequence[Step]) -> int:
        count = 0
        for step in steps:
            if isinstance(step, Statement):
                cursor = self._execute(step)
                count = len(cursor.fetchall()) if cursor.description else max(cursor.rowcount, 0)
            else:
                self._cross(step)
                count = 0
        return count

    def _commit_alone(self, statement: Statement) -> int:
        """One statement that is a transaction of its own. SQLite begins and ends it: one call instead of three."""
        self._take_lock(light=True)
        try:
            self._execute(statement).close()
        finally:
            self._let_go()
        return 0

    def _begin(self, *, light: bool) -> None:
        if self._writing:
            return
        self._take_lock(light=light)
        try:
            self._current.execute(_BEGIN)
        except sqlite3.Error as error:
            self._let_go()
            raise error_for(error) from error

    def _take_lock(self, *, light: bool) -> None:
        patience_s = _patience_s(self._busy_timeout_s, light=light)
        if not self._writer.acquire(timeout=patience_s):
            raise StoreBusy(f"SQLite: another transaction of this process held the write lock for {patience_s:g} s")
        self._writing, self._light = True, light

    def _let_go(self) -> None:
        if self._writing:
            self._writing = self._light = False
            self._writer.release()


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
    database = SqliteDatabase(path, busy_timeout_s=busy_timeout_s)
    return ThreadedDatabase(database, AsyncSqlite, at_hand=database.at_hand, at_rest=SqliteConnection.is_at_rest)
