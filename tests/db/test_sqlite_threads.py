"""A thread that a handler has left behind, or whose request was cancelled, is never inside SQLite together with us.

sqlite3 crashes the process where that happens, so the scenes run in a process of their own. A statement stays inside
SQLite for as long as a function waits that it calls.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onefold._kernel.effects import BatchItem, Boundary, HandlerStatement, Statement
from onefold.db import _left_running
from onefold.db.sqlite import SqliteDatabase, _connection, async_sqlite
from onefold.db.sqlite._connection import SqliteConnection
from onefold.errors import StoreBusy, TransactionMisused
from tests.db.gates import Gate, wait_until_stuck
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
INSERT = "INSERT INTO thing VALUES (?)"


USES: dict[str, Callable[[sqlite3.Connection, Gate], Callable[[], object]]] = {
    "execute": lambda handle, gate: lambda: handle.execute("INSERT INTO thing VALUES (gate())"),
    "executemany": lambda handle, gate: (
        lambda: handle.executemany("INSERT INTO thing VALUES (gate(?))", ((number,) for number in range(3)))
    ),
    "fetchone": lambda handle, gate: handle.execute("SELECT 1 UNION ALL SELECT gate()").fetchone,
    "fetchmany": lambda handle, gate: lambda: handle.execute("SELECT 1 UNION ALL SELECT gate()").fetchmany(3),
    "fetchall": lambda handle, gate: handle.execute("SELECT 1 UNION ALL SELECT gate()").fetchall,
    "iteration": lambda handle, gate: lambda: list(handle.execute("SELECT 1 UNION ALL SELECT gate()")),
}


def end_by(items: Sequence[BatchItem]) -> Callable[[SqliteConnection], None]:
    def end(connection: SqliteConnection) -> None:
        connection.batch(items)
        connection.release()

    return end


ENDS: dict[str, Callable[[SqliteConnection], None]] = {
    "discard": SqliteConnection.discard,
    "release": SqliteConnection.release,
    "commit": end_by((COMMIT,)),
    "rollback": end_by((ROLLBACK,)),
    "answer": end_by((ROLLBACK, BEGIN, Statement(INSERT, (7,)), COMMIT)),
}


def opened(path: str) -> SqliteDatabase:
    database = SqliteDatabase(path)
    connection = database.acquire()
    connection.handle.execute("CREATE TABLE IF NOT EXISTS thing (id)")
    connection.batch((COMMIT,))
    connection.release()
    return database


def play(path: str, use: str, end: str) -> None:
    """One scene: the handler's thread is inside SQLite while its request ends."""
    database, gate = opened(path), Gate()
    connection = database.acquire()
    handle = connection.handle
    handle.create_function("gate", -1, gate)
    left = USES[use](handle, gate)
    with ThreadPoolExecutor() as pool:
        statement = pool.submit(left)
        assert gate.reached.wait(PATIENCE_S)
        gate.pass_once(lambda: ENDS[end](connection))
        error = statement.exception(PATIENCE_S)
    assert error is None or isinstance(error, (sqlite3.OperationalError, TransactionMisused)), repr(error)
    for late in (lambda: handle.execute("INSERT INTO thing VALUES (9)"), left, handle.commit):
        try:
            late()
        except TransactionMisused:
            continue
        raise AssertionError("a handle that was kept can still be used")
    handle.close()
    following = database.acquire()
    assert (9,) not in following.handle.execute("SELECT id FROM thing").fetchall()
    following.discard()
    database.close()


