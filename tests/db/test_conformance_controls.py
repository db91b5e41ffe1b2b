"""The conformance suite finds drivers that break a promise: each of these breaks one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from psycopg_pool import AsyncConnectionPool

from onefold._kernel.effects import BatchItem, Boundary, HandlerStatement, NamedRows, Nested, Row, Statement
from onefold._kernel.ports import Connection, Queryable
from onefold.db._psycopg_public import AsyncPsycopgConnection
from onefold.db._threaded import ThreadedConnection, ThreadedDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase
from onefold.db.sqlite import AsyncSqlite, SqliteDatabase
from onefold.db.sqlite._file import SqliteFile
from onefold.db.sqlite._guarded_connection import GuardedConnection
from onefold.errors import OnefoldError
from onefold.testing.conformance import SCENARIOS, NotConforming, Subject, check, check_cancellation
from tests.db.drivers import sqlite


class Wrapped:
    """A connection that does everything right."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.path = database.path
        self.inner: Connection[sqlite3.Connection] = database.acquire()

    @property
    def handle(self) -> sqlite3.Connection:
        return self.inner.handle

    def batch(self, items: Sequence[BatchItem]) -> int:
        return self.inner.batch(items)

    def fetch(self, statement: Statement) -> list[Row]:
        return self.inner.fetch(statement)

    def query(self, statement: HandlerStatement) -> NamedRows:
        assert isinstance(self.inner, Queryable)
        found: NamedRows = self.inner.query(statement)
        return found

    def release(self) -> None:
        self.inner.release()

    def discard(self) -> None:
        self.inner.discard()


class NamesNoColumns(Wrapped):
    def query(self, statement: HandlerStatement) -> NamedRows:
        return NamedRows((), super().query(statement).rows)


class QueriesForItself(Wrapped):
    """In a transaction of its own, beside that of the handler."""

    def query(self, statement: HandlerStatement) -> NamedRows:
        found = super().query(statement)
        self.inner.batch((Boundary.COMMIT, Boundary.BEGIN))
        return found


class Without(Wrapped):
    """Leaves a boundary out."""

    missing: Boundary

    def batch(self, items: Sequence[BatchItem]) -> int:
        kept = tuple(item for item in items if item is not self.missing)
        return super().batch(kept) if kept else 0


class DropsTheRollbackToASavepoint(Without):
    missing = Boundary.ROLLBACK_TO_SAVEPOINT


class GivesAllSavepointsOneName(Wrapped):
    def batch(self, items: Sequence[BatchItem]) -> int:
        return super().batch([item.boundary if isinstance(item, Nested) else item for item in items])


class DropsTheCommit(Without):
    missing = Boundary.COMMIT


class DropsTheBegin(Without):
    missing = Boundary.BEGIN


class CountsOneTooMany(Wrapped):
    def batch(self, items: Sequence[BatchItem]) -> int:
        return super().batch(items) + isinstance(items[-1], Statement)


class CountsTheRowsOfAllSteps(Wrapped):
    def batch(self, items: Sequence[BatchItem]) -> int:
        return sum(super(CountsTheRowsOfAllSteps, self).batch((item,)) for item in items)


class GoesOnAfterAnError(Wrapped):
    def batch(self, items: Sequence[BatchItem]) -> int:
        errors, count = [], 0
        for item in items:
            try:
                count = super().batch((item,))
            except OnefoldError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return count


class LeaksTheErrorsOfSqlite(Wrapped):
    def fetch(self, statement: Statement) -> list[Row]:
        try:
            return super().fetch(statement)
        except OnefoldError as error:
            raise error.__cause__ or error from None


class MistakesEveryErrorForAnother(Wrapped):
    def batch(self, items: Sequence[BatchItem]) -> int:
        try:
            return super().batch(items)
        except OnefoldError as error:
            raise OnefoldError(str(error)) from error


class AnswersWithLists(Wrapped):
    def fetch(self, statement: Statement) -> list[Row]:
        rows: list[Any] = [list(row) for row in super().fetch(statement)]
        return rows


class TrimsText(Wrapped):
    def batch(self, items: Sequence[BatchItem]) -> int:
        return super().batch([self._trimmed(item) for item in items])

    def _trimmed(self, item: BatchItem) -> BatchItem:
        if not isinstance(item, Statement):
            return item
        values = tuple(value.strip('\\"') if isinstance(value, str) else value for value in item.values)
        return Statement(item.sql, values)


