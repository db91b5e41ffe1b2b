"""The locks beside a SQLite file: who is refused, when they are free again, and what a fork, a fault and a look do."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import multiprocessing
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from onefold._kernel.effects import Boundary, Statement
from onefold.db.sqlalchemy import SqlalchemyDatabase
from onefold.db.sqlite import SqliteDatabase, async_sqlite
from onefold.db.sqlite._locks import SUFFIX, lock_file
from onefold.errors import TransactionMisused

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")

#: Lock ids are 64 bits of a hash, with a sign.
NUMBERS = (0, 1, -1, 2**63 - 1, -(2**63), 6_018_373_285_120_474_113)

Opened = Callable[[Path], Any]


def over_sqlalchemy(path: Path) -> SqlalchemyDatabase:
    return SqlalchemyDatabase(create_engine(f"sqlite:///{path}", pool_size=2, max_overflow=0, pool_timeout=60))


@pytest.fixture(params=[SqliteDatabase, over_sqlalchemy], ids=["sqlite3", "sqlalchemy"])
def database(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[Any]:
    database = request.param(sqlite_path)
    yield database
    database.close()
    if isinstance(database, SqlalchemyDatabase):
        database._engine.dispose()


def locked(connection: Any, request: int, key: int) -> str | None:
    """What is refused, if anything is."""
    connection.fetch(Statement("SELECT onefold_lock(1, ?1, ?2)", (request, key)))
    [(refused,)] = connection.fetch(Statement("SELECT onefold_refused()"))
    return None if refused is None else str(refused)


def is_locked(connection: Any, key: int) -> bool:
    [(found,)] = connection.fetch(Statement("SELECT onefold_locked(?1)", (key,)))
    return bool(found)


# --- one process ----------------------------------------------------------------------------------------------


def test_the_first_lock_tells_the_same_request_and_the_second_another_one(database: Any) -> None:
    first, second = database.acquire(), database.acquire()
    assert locked(first, 1, 2) is None
    assert locked(second, 1, 2) == "same"
    assert locked(second, 3, 2) == "other"
    assert locked(second, 3, 4) is None
    assert locked(first, 1, 2) is None, "what a connection has it may ask for again"
    first.release()
    second.release()


def test_locks_are_had_in_their_order_up_to_the_first_that_is_refused(sqlite_path: Path) -> None:
    file, first, second = lock_file(str(sqlite_path)), object(), object()
    assert file.try_locks((5, 6), first) == 2
    assert file.try_locks((1, 2, 6, 3), second) == 2
    assert file.try_locks((2, 4, 1, 5), second) == 3, "what it has it may ask for again, in between"
    assert file.try_locks((3, 4), first) == 1
    file.unlock(first, [3, 4, 5, 6, 6])
    assert [number for number in range(1, 7) if file.is_locked(number)] == [1, 2, 4], "another's are left alone"
    file.unlock(second, [1, 2, 4])
    file.rest()


@pytest.mark.parametrize("leave", ["release", "discard"])
def test_a_connection_that_goes_frees_what_it_has_locked(database: Any, leave: str) -> None:
    first = database.acquire()
    assert locked(first, 1, 2) is None
    getattr(first, leave)()
    second = database.acquire()
    assert locked(second, 1, 2) is None
    second.release()


async def test_what_a_connection_has_locked_is_free_when_it_was_given_back_also_where_its_thread_must_close_it(
    sqlite_path: Path,
) -> None:
    """Its next claim, on another connection, would be refused by itself."""
    database = async_sqlite(sqlite_path)
    connection: Any = await database.acquire()
    await connection.fetch(Statement("SELECT onefold_lock(1, ?1, ?2)", (1, 2)))
    kept = connection._connection._file.connection  # as a traceback keeps it: it is not used again
    await connection.release()
    assert not lock_file(str(sqlite_path)).is_locked(2)
    del kept
    await database.close()


def test_the_end_of_a_transaction_frees_nothing(database: Any) -> None:
    """A stored refusal rolls back and then writes its record: nobody may come in between."""
    first, second = database.acquire(), database.acquire()
    assert locked(first, 1, 2) is None
    for end in (Boundary.ROLLBACK, Boundary.COMMIT):
        first.batch((Boundary.BEGIN, Statement("SELECT 1"), end))
        assert locked(second, 1, 2) == "same"
    first.release()
    second.release()


def test_looking_takes_nothing(database: Any) -> None:
    first, second = database.acquire(), database.acquire()
    assert not is_locked(second, 2)
    assert locked(first, 1, 2) is None
    assert is_locked(second, 2)
    first.release()
    assert not is_locked(second, 2)
    second.release()


@pytest.mark.parametrize("number", NUMBERS)
def test_every_number_can_be_locked_and_seen_from_outside(database: Any, sqlite_path: Path, number: int) -> None:
    first = database.acquire()
    assert locked(first, 5, number) is None
    assert elsewhere(sqlite_path, 5, number) == ("same", True)
    assert elsewhere(sqlite_path, 6, number) == ("other", True)
    first.release()
    assert elsewhere(sqlite_path, 5, number) == (None, True)


def test_a_lock_survives_that_another_database_on_the_file_is_closed(sqlite_path: Path) -> None:
    """Closing any descriptor of the file would drop all of the process's locks."""
    database, other = SqliteDatabase(sqlite_path), SqliteDatabase(sqlite_path)
    connection = database.acquire()
    assert locked(connection, 1, 2) is None
    other.acquire().release()
    other.close()
    assert elsewhere(sqlite_path, 1, 2)[0] == "same"
    connection.release()
    database.close()
    database = SqliteDatabase(sqlite_path)  # closed, and opened again when it is needed
    connection = database.acquire()
    assert locked(connection, 1, 2) is None
    assert elsewhere(sqlite_path, 1, 2)[0] == "same"
    connection.release()
    database.close()


