"""One connection to a SQLite file, for as long as it is out: the verbs, and whose the write lock is.

Theory of operation. An open file (`SqliteFile`) goes from request to request, and has two connections of sqlite3: the
guarded one, which a handler gets, and `light`, for short work of our own that waits neither for the disk nor for a
lock. A transaction of the handler's begins when it first touches its handle: with the lock of this process's writers
(`Shared.writer`), then with BEGIN IMMEDIATE. A light one takes the same lock, and gives up soon.

Words. A turn of ours (`with file`) keeps a thread of the handler's out of SQLite. A term is one transaction that a
handler may work in: the handle of an earlier term is void. A job is what an async handler is having executed on the
connection's thread: it alone is interrupted when its wait is cancelled. A part is what a handler may undo by itself, a
savepoint. A glance is a read on the event loop, without a hop to the thread: what would have to wait is not done there.
A connection is at rest when giving it back touches no disk and waits for no thread.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from os import getpid
from typing import Any

from onefold._kernel.effects import BatchItem, Boundary, HandlerStatement, NamedRows, Nested, Row, Statement
from onefold.db._opened_elsewhere import inherited_error
from onefold.db.sqlite._errors import VENDOR_ERRORS, error_for
from onefold.db.sqlite._file import Shared, SqliteFile, keep_open
from onefold.db.sqlite._guarded_connection import LOST, OVER, trespass_error
from onefold.db.sqlite._savepoints import Parts
from onefold.errors import OnefoldError, StoreBusy, TransactionEnded, TransactionMisused

#: The comment keeps it from being found in sqlite3's cache of compiled statements by a handler that begins.
_BEGIN = "BEGIN IMMEDIATE -- onefold"

#: Whatever level is asked for: transactions of SQLite are serializable.
_BEGINS = frozenset(
    {
        Boundary.BEGIN,
        Boundary.BEGIN_AS_CHOSEN,
        Boundary.BEGIN_LIGHT,
        Boundary.BEGIN_REPEATABLE_READ,
        Boundary.BEGIN_SERIALIZABLE,
    }
)

#: How many open connections are kept for later.
_IDLE_MAX = 32

#: How long a light transaction waits for the write lock before its flow looks around and tries again.
_LIGHT_PATIENCE_S = 0.1

#: How long it sleeps in between, as SQLite itself would.
_PAUSES_S = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025)


class SqliteConnection:
    """One connection to the file, for as long as it is out."""

    __slots__ = (
        "_busy_timeout_s",
        "_lent",
        "_light",
        "_shared",
        "_writing",
        "job",
        "job_lock",
        "parts",
        "term",
    )

    def __init__(self, file: SqliteFile, shared: Shared, busy_timeout_s: float) -> None:
        self._lent: SqliteFile | None = file
        file.connection.executed = False
        self._shared = shared
        self._busy_timeout_s = busy_timeout_s
        self._writing = False
        #: Whether the transaction under way is a light one.
        self._light = False
        self.parts = Parts()
        #: How many transactions that a handler may work in have ended.
        self.term = 0
        #: What an async handler is having executed on its thread. It begins and ends with the lock, so that what comes
        #: after it is not interrupted in its place.
        self.job: object | None = None
        self.job_lock = threading.Lock()

    @property
    def handle(self) -> sqlite3.Connection:
        """The sqlite3 connection, in its transaction, which begins here."""
        return self.handle_in(self.term)

    def handle_in(self, term: int) -> sqlite3.Connection:
        """The handle for that term only: a thread that comes too late, or had to wait while the request was ended,
        would begin a transaction that is not kept."""
        file = self._file
        with file as connection:
            if file is not self._lent or term != self.term:
                raise TransactionMisused(OVER)
            self._begin(file, light=False)
        return connection

    @property
    def executed(self) -> bool:
        """Whether the handler has had anything executed."""
        return self._file.connection.executed

    def batch(self, items: Sequence[BatchItem]) -> int:
        file = self._file  # once: it asks the system which process this is
        if Boundary.COMMIT in items or Boundary.ROLLBACK in items:
            file.shut(self._busy_timeout_s)
        try:
            with file:
                self._check(file, items)
                match items:
                    case (Boundary.BEGIN_LIGHT, Statement() as statement, Boundary.COMMIT):
                        return self._commit_alone(file, statement)
                    case _:
                        return self._step_by_step(file, items)
        except VENDOR_ERRORS as error:
            raise error_for(error) from error

    def fetch(self, statement: Statement) -> list[Row]:
        file = self._file
        try:
            with file:
                self._check(file)
                return self._execute(file, statement).fetchall()
        except VENDOR_ERRORS as error:
            raise error_for(error) from error

    def query(self, statement: HandlerStatement) -> NamedRows:
        """For the handler, whose transaction begins here."""
        file = self._lent
        if file is None or not self._writing or file.process != getpid():
            return query_handle(self.handle, statement)
        with file.connection.lock:
            if file is not self._lent:  # given back meanwhile: another request may have it
                raise TransactionMisused(OVER)
            return query_handle(file.connection, statement)

    def glance(self, items: Sequence[BatchItem]) -> list[Row] | None:
        """The rows of the last of some brief statements, here and now. None: that would have to wait, or it is not the
        time for it."""
        file = self._file
        light = file.opened_light
        if self._writing or light is None or file.in_transaction:
            return None
        try:
            for item in items:
                if type(item) is not Statement or not item.brief:
                    return None
                rows: list[Row] = sqlite3.Cursor(light).execute(item.sql, item.values).fetchall()
        except sqlite3.Error:
            return None  # the statement is executed again on a thread, which may wait, and raises the error
        return rows

    def prepare_to_glance(self) -> None:
        """Open what a glance needs; that may take its time."""
        try:
            _ = self._file.light
        except OnefoldError:
            self.discard()
            raise

    def release_at_rest(self) -> bool:
        """Release it, if that touches no disk and no thread of the handler's has to be waited for. Whether it did."""
        file, self._lent = self._file, None  # as in `release`
        file.connection.over = True
        is_busy = self._writing or file.in_transaction or len(self._shared.idle) >= _IDLE_MAX
        if is_busy or not file.is_left() or file.is_unfit():
            self._lent = file
            return False
        self._put_back(file)
        return True

    def release(self) -> None:
        file, self._lent = self._file, None  # first: a thread of the handler's may be on its way to `handle`
        file.when_left(partial(self._give_back, file))

    def _give_back(self, file: SqliteFile) -> None:
        try:
            # A task left behind would write into another request's transaction; what was changed would be found there.
            if file.is_unfit():
                self._close(file)
                return
            try:
                with file:
                    file.rollback()
            except sqlite3.Error:
                self._close(file)
            else:
                self._put_back(file)
        finally:
            self._let_go()

    def _put_back(self, file: SqliteFile) -> None:
        """It is in no transaction."""
        connection = file.connection
        # What the handler may have set for itself is not for the next one.
        connection.trespass, connection.row_factory, connection.text_factory = None, None, str
        # Before another request has it, and never after: the locks would be that request's.
        file.locks.release()
        idle = self._shared.idle
        idle.append(file)
        if len(idle) > _IDLE_MAX:
            idle.pop(0).close()

    def end_handler(self) -> float:
        """An async handler has ended: nothing more of it begins. How long the end of its transaction waits for what
        has."""
        self.term += 1
        return self._busy_timeout_s

    def interrupt(self) -> bool:
        """Before the connection is discarded: interrupt the job of an async handler, and let no other begin. Whether
        there is one; to be called again until there is none."""
        file = self._lent
        if file is None or file.is_a_parents:
            return False
        self.term += 1
        file.connection.over = True
        return self.interrupt_job(self.job)

    def interrupt_job(self, job: object) -> bool:
        """Interrupt this job, and nothing else. Whether it is executed now."""
        with self.job_lock:
            if job is None or self.job is not job or self._lent is None:
                return False
            self._lent.connection.interrupt()
            return True

    def discard(self) -> None:
        file, self._lent = self._lent, None
        if file is None:
            self._let_go()
        elif file.is_a_parents:
            keep_open(file)
        else:
            file.when_left(partial(self._throw_away, file))

    def _throw_away(self, file: SqliteFile) -> None:
        try:
            self._close(file)
        except sqlite3.Error as error:
            raise error_for(error) from error
        finally:
            self._let_go()

    def _close(self, file: SqliteFile) -> None:
        try:
            file.close()
        finally:
            file.locks.release()

    @property
    def _file(self) -> SqliteFile:
        file = self._lent
        if file is None:
            raise TransactionMisused(OVER)
        if file.process != getpid():
            raise inherited_error("SQLite")
        return file

    def _current(self, file: SqliteFile) -> sqlite3.Connection:
        return file.light if self._light else file.connection

    def _check(self, file: SqliteFile, items: Sequence[BatchItem] = ()) -> None:
        """Refuse to go on where the handler has ended the transaction, or tried to. An attempt does not matter if all
        is undone now; an ended transaction does, unless only a rollback follows: an answer after it would be stored for
        good."""
        trespass, file.connection.trespass = file.connection.trespass, None
        undone = bool(items) and items[0] is Boundary.ROLLBACK
        if trespass is not None and not undone:
            raise trespass_error(trespass)
        if undone and (len(items) == 1 or self.parts.is_abandoned):
            return
        if self._writing and not self._light and not file.in_transaction:
            self.parts.check()  # we have interrupted it
            raise TransactionEnded(LOST)

    def _execute(self, file: SqliteFile, statement: Statement) -> sqlite3.Cursor:
        """In a turn of ours, by sqlite3's own cursor: the guarded one is for handlers, and costs as much again."""
        return sqlite3.Cursor(self._current(file)).execute(statement.sql, statement.values)

    def _cross(self, file: SqliteFile, item: Boundary | Nested) -> None:
        if item in _BEGINS:
            self._begin(file, light=item is Boundary.BEGIN_LIGHT)
            return
        connection = self._current(file)
        match item:
            case Boundary.COMMIT:
                self.parts.check()
                sqlite3.Connection.commit(connection)
                self._end(file)
            case Boundary.ROLLBACK:
                sqlite3.Connection.rollback(connection)
                self._end(file)
            case Boundary.SAVEPOINT:
                self._begin(file, light=False)  # the handler's first touch may be a savepoint
                connection.execute(f"{item.value} onefold")
            case Nested(boundary, number):
                self._begin(file, light=False)
                connection.execute(f"{boundary.value} onefold_{number}")
                self.parts.cross(boundary, number)
            case _:
                connection.execute(f"{item.value} onefold")

    def _step_by_step(self, file: SqliteFile, items: Sequence[BatchItem]) -> int:
        count = 0
        for item in items:
            if isinstance(item, Statement):
                cursor = self._execute(file, item)
                count = len(cursor.fetchall()) if cursor.description else max(cursor.rowcount, 0)
            else:
                self._cross(file, item)
                count = 0
        return count

    def _commit_alone(self, file: SqliteFile, statement: Statement) -> int:
        """One statement that is a transaction of its own. SQLite begins and ends it: one call instead of three."""
        self._take_lock(light=True)
        try:
            self._patiently(lambda: self._execute(file, statement).close())
        finally:
            self._let_go()
        return 0

    def _begin(self, file: SqliteFile, *, light: bool) -> None:
        if self._writing:
            return
        self._take_lock(light=light)
        try:
            self._patiently(lambda: sqlite3.Cursor(self._current(file)).execute(_BEGIN))
        except sqlite3.Error as error:
            self._let_go()
            raise error_for(error) from error
        if not light:
            file.connection.over = False

    def _take_lock(self, *, light: bool) -> None:
        patience_s = min(self._busy_timeout_s, _LIGHT_PATIENCE_S) if light else self._busy_timeout_s
        if not self._shared.writer.acquire(timeout=patience_s):
            raise StoreBusy(f"SQLite: another transaction of this process held the write lock for {patience_s:g} s")
        self._writing, self._light = True, light

    def _patiently(self, work: Callable[[], object]) -> None:
        """Do it. Where another process has the write lock, and the connection is the one without patience, wait."""
        if not self._light:
            work()
            return
        deadline = time.monotonic() + min(self._busy_timeout_s, _LIGHT_PATIENCE_S)
        for pause_s in chain(_PAUSES_S, repeat(_PAUSES_S[-1])):
            try:
                work()
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)

    def _end(self, file: SqliteFile) -> None:
        if not self._light:
            self.term += 1
            file.connection.over = True
        self._let_go()

    def _let_go(self) -> None:
        if self._writing:
            self._writing = self._light = False
            self.parts.forget()
            self._shared.writer.release()


#: Of a column, in what a cursor says of it.
_NAME = itemgetter(0)


def query_handle(handle: Any, statement: HandlerStatement) -> NamedRows:
    """Execute on the handle (a GuardedConnection) as the handler would, with its checks made once and not for each call
    of a cursor. A cursor that is made like this gives plain rows, whatever the handler has set for its own."""
    try:
        with handle.lock:
            if handle.ours or handle.over or not handle.in_transaction:
                handle.check()
            else:
                handle.executed = True
            cursor = sqlite3.Cursor(handle).execute(statement.sql, statement.values)
            rows = cursor.fetchall()
    except VENDOR_ERRORS as error:
        raise error_for(error) from error
    return tuple.__new__(NamedRows, (tuple(map(_NAME, cursor.description)) if rows else (), rows))