class CommitsWhatIsDiscarded(Wrapped):
    def discard(self) -> None:
        self.inner.batch((Boundary.COMMIT,))
        self.inner.release()


class CommitsWhatIsReleased(Wrapped):
    def release(self) -> None:
        self.inner.batch((Boundary.COMMIT,))
        self.inner.release()


class BeginsByItself(Wrapped):
    def fetch(self, statement: Statement) -> list[Row]:
        self.inner.batch((Boundary.BEGIN,))
        return super().fetch(statement)


class UndoesWhatAPlainFetchWrote(Wrapped):
    """Keeps a transaction of its own around every statement, and takes a fetch for a read."""

    begun = False

    def batch(self, items: Sequence[BatchItem]) -> int:
        for item in items:
            if item in (Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK):
                self.begun = item is Boundary.BEGIN
        return super().batch(items)

    def fetch(self, statement: Statement) -> list[Row]:
        if self.begun:
            return super().fetch(statement)
        super().batch((Boundary.BEGIN,))
        rows = super().fetch(statement)
        super().batch((Boundary.ROLLBACK,))
        return rows


class CommitsWhatAFetchWrote(Wrapped):
    def fetch(self, statement: Statement) -> list[Row]:
        rows = super().fetch(statement)
        self.inner.batch((Boundary.COMMIT,))
        return rows


class LetsTheHandlerCommit(Wrapped):
    """Reopens what the handler closed, as if nothing had happened."""

    def batch(self, items: Sequence[BatchItem]) -> int:
        try:
            return super().batch(items)
        except OnefoldError:
            return super().batch((Boundary.ROLLBACK, Boundary.BEGIN, Boundary.SAVEPOINT, *items))


class HandsOutAnotherConnection(Wrapped):
    @property
    def handle(self) -> sqlite3.Connection:
        self._other = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        return self._other

    def release(self) -> None:
        self._close()
        super().release()

    def discard(self) -> None:
        self._close()
        super().discard()

    def _close(self) -> None:
        if hasattr(self, "_other"):
            self._other.close()


class LetsAHandleLiveOn(Wrapped):
    """Gives its connection to the next one, whoever has kept it."""

    def release(self) -> None:
        with mock.patch.object(SqliteFile, "is_held", return_value=False):
            super().release()


class LetsTheHandlerGoOn(Wrapped):
    """Takes no notice of a transaction that SQLite has rolled back."""

    @property
    def handle(self) -> sqlite3.Connection:
        handle = super().handle
        assert isinstance(handle, GuardedConnection)
        handle.ours = True
        return handle


class BrokenDatabase:
    """A database whose connections are of a broken kind."""

    dialect = "sqlite"

    def __init__(self, database: SqliteDatabase, kind: type[Wrapped]) -> None:
        self._database = database
        self._kind = kind

    def acquire(self) -> Wrapped:
        return self._kind(self._database)

    def close(self) -> None:
        self._database.close()


BROKEN: dict[type[Wrapped], str] = {
    DropsTheRollbackToASavepoint: "a_savepoint_undoes_what_followed_it_only",
    GivesAllSavepointsOneName: "each_of_the_handlers_savepoints_has_a_name_of_its_own",
    NamesNoColumns: "a_query_answers_with_rows_and_their_names_in_the_transaction_of_the_handler",
    QueriesForItself: "a_query_answers_with_rows_and_their_names_in_the_transaction_of_the_handler",
    DropsTheCommit: "what_is_committed_is_there_for_others_and_before_that_it_is_not",
    DropsTheBegin: "a_rollback_undoes",
    CountsOneTooMany: "a_batch_answers_with_the_row_count_of_its_last_step",
    CountsTheRowsOfAllSteps: "a_batch_answers_with_the_row_count_of_its_last_step",
    GoesOnAfterAnError: "a_batch_stops_at_its_first_error",
    LeaksTheErrorsOfSqlite: "errors_have_the_classes_of_onefold",
    MistakesEveryErrorForAnother: "errors_have_the_classes_of_onefold",
    AnswersWithLists: "values_come_back_as_they_went",
    TrimsText: "values_are_stored_by_a_batch_as_they_are",
    CommitsWhatIsDiscarded: "a_discarded_connection_is_rolled_back_and_replaced",
    CommitsWhatIsReleased: "a_released_connection_leaves_nothing_open",
    BeginsByItself: "a_plain_read_leaves_nothing_open",
    UndoesWhatAPlainFetchWrote: "a_plain_fetch_that_writes_commits_by_itself",
    CommitsWhatAFetchWrote: "a_fetch_that_writes_inside_a_transaction_commits_with_it",
    LetsTheHandlerCommit: "a_commit_by_the_handler_is_found_out",
    LetsTheHandlerGoOn: "after_the_database_has_rolled_back_nothing_the_handler_does_is_kept",
    LetsAHandleLiveOn: "a_handle_that_is_kept_is_refused_once_its_transaction_is_over",
    HandsOutAnotherConnection: "the_handle_is_in_the_same_transaction",
}


