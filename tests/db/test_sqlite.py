"""sqlite3: who holds the write lock and when, what a handler may do with its transaction, how commits are flushed."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from onefold import AsyncOnefold
from onefold._kernel.effects import Boundary, Statement
from onefold.db.sqlalchemy import SqlalchemyDatabase
from onefold.db.sqlite import SqliteDatabase, async_sqlite
from onefold.db.sqlite._connection import SqliteConnection
from onefold.errors import (
    ConfigurationError,
    StatementRefused,
    StoreBusy,
    StoreReadOnly,
    StoreUnavailable,
    TransactionEnded,
    TransactionMisused,
)
from tests.support.patience import PATIENCE_S

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
INSERT = Statement("INSERT INTO thing (id) VALUES (1)")


@pytest.fixture
def database(sqlite_path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(sqlite_path, busy_timeout_s=0.05)
    connection = database.acquire()
    connection.batch((Statement("CREATE TABLE thing (id INTEGER PRIMARY KEY)"),))
    connection.release()
    yield database
    database.close()


@pytest.fixture
def connection(database: SqliteDatabase) -> Iterator[SqliteConnection]:
    connection = database.acquire()
    yield connection
    connection.discard()


def committed(database: SqliteDatabase) -> list[int]:
    reader = database.acquire()
    rows = reader.fetch(Statement("SELECT id FROM thing ORDER BY id"))
    reader.release()
    return [id_ for (id_,) in rows]


def is_locked(database: SqliteDatabase) -> bool:
    """Whether another process could not write now."""
    stranger = sqlite3.connect(database.path, timeout=0, isolation_level=None)
    try:
        stranger.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    finally:
        stranger.close()
    return False


# --- what a handler may do ------------------------------------------------------------------------------------


def with_block(handle: sqlite3.Connection) -> None:
    with handle:
        handle.execute("INSERT INTO thing (id) VALUES (2)")


SPELLINGS: dict[str, Callable[[sqlite3.Connection], object]] = {
    "commit()": lambda handle: handle.commit(),
    "rollback()": lambda handle: handle.rollback(),
    "COMMIT": lambda handle: handle.execute("COMMIT"),
    "commit": lambda handle: handle.execute("commit"),
    "END": lambda handle: handle.execute(" end transaction;"),
    "ROLLBACK": lambda handle: handle.execute("ROLLBACK"),
    "rollback": lambda handle: handle.execute("rollback"),
    "in a comment": lambda handle: handle.execute("/* nothing */ COMMIT -- at all"),
    "cursor": lambda handle: handle.cursor().execute("COMMIT"),
    "executescript": lambda handle: handle.executescript("INSERT INTO thing (id) VALUES (2)"),
    "with": with_block,
    "isolation_level": lambda handle: setattr(handle, "isolation_level", None),
    "BEGIN": lambda handle: handle.execute("BEGIN"),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_a_handler_cannot_end_the_transaction_however_it_spells_it(
    spelling: Callable[[sqlite3.Connection], object], database: SqliteDatabase, connection: SqliteConnection
) -> None:
    connection.batch((BEGIN, Statement("SELECT 1"), COMMIT))  # compiled by us, and perhaps remembered by sqlite3
    connection.batch((BEGIN, ROLLBACK))
    handle = connection.handle
    handle.execute("INSERT INTO thing (id) VALUES (1)")
    with pytest.raises(TransactionMisused, match="onefold commits everything together") as caught:
        spelling(handle)
    assert str(caught.value.__cause__) == "not authorized"
    assert handle.in_transaction
    assert committed(database) == []
    with pytest.raises(TransactionMisused, match="remove the call"):
        connection.batch((BEGIN, COMMIT))


def test_a_handler_cannot_end_the_transaction_between_two_of_our_statements(
    database: SqliteDatabase, connection: SqliteConnection
) -> None:
    handle = connection.handle
    connection.batch((Boundary.SAVEPOINT,))
    handle.execute("INSERT INTO thing (id) VALUES (1)")
    with pytest.raises(TransactionMisused):
        handle.commit()
    assert committed(database) == []


def test_what_a_handler_tried_is_forgiven_when_everything_is_rolled_back(
    database: SqliteDatabase, connection: SqliteConnection
) -> None:
    connection.handle.execute("INSERT INTO thing (id) VALUES (1)")
    with pytest.raises(TransactionMisused):
        connection.handle.commit()
    connection.batch((ROLLBACK, BEGIN, Statement("INSERT INTO thing (id) VALUES (2)"), COMMIT))
    assert committed(database) == [2]


def test_a_handler_may_use_savepoints(database: SqliteDatabase, connection: SqliteConnection) -> None:
    handle = connection.handle
    handle.execute("SAVEPOINT mine")
    handle.execute("INSERT INTO thing (id) VALUES (1)")
    handle.execute("ROLLBACK TO mine")
    handle.execute("INSERT INTO thing (id) VALUES (2)")
    handle.execute("RELEASE mine")
    connection.batch((BEGIN, COMMIT))
    assert committed(database) == [2]


def test_a_transaction_that_sqlite_rolled_back_by_itself_is_not_mistaken_for_open(
    database: SqliteDatabase, connection: SqliteConnection
) -> None:
    handle = connection.handle
    handle.execute("INSERT INTO thing (id) VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        handle.execute("INSERT OR ROLLBACK INTO thing (id) VALUES (1)")
    with pytest.raises(TransactionEnded):
        connection.batch((BEGIN, Statement("INSERT INTO thing (id) VALUES (2)"), COMMIT))
    assert committed(database) == []


def test_a_handler_cannot_begin_again_what_sqlite_rolled_back(connection: SqliteConnection) -> None:
    handle = connection.handle
    handle.execute("INSERT INTO thing (id) VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        handle.execute("INSERT OR ROLLBACK INTO thing (id) VALUES (1)")
    for begin in ("BEGIN", "BEGIN IMMEDIATE", "begin exclusive"):
        with pytest.raises(TransactionEnded):
            handle.execute(begin)
        with pytest.raises(TransactionMisused, match="tried to BEGIN"):
            sqlite3.Cursor(handle).execute(begin)


def test_a_handler_that_closes_the_connection_is_found_out_and_locks_nobody_out(
    database: SqliteDatabase,
) -> None:
    connection = database.acquire()
    connection.handle.close()
    with pytest.raises(TransactionEnded):
        connection.batch((BEGIN, INSERT, COMMIT))
    connection.release()
    following = database.acquire()
    following.batch((BEGIN, INSERT, COMMIT))
    following.release()
    assert committed(database) == [1]


def test_what_a_handler_sets_on_the_connection_is_not_there_for_the_next(database: SqliteDatabase) -> None:
    connection = database.acquire()
    handle = connection.handle
    handle.row_factory, handle.text_factory = sqlite3.Row, bytes
    assert type(connection.fetch(Statement("SELECT 1"))[0]) is tuple
    connection.batch((ROLLBACK,))
    same = id(handle)
    del handle
    connection.release()
    following = database.acquire()
    assert id(following.handle) == same
    assert following.handle.execute("SELECT 'text'").fetchone() == ("text",)
    following.discard()


def held_as_it_is(handle: sqlite3.Connection) -> object:
    return handle


KEPT: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "connection": held_as_it_is,
    "cursor": lambda handle: handle.cursor(),
    "method": lambda handle: handle.execute,
    "rows": lambda handle: handle.execute("SELECT 1 UNION SELECT 2"),
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_what_a_handler_keeps_of_the_connection_is_void_and_nobody_gets_it_again(
    kept: Callable[[sqlite3.Connection], Any], database: SqliteDatabase
) -> None:
    connection = database.acquire()
    left = kept(connection.handle)
    connection.batch((BEGIN, COMMIT))
    assert not connection.release_at_rest()
    connection.release()
    following = database.acquire()
    _ = following.handle
    use = left if callable(left) else left.execute
    with pytest.raises(TransactionMisused, match="is over"):
        use("INSERT INTO thing (id) VALUES (1)")
    following.batch((BEGIN, COMMIT))
    following.release()
    assert committed(database) == []


def test_a_connection_of_which_nothing_is_kept_is_used_again(database: SqliteDatabase) -> None:
    links = []
    for id_ in range(5):
        connection = database.acquire()
        links.append(connection._file)
        cursor = connection.handle.execute(f"INSERT INTO thing (id) VALUES ({id_})")
        assert cursor.rowcount == 1
        del cursor
        connection.batch((BEGIN, COMMIT))
        connection.release()
    assert len(set(links)) == 1


def test_a_request_that_is_over_cannot_touch_its_connection_again(database: SqliteDatabase) -> None:
    connection = database.acquire()
    connection.release()
    with pytest.raises(TransactionMisused, match="is over"):
        _ = connection.handle
    with pytest.raises(TransactionMisused, match="is over"):
        connection.batch((BEGIN,))
    connection.discard()  # harmless
    assert not is_locked(database)


async def test_a_task_left_behind_cannot_write_into_another_request(sqlite_path: Path) -> None:
    database = async_sqlite(sqlite_path)
    connection = await database.acquire()
    handle = connection.handle
    await handle.execute("CREATE TABLE thing (id INTEGER PRIMARY KEY)")
    await connection.batch((COMMIT,))
    await connection.release()
    with pytest.raises(TransactionMisused, match="is over"):
        await handle.execute("INSERT INTO thing (id) VALUES (1)")
    await database.close()


# --- locks ----------------------------------------------------------------------------------------------------


async def test_a_function_that_finds_nothing_does_not_keep_the_write_lock(sqlite_path: Path) -> None:
    """No future takes a StopIteration: its task waited for ever, and everybody else for the lock."""
    once = AsyncOnefold(sqlite_path)
    await once.migrate()

    async def find_nothing() -> None:
        async with once.transaction() as tx:
            await tx.connection.execute("CREATE TABLE thing (id INTEGER PRIMARY KEY)")
            await tx.connection.run(lambda connection: next(connection.execute("SELECT id FROM thing")))

    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await find_nothing()
        async with once.transaction() as tx:
            await tx.connection.execute("CREATE TABLE thing (id INTEGER PRIMARY KEY)")
    await once.close()


def test_the_write_lock_is_taken_at_the_first_touch_and_no_sooner(database: SqliteDatabase) -> None:
    connection = database.acquire()
    connection.fetch(Statement("SELECT id FROM thing"))
    assert not is_locked(database)
    handle = connection.handle
    assert is_locked(database)
    handle.execute("SELECT 1")
    connection.batch((BEGIN, COMMIT))
    assert not is_locked(database)
    connection.release()


def test_a_savepoint_is_a_first_touch_too(database: SqliteDatabase, connection: SqliteConnection) -> None:
    connection.batch((Boundary.SAVEPOINT,))
    assert is_locked(database)
    connection.handle.execute("INSERT INTO thing (id) VALUES (1)")
    connection.batch((Boundary.ROLLBACK_TO_SAVEPOINT, Boundary.RELEASE_SAVEPOINT, COMMIT))
    assert committed(database) == []


def test_readers_are_served_while_a_handler_writes(database: SqliteDatabase, connection: SqliteConnection) -> None:
    connection.handle.execute("INSERT INTO thing (id) VALUES (1)")
    assert committed(database) == []


def test_a_lock_that_is_not_granted_in_time_is_said_to_be_busy(
    database: SqliteDatabase, connection: SqliteConnection
) -> None:
    _ = connection.handle
    waiting = database.acquire()
    with pytest.raises(StoreBusy, match="this process"):
        waiting.batch((BEGIN,))
    connection.batch((ROLLBACK,))

    stranger = sqlite3.connect(database.path, isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="database is locked"):
        _ = waiting.handle
    stranger.execute("ROLLBACK")
    stranger.close()
    waiting.batch((BEGIN, INSERT, COMMIT))  # and the failures left no lock of their own
    waiting.release()


def test_a_cursor_that_someone_still_holds_does_not_keep_a_discarded_transaction_alive(
    database: SqliteDatabase,
) -> None:
    connection = database.acquire()
    handle = connection.handle
    handle.execute("INSERT INTO thing (id) VALUES (1), (2), (3)")
    cursor = handle.execute("SELECT id FROM thing")
    assert cursor.fetchone() == (1,)
    connection.discard()
    assert not is_locked(database)
    assert committed(database) == []
    assert cursor.connection is handle  # held until here


def test_writers_of_this_process_wait_for_each_other_without_polling(sqlite_path: Path) -> None:
    database = SqliteDatabase(sqlite_path, busy_timeout_s=30)
    first = database.acquire()
    first.batch((Statement("CREATE TABLE thing (id INTEGER PRIMARY KEY)"),))
    _ = first.handle

    def write(id_: int) -> None:
        writer = database.acquire()
        writer.batch((BEGIN, Statement("INSERT INTO thing (id) VALUES (?1)", (id_,)), COMMIT))
        writer.release()

    writers = [threading.Thread(target=write, args=(id_,)) for id_ in range(10)]
    for writer in writers:
        writer.start()
    first.batch((COMMIT,))
    for writer in writers:
        writer.join()
    first.release()
    assert committed(database) == list(range(10))
    database.close()


# --- files ----------------------------------------------------------------------------------------------------


def test_a_light_transaction_spares_the_flush_and_a_durable_one_does_not(connection: SqliteConnection) -> None:
    """2 is FULL: a commit is flushed to the disk. 1 is NORMAL: it is not, but survives a crash of the process."""
    flush = Statement("PRAGMA synchronous")
    for begin, level in (
        (Boundary.BEGIN_LIGHT, 1),
        (Boundary.BEGIN, 2),
        (Boundary.BEGIN_LIGHT, 1),
        (Boundary.BEGIN_LIGHT, 1),
    ):
        connection.batch((begin,))
        assert connection.fetch(flush) == [(level,)]
        connection.batch((COMMIT,))
    assert connection.handle.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.fetch(Statement("PRAGMA journal_mode")) == [("wal",)]


def test_a_light_statement_is_a_transaction_of_its_own(connection: SqliteConnection) -> None:
    level = Statement("CREATE TABLE level AS SELECT synchronous FROM pragma_synchronous")
    connection.batch((Boundary.BEGIN_LIGHT, level, COMMIT))
    assert connection.fetch(Statement("SELECT synchronous FROM level")) == [(1,)]
    with pytest.raises(StatementRefused, match="already exists"):
        connection.batch((Boundary.BEGIN_LIGHT, level, COMMIT))
    connection.batch((BEGIN, INSERT, COMMIT))  # nothing is left behind, not even the lock
    assert connection.release_at_rest()


def over_sqlalchemy(path: Path) -> SqlalchemyDatabase:
    return SqlalchemyDatabase(create_engine(f"sqlite:///{path}"))


@pytest.mark.parametrize("made", [SqliteDatabase, over_sqlalchemy])
def test_an_sqlite_that_is_too_old_is_refused_by_name(
    made: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sqlite3, sqlite3.dbapi2):  # the latter is SQLAlchemy's
        monkeypatch.setattr(module, "sqlite_version_info", (3, 34, 1))
        monkeypatch.setattr(module, "sqlite_version", "3.34.1")
    with pytest.raises(ConfigurationError, match=r"SQLite 3\.34\.1; onefold needs 3\.35"):
        made(tmp_path / "onefold.db")


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_database_in_memory_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="path of a file"):
        SqliteDatabase(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="not-there"):
        SqliteDatabase(tmp_path / "not-there" / "onefold.db").acquire()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("Not a database, but long enough to be looked at as if it were one. " * 9)
    with pytest.raises(StoreUnavailable, match=r"notes\.db.*not a database"):
        SqliteDatabase(tmp_path / "notes.db").acquire()


def test_a_database_that_cannot_be_written_is_said_to_be_read_only(connection: SqliteConnection) -> None:
    connection.fetch(Statement("PRAGMA query_only = ON"))
    with pytest.raises(StoreReadOnly):
        connection.batch((INSERT,))


@pytest.mark.parametrize("name", ["onefold.db", "file:onefold.db"])
def test_a_relative_path_names_the_same_file_wherever_the_process_goes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon changes its directory. Each connection that was opened after that found a file of its own there, with
    none of the keys: a retry happened twice, and what it wrote was in neither backup nor report."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    database = SqliteDatabase(name)
    first = database.acquire()
    first.batch((Statement("CREATE TABLE thing (id INTEGER PRIMARY KEY)"), INSERT))
    monkeypatch.chdir(tmp_path / "elsewhere")
    second = database.acquire()
    assert second.fetch(Statement("SELECT id FROM thing")) == [(1,)]
    second.release()
    first.release()
    database.close()
    assert list(Path().iterdir()) == []
    assert (tmp_path / name).stat().st_size


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_path_names_the_file_that_the_operating_system_finds(
    is_relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`current/..` is not the directory that `current` is in where that is a link to a release: cut out of the text, it
    named another file, without the keys, and what had happened happened again."""
    for folder in ("releases/42", "shared", "releases/shared"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/42")
    monkeypatch.chdir(tmp_path)
    name = "current/../shared/app.db"
    database = SqliteDatabase(name if is_relative else tmp_path / name)
    monkeypatch.chdir(tmp_path / "shared")
    database.acquire().release()
    database.close()
    assert list(tmp_path.rglob("app.db")) == [tmp_path / "releases/shared/app.db"]


def test_the_directory_that_is_missing_is_named_as_it_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "releases/42").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    (tmp_path / "current").symlink_to("releases/42")
    with pytest.raises(StoreUnavailable, match=r"there is no directory '.*/current/\.\./shared'"):
        SqliteDatabase(tmp_path / "current/../shared/app.db").acquire()


def test_a_whole_path_is_used_also_where_the_working_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "releases/41").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "releases/41")
    (tmp_path / "releases/41").rmdir()
    database = SqliteDatabase(tmp_path / "app.db")
    database.acquire().release()
    database.close()
    with pytest.raises(StoreUnavailable, match="there is no directory"):
        SqliteDatabase(tmp_path / "no/app.db").acquire()
