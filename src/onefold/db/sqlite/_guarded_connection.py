"""The sqlite3 connection that a handler works with: used by one thread at a time, of no use once its transaction is
gone or the handler has ended, and open about what was changed in it.

SQLite may roll a whole transaction back by itself (ON CONFLICT ROLLBACK, interrupt(), a full disk). Whatever is
executed after that would commit on its own, statement by statement. sqlite3 executes what it has compiled before
without asking the authorizer again, so it is the cursor that looks, before each statement.

A handler may leave a thread behind, or be one whose request was cancelled. sqlite3 crashes the process when a
connection is closed while another thread is inside it, so everything that enters SQLite holds the connection's lock:
each call of the handler's, and each turn of ours. The lock is reentrant because SQLite calls back: functions, row
factories and rows that are made while they are inserted may use the connection.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from os import getpid
from typing import Any

from onefold.db._opened_elsewhere import inherited_error
from onefold.errors import TransactionEnded, TransactionMisused

LOST = (
    "SQLite has rolled back the transaction (an ON CONFLICT ROLLBACK, interrupt(), another error that rolls back, or "
    "close()): nothing of it is kept, and nothing more can be done in it. Let the error that did it rise, or use "
    "another conflict clause (OR ABORT is the default)"
)

OVER = (
    "the request that this SQLite connection belonged to is over; finish the work before the handler "
    "returns (a task left behind would write into another request's transaction)"
)


def trespass_error(operation: str) -> TransactionMisused:
    return TransactionMisused(
        f"the handler tried to {operation} its transaction by itself, which is refused; onefold commits everything "
        "together: remove the call (a savepoint is allowed; executescript() and `with connection` commit, too)"
    )


#: What stays in a connection after its transaction, and is not seen by SQLite's authorizer.
_ALTERING = (
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "deserialize",
    "enable_load_extension",
    "load_extension",
    "set_progress_handler",
    "set_trace_callback",
    "setconfig",
    "setlimit",
)

#: What else enters SQLite. Left out are `interrupt`, which is for other threads, and what is answered from memory.
_ENTERING = ("__call__", "__exit__", "backup", "commit", "rollback", "serialize")

#: Attributes that begin or end transactions when they are set.
_MODES = ("autocommit", "isolation_level")

#: What enters SQLite by a blob.
_OF_BLOBS = ("read", "write", "seek", "tell", "__len__", "__getitem__", "__setitem__", "__enter__", "__exit__", "close")


class GuardedConnection(sqlite3.Connection):
    """Executes for a handler within a transaction only."""

    __slots__ = ("altered", "executed", "lock", "ours", "over", "process", "trespass")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Held by the thread that is inside SQLite.
        self.lock = threading.RLock()
        #: Whether the thread that has the lock is in a turn of ours: as long as it lasts, transactions may begin and
        #: end.
        self.ours = True
        #: Whether the handler's transaction is over, or about to be: no call of its own is let in any more. Set without
        #: the lock, so that a thread that goes from call to call cannot keep us out.
        self.over = False
        #: Whether a handler has left something in it that is not for the next one.
        self.altered = False
        #: How the handler has tried to begin or end a transaction.
        self.trespass: str | None = None
        #: Whether the handler that has it now has had anything executed.
        self.executed = False
        #: Which process it was opened in.
        self.process = getpid()
        super().__init__(*args, **kwargs)

    def check_open(self) -> None:
        """With the lock: whose turn it is, is known to its holder only."""
        if self.over and not self.ours:
            raise TransactionMisused(OVER)

    def check(self) -> None:
        if not self.ours:
            self.check_open()
            if self.process != getpid():
                raise inherited_error("SQLite")
            if not self.in_transaction:
                raise TransactionEnded(LOST)
            self.executed = True

    def explain(self, error: sqlite3.Error) -> None:
        """Raises what SQLite's "not authorized" means, where that is the error."""
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_AUTH and self.trespass is not None and not self.ours:
            raise trespass_error(self.trespass) from error

    def cursor(self, factory: Any = None) -> Any:
        if self.over:
            with self.lock:
                self.check_open()
        if factory is None:
            return super().cursor(GuardedCursor)
        if isinstance(factory, type) and issubclass(factory, sqlite3.Cursor):
            return super().cursor(type(factory.__name__, (GuardedCursor, factory), {}))
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def executescript(self, script: str, /) -> Any:
        return self.cursor().executescript(script)

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            self.check()
            return GuardedBlob(self, super().blobopen(*args, **kwargs))

    def close(self) -> None:
        with self.lock:
            if self.ours or not self.over:  # else we close it
                super().close()

    def set_authorizer(self, *args: Any, **kwargs: Any) -> None:
        with self.lock:
            if not self.ours:
                raise TransactionMisused(
                    "the handler tried to replace the authorizer of the request's SQLite connection, by which onefold "
                    "keeps the transaction whole: open a connection of your own for that"
                )
            super().set_authorizer(*args, **kwargs)