@contextmanager
def broken(kind: type[Wrapped], path: Path) -> Iterator[Subject]:
    with sqlite(str(path), 0.1) as whole, closing(SqliteDatabase(path, busy_timeout_s=0.1)) as database:
        yield Subject(
            database=BrokenDatabase(database, kind),
            execute=whole.execute,
            nested=whole.nested,
            commit=whole.commit,
        )


def kept(subject: Subject, name: str) -> bool:
    [scenario] = [scenario for scenario in SCENARIOS if str(scenario) == name]
    try:
        check(scenario, subject)
    except Exception:
        return False
    return True


@pytest.mark.parametrize(("kind", "name"), BROKEN.items(), ids=[kind.__name__ for kind in BROKEN])
def test_a_driver_that_breaks_a_promise_is_found(kind: type[Wrapped], name: str, sqlite_path: Path) -> None:
    with broken(kind, sqlite_path) as subject:
        assert not kept(subject, name)


@pytest.mark.parametrize("name", sorted(set(BROKEN.values())))
def test_a_driver_that_is_only_wrapped_keeps_the_same_promises(name: str, sqlite_path: Path) -> None:
    with broken(Wrapped, sqlite_path) as subject:
        assert kept(subject, name)


class LosesWhatIsDiscarded(AsyncPsycopgConnection):
    async def discard(self) -> None:
        """Neither closed nor given back."""


class LosingDatabase(AsyncPsycopgDatabase):
    async def acquire(self) -> AsyncPsycopgConnection:
        taken = await super().acquire()
        return LosesWhatIsDiscarded(taken._pool, taken._connection, taken._schema)


async def test_a_driver_that_loses_cancelled_connections_is_found(postgres_dsn: str) -> None:
    async with AsyncConnectionPool(postgres_dsn, min_size=0, max_size=2, open=False) as pool:
        async with pool.connection() as connection:  # else each connection is spent on looking for our tables
            await connection.execute("CREATE TABLE onefold_migration (version int)")
        subject = Subject(
            database=LosingDatabase(pool, acquire_timeout_s=0.2),
            execute=lambda handle, sql: handle.execute(sql),
            nested=lambda handle, sql, fails: handle.execute(sql),
            commit=lambda handle: handle.commit(),
            connections_max=2,
        )
        with pytest.raises((NotConforming, OnefoldError)):
            await check_cancellation(subject)


class KeepsWhatWasInterrupted(ThreadedConnection[sqlite3.Connection, AsyncSqlite]):
    """Releases the handler's savepoints instead of rolling them back."""

    __slots__ = ()

    async def batch(self, items: Sequence[BatchItem]) -> int:
        undo = Boundary.ROLLBACK_TO_SAVEPOINT
        left = [item for item in items if not (isinstance(item, Nested) and item.boundary is undo)]
        return await super().batch(left)


class KeepingDatabase(ThreadedDatabase[sqlite3.Connection, AsyncSqlite]):
    async def acquire(self) -> ThreadedConnection[sqlite3.Connection, AsyncSqlite]:
        taken = await super().acquire()
        taken.__class__ = KeepsWhatWasInterrupted
        return taken


@pytest.mark.parametrize("kind", [ThreadedDatabase, KeepingDatabase])
async def test_a_driver_that_keeps_what_was_interrupted_in_a_savepoint_is_found(
    kind: type[ThreadedDatabase[sqlite3.Connection, AsyncSqlite]], sqlite_path: Path
) -> None:
    database = kind(SqliteDatabase(sqlite_path), AsyncSqlite)
    subject = Subject(
        database=database,
        execute=lambda handle, sql: handle.execute(sql),
        nested=lambda handle, sql, fails: handle.execute(sql),
        commit=lambda handle: handle.run(sqlite3.Connection.commit),
    )
    found = pytest.raises(NotConforming) if kind is KeepingDatabase else contextlib.nullcontext()
    with found:
        await check_cancellation(subject)
    await database.close()