def test_control_another_descriptor_that_is_closed_drops_the_locks(sqlite_path: Path) -> None:
    """What the test above would see, were there more than one descriptor."""
    database = SqliteDatabase(sqlite_path)
    connection = database.acquire()
    assert locked(connection, 1, 2) is None
    (sqlite_path.parent / (sqlite_path.name + SUFFIX)).read_bytes()
    assert elsewhere(sqlite_path, 1, 2)[0] is None
    connection.release()
    database.close()


def test_a_link_to_the_file_leads_to_the_same_locks(sqlite_path: Path, tmp_path: Path) -> None:
    database = SqliteDatabase(sqlite_path)
    connection = database.acquire()
    link = tmp_path / "link.db"
    link.symlink_to(sqlite_path)
    by_link = SqliteDatabase(link)
    other = by_link.acquire()
    assert locked(connection, 1, 2) is None
    assert locked(other, 1, 2) == "same"
    other.release()
    connection.release()
    by_link.close()
    database.close()


# --- other processes ------------------------------------------------------------------------------------------


@contextmanager
def child_of_this_process(work: Callable[[], object]) -> Iterator[Any]:
    """A fork that does some work, and the parent's end of a pipe on which it says what came of it."""
    here, there = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        try:
            there.send(work())
        except BaseException as error:
            there.send(repr(error))
        finally:
            os._exit(0)
    try:
        assert here.poll(60), "the child did not come to its end"
        yield here.recv()
    finally:
        os.waitpid(pid, 0)


def elsewhere(path: Path, request: int, key: int) -> tuple[str | None, bool]:
    """What another process is refused, and whether it sees the key locked (by itself, if need be)."""

    def ask() -> object:
        connection = SqliteDatabase(path).acquire()
        return locked(connection, request, key), is_locked(connection, key)

    with child_of_this_process(ask) as seen:
        refused, found = seen
        return refused, found


def test_a_fork_gets_connections_and_locks_of_its_own_and_takes_none_of_its_parents(sqlite_path: Path) -> None:
    database = SqliteDatabase(sqlite_path)
    database.acquire().release()  # one is idle, open in the parent
    connection = database.acquire()
    connection.batch((Boundary.BEGIN, Statement("CREATE TABLE thing (id INTEGER)"), Boundary.COMMIT))
    assert locked(connection, 1, 2) is None

    def in_child() -> object:
        own = database.acquire()
        refused = locked(own, 1, 2), locked(own, 3, 2), locked(own, 3, 4)
        own.batch((Boundary.BEGIN, Statement("INSERT INTO thing VALUES (1)"), Boundary.COMMIT))
        own.release()
        database.close()
        return refused

    with child_of_this_process(in_child) as seen:
        assert seen == ("same", "other", None)
    assert elsewhere(sqlite_path, 1, 2)[0] == "same", "the child's end cost the parent its locks"
    assert connection.fetch(Statement("SELECT id FROM thing")) == [(1,)]
    connection.batch((Boundary.BEGIN, Statement("INSERT INTO thing VALUES (2)"), Boundary.COMMIT))
    connection.release()
    database.close()


def test_a_connection_that_came_by_a_fork_is_refused(sqlite_path: Path) -> None:
    database = SqliteDatabase(sqlite_path)
    connection = database.acquire()
    _ = connection.handle  # the write lock is held, in the parent

    def in_child() -> object:
        refused = []
        for verb in (lambda: connection.handle, lambda: connection.fetch(Statement("SELECT 1"))):
            with pytest.raises(TransactionMisused, match="by a fork"):
                verb()
            refused.append(True)
        connection.discard()
        own = database.acquire()
        own.release()  # and nobody waits for what the parent holds
        return refused

    with child_of_this_process(in_child) as seen:
        assert seen == [True, True]
    connection.batch((Statement("CREATE TABLE thing (id INTEGER)"), Boundary.COMMIT))
    connection.release()
    database.close()