@pytest.mark.parametrize("end", ENDS)
def test_a_request_that_ends_while_a_thread_is_inside_sqlite_waits_for_it(end: str, tmp_path: Path) -> None:
    code = (
        "import faulthandler, sys, tests.db.test_sqlite_threads as scenes\n"
        "faulthandler.enable()\n"
        "for use in scenes.USES: print(use, flush=True); scenes.play(f'{sys.argv[1]}/{use}.db', use, sys.argv[2])"
    )
    ended = fork_server().run("-c", code, str(tmp_path), end, within_s=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture
def database(sqlite_path: Path) -> Iterator[SqliteDatabase]:
    database = opened(str(sqlite_path))
    yield database
    database.close()


def test_a_long_statement_is_interrupted_when_its_request_is_discarded(database: SqliteDatabase) -> None:
    connection = database.acquire()
    handle, started = connection.handle, threading.Event()
    handle.create_function("started", 0, started.set)
    endless = "WITH RECURSIVE n(i) AS (SELECT started() UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n"
    with ThreadPoolExecutor() as pool:
        statement = pool.submit(lambda: handle.execute(endless).fetchall())
        assert started.wait(PATIENCE_S)
        connection.discard()
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            statement.result(PATIENCE_S)


def test_a_thread_that_executes_on_and_on_does_not_keep_its_request_from_ending(database: SqliteDatabase) -> None:
    connection = database.acquire()
    handle, started = connection.handle, threading.Event()

    def insert_for_ever() -> None:
        while True:
            handle.execute(INSERT, (1,))
            started.set()

    with ThreadPoolExecutor() as pool:
        loop = pool.submit(insert_for_ever)
        assert started.wait(PATIENCE_S)
        connection.batch((COMMIT,))
        with pytest.raises(TransactionMisused, match="is over"):
            loop.result(PATIENCE_S)
    connection.release()


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_thread_that_waits_for_the_handle_while_its_request_ends_does_not_get_it(
    end: Callable[[SqliteConnection], None], database: SqliteDatabase
) -> None:
    connection = database.acquire()
    gate = Gate()
    connection.handle.create_function("gate", -1, gate)
    with ThreadPoolExecutor() as pool:
        inside = pool.submit(connection.handle.execute, "SELECT gate()")
        assert gate.reached.wait(PATIENCE_S)
        late = pool.submit(lambda: connection.handle.execute("INSERT INTO thing VALUES (1)"))
        wait_until_stuck(late)
        gate.pass_once(lambda: end(connection))
        inside.exception(PATIENCE_S)
        refused = late.exception(PATIENCE_S)
    following = database.acquire()
    [(count,)] = following.handle.execute("SELECT count(*) FROM thing WHERE id = 1").fetchall()
    following.batch((COMMIT,))
    following.release()
    # It may have had its turn in front of the end, which then counts. Afterwards it is told.
    assert count == (1 if refused is None and end is ENDS["commit"] else 0)
    assert refused is None or isinstance(refused, TransactionMisused), repr(refused)


def test_a_thread_that_comes_late_writes_nothing_into_the_next_request(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still between its look at whose connection it is and its statement, in a call that lies there."""
    insert = HandlerStatement("INSERT INTO thing VALUES (1)")
    stands, goes = threading.Event(), threading.Event()
    process = os.getpid()

    def stand() -> int:
        if threading.current_thread() is not threading.main_thread():
            stands.set()
            assert goes.wait(PATIENCE_S)
        return process

    monkeypatch.setattr(_connection, "getpid", stand)
    connection = database.acquire()
    connection.query(HandlerStatement("SELECT 1"))
    with ThreadPoolExecutor() as pool:
        late = pool.submit(connection.query, insert)
        assert stands.wait(PATIENCE_S)
        connection.batch((COMMIT,))
        connection.release()
        following = database.acquire()
        following.query(HandlerStatement("INSERT INTO thing VALUES (2)"))
        goes.set()
        refused = late.exception(PATIENCE_S)
    assert following.query(HandlerStatement("SELECT id FROM thing")).rows == [(2,)]
    following.batch((ROLLBACK,))
    following.release()
    assert isinstance(refused, TransactionMisused)


def test_a_function_that_does_not_return_costs_its_own_connection_only(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_left_running, "TIMES", 2)
    opened(str(sqlite_path)).close()
    database = SqliteDatabase(sqlite_path, busy_timeout_s=0.1)
    connection, gate = database.acquire(), Gate()
    handle = connection.handle
    handle.create_function("gate", -1, gate)
    with ThreadPoolExecutor() as pool:
        inside = pool.submit(handle.execute, "INSERT INTO thing VALUES (gate())")
        assert gate.reached.wait(PATIENCE_S)
        with pytest.raises(TransactionMisused, match="still uses"):
            connection.batch((COMMIT,))
        connection.discard()
        other = database.acquire()
        with pytest.raises(StoreBusy):  # SQLite does not take a write lock from a statement that runs
            _ = other.handle
        closing = next(thread for thread in threading.enumerate() if thread.name == "onefold-closing")
        gate.opened.set()
        inside.exception(PATIENCE_S)  # interrupted, unless there was nothing left to do
        closing.join(PATIENCE_S)
    assert other.handle.execute("SELECT count(*) FROM thing").fetchone() == (0,)
    other.discard()
    database.close()


def test_a_blob_that_is_kept_is_void(database: SqliteDatabase) -> None:
    connection = database.acquire()
    handle = connection.handle
    handle.execute("INSERT INTO thing VALUES (zeroblob(3))")
    with handle.blobopen("thing", "id", 1) as blob:
        blob.write(b"ab")
        blob[2] = ord("c")
        blob.seek(0)
        assert (blob.read(1), blob.tell(), len(blob)) == (b"a", 1, 3)
        assert bytes(blob[1:3]) == b"bc"
    kept = handle.blobopen("thing", "id", 1, readonly=True)  # SQLite does not commit while one is open for writing
    connection.batch((COMMIT,))
    with pytest.raises(TransactionMisused, match="is over"):
        kept.read()
    connection.release()
    following = database.acquire()
    assert following.handle.execute("SELECT id FROM thing").fetchall() == [(b"abc",)]
    following.discard()


@pytest.mark.parametrize("touched", [True, False])
@pytest.mark.parametrize("end", [COMMIT, ROLLBACK])
async def test_a_task_left_behind_is_refused_before_its_connection_is_gone(
    end: Boundary, touched: bool, sqlite_path: Path
) -> None:
    opened(str(sqlite_path)).close()
    database = async_sqlite(sqlite_path)
    connection = await database.acquire()
    handle = connection.handle
    if touched:
        await handle.execute(INSERT, (1,))
    await connection.batch((end,))
    late = asyncio.ensure_future(handle.execute(INSERT, (2,)))  # on the connection's thread before its release
    await asyncio.sleep(0)
    await connection.release()
    with pytest.raises(TransactionMisused, match="is over"):
        await late
    await database.close()