class GuardedCursor(sqlite3.Cursor):
    """Looks whether the transaction is there before it executes. Reading rows executes on."""

    __slots__ = ()

    connection: GuardedConnection

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        connection = self.connection
        with connection.lock:
            connection.check()
            return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        connection = self.connection
        with connection.lock:
            connection.check()
            return super().executemany(sql, self._inside(parameters))

    def executescript(self, script: str, /) -> Any:
        connection = self.connection
        with connection.lock:
            connection.check()
            try:
                return super().executescript(script)
            except sqlite3.DatabaseError as error:
                connection.explain(error)
                raise

    def __next__(self) -> Any:
        connection = self.connection
        with connection.lock:
            connection.check_open()
            return super().__next__()

    def fetchone(self) -> Any:
        connection = self.connection
        with connection.lock:
            connection.check_open()
            return super().fetchone()

    def fetchmany(self, *args: Any, **kwargs: Any) -> list[Any]:
        connection = self.connection
        with connection.lock:
            connection.check_open()
            return super().fetchmany(*args, **kwargs)

    def fetchall(self) -> list[Any]:
        connection = self.connection
        with connection.lock:
            connection.check_open()
            return super().fetchall()

    def _inside(self, rows: Iterable[Any]) -> Iterator[Any]:
        """The rows. To make one may cost the transaction, where user code makes it."""
        for row in rows:
            self.connection.check()
            yield row


class GuardedBlob:
    """Stands before a sqlite3.Blob, which can be neither made nor derived from."""

    __slots__ = ("_blob", "_connection")

    def __init__(self, connection: GuardedConnection, blob: sqlite3.Blob) -> None:
        self._connection = connection
        self._blob = blob


def _entering(name: str) -> Callable[..., Any]:
    method = getattr(sqlite3.Connection, name)

    def enter(self: GuardedConnection, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            self.check_open()
            try:
                return method(self, *args, **kwargs)
            except sqlite3.DatabaseError as error:
                self.explain(error)
                raise

    return enter


def _altering(name: str) -> Callable[..., Any]:
    method = _entering(name)

    def alter(self: GuardedConnection, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            self.altered = self.altered or not self.ours
            return method(self, *args, **kwargs)

    return alter


def _mode(name: str) -> property:
    attribute = getattr(sqlite3.Connection, name)

    def set_mode(self: GuardedConnection, value: object) -> None:
        with self.lock:
            self.check_open()
            try:
                attribute.__set__(self, value)
            except sqlite3.DatabaseError as error:
                self.explain(error)
                raise

    return property(attribute.__get__, set_mode)


def _of_blob(name: str) -> Callable[..., Any]:
    method = getattr(sqlite3.Blob, name)

    def enter(self: GuardedBlob, *args: Any) -> Any:
        with self._connection.lock:
            self._connection.check_open()
            result = method(self._blob, *args)
            return self if result is self._blob else result

    return enter


# Which of them there are depends on Python's version, and on how SQLite was built.
for _names, _guard in ((_ALTERING, _altering), (_ENTERING, _entering), (_MODES, _mode)):
    for _name in _names:
        if hasattr(sqlite3.Connection, _name):
            setattr(GuardedConnection, _name, _guard(_name))
for _name in _OF_BLOBS:
    setattr(GuardedBlob, _name, _of_blob(_name))