def test_an_application_that_was_used_before_the_fork_works_in_its_children(sqlite_path: Path) -> None:
    """gunicorn --preload: the threads of the parent are not there in the child."""
    database = async_sqlite(sqlite_path)

    async def write(number: int) -> int:
        connection = await database.acquire()
        await connection.handle.execute("CREATE TABLE IF NOT EXISTS thing (id INTEGER)")
        await connection.handle.execute("INSERT INTO thing VALUES (?)", (number,))
        await connection.batch((Boundary.COMMIT,))
        [(count,)] = await connection.fetch(Statement("SELECT count(*) FROM thing"))
        await connection.release()
        return int(count)

    assert asyncio.run(write(1)) == 1
    with child_of_this_process(lambda: asyncio.run(write(2))) as seen:
        assert seen == 2
    assert asyncio.run(write(3)) == 3
    asyncio.run(database.close())


# --- files ----------------------------------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_the_files_are_for_their_owner_only(sqlite_path: Path) -> None:
    database = SqliteDatabase(sqlite_path)
    connection = database.acquire()
    connection.batch((Boundary.BEGIN, Statement("CREATE TABLE thing (id INTEGER)"), Boundary.COMMIT))
    assert locked(connection, 1, 2) is None
    files = sorted(sqlite_path.parent.iterdir())
    assert [file.name.removeprefix(sqlite_path.name) for file in files] == ["", SUFFIX, "-shm", "-wal"]
    assert {mode_of(file) for file in files} == {0o600}
    connection.release()
    database.close()


@pytest.mark.usefixtures("open_umask")
def test_a_file_that_is_there_is_left_as_it_is_and_shared_with_whom_it_is_shared(sqlite_path: Path) -> None:
    sqlite_path.touch()
    sqlite_path.chmod(0o660)
    database = SqliteDatabase(sqlite_path)
    connection = database.acquire()
    assert locked(connection, 1, 2) is None
    assert mode_of(sqlite_path) == 0o660
    assert mode_of(Path(f"{sqlite_path}{SUFFIX}")) == 0o660
    connection.release()
    database.close()


# --- no locks to be had ---------------------------------------------------------------------------------------


def test_a_file_system_without_locks_keeps_this_process_s_requests_apart_and_says_so(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    database = SqliteDatabase(sqlite_path)
    first, second = database.acquire(), database.acquire()
    with caplog.at_level(logging.WARNING, logger="onefold"):
        assert locked(first, 1, 2) is None
        assert locked(second, 1, 2) == "same"
        first.release()
        assert locked(second, 1, 2) is None
    assert caplog.text.count("No locks available") == 1
    assert f"{sqlite_path.name}{SUFFIX} cannot be locked" in caplog.text
    second.release()
    database.close()


def test_a_lock_file_that_cannot_be_opened_is_no_outage(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = os.open

    def refuse(path: Any, *how: Any) -> int:
        if str(path).endswith(SUFFIX):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *how)

    monkeypatch.setattr(os, "open", refuse)
    database = SqliteDatabase(sqlite_path)
    connection = database.acquire()
    with caplog.at_level(logging.WARNING, logger="onefold"):
        assert locked(connection, 1, 2) is None
        assert not is_locked(connection, 99)
    assert "Permission denied" in caplog.text
    monkeypatch.undo()
    connection.release()
    database.close()


def test_nothing_stays_open_when_the_database_is_closed(sqlite_path: Path) -> None:
    database = SqliteDatabase(sqlite_path)
    connection = database.acquire()
    assert locked(connection, 1, 2) is None
    assert lock_file(str(sqlite_path.resolve()))._descriptor is not None
    connection.release()
    database.close()
    assert lock_file(str(sqlite_path.resolve()))._descriptor is None


def test_a_release_never_frees_the_locks_of_the_next_request(sqlite_path: Path) -> None:
    """The link is another request's as soon as it is among the idle ones."""
    database = SqliteDatabase(sqlite_path)
    first = database.acquire()
    idle = first._shared.idle
    taken: list[Any] = []

    class Eager(list[Any]):
        """A request that is quick enough to take a link the moment it is there."""

        def append(self, link: Any) -> None:
            super().append(link)
            taken.append(database.acquire())
            taken[0].fetch(Statement("SELECT onefold_lock(?1, ?2)", (1, 2)))

    first._shared.idle = Eager(idle)
    first.release()
    other = database.acquire()
    [(locked,)] = other.fetch(Statement("SELECT onefold_locked(?1)", (2,)))
    assert locked
    other.discard()
    taken[0].discard()
    database.close()
