"""A thread that a handler has left behind, or whose request was cancelled, is inside the driver when the request's
connection is thrown away: the process survives it, and nobody hangs.

libpq and sqlite3 crash the process where a connection is closed under a thread, so the scenes run in a process of their
own. See `test_sqlite_threads` for our own driver of SQLite.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine, exc, text

from onefold._kernel.effects import Boundary, HandlerStatement, Statement
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlalchemy import SqlalchemyDatabase
from onefold.errors import TransactionMisused
from tests.db.gates import Gate, wait_until_stuck
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

ROUNDS = 5
BLOCKED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
LOCK = "SELECT pg_advisory_xact_lock(1)"


def play_on_postgres(database: Any, dsn: str, execute: Callable[[Any], object]) -> None:
    """The handler's thread waits for the server's answer."""
    with ExitStack() as stack:
        holder = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        pool = stack.enter_context(ThreadPoolExecutor())
        holder.execute("SELECT pg_advisory_lock(1)")
        connection = database.acquire()
        connection.batch((Boundary.BEGIN,))
        handle = connection.handle
        left = pool.submit(execute, handle)
        deadline = time.monotonic() + PATIENCE_S
        while holder.execute(BLOCKED).fetchone() != (1,):
            assert time.monotonic() < deadline, "the statement does not reach the server"
        pool.submit(connection.discard).result(PATIENCE_S)
        # Descriptors that were closed under the thread are given to these, and have something to be read.
        for _ in range(3):
            stack.enter_context(closing(psycopg.connect(dsn))).execute("SELECT 1")
        holder.execute("SELECT pg_advisory_unlock(1)")
        error = left.exception(PATIENCE_S)
        assert isinstance(error, (psycopg.OperationalError, exc.OperationalError)), repr(error)
        refused = pool.submit(execute, handle).exception(PATIENCE_S)
        assert isinstance(refused, (TransactionMisused, exc.SQLAlchemyError)), repr(refused)
    following = database.acquire()  # its place in the pool is free
    following.batch((Boundary.BEGIN, Boundary.COMMIT))
    following.release()


def play_psycopg(dsn: str, path: str) -> None:
    database = PsycopgDatabase(dsn)
    for _ in range(ROUNDS):
        play_on_postgres(database, dsn, lambda handle: handle.execute(LOCK))
    database.close()


def play_sqlalchemy_psycopg(dsn: str, path: str) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"), pool_size=1, max_overflow=0)
    for _ in range(ROUNDS):
        play_on_postgres(SqlalchemyDatabase(engine), dsn, lambda handle: handle.execute(text(LOCK)))
    engine.dispose()


STATEMENTS: dict[str, Callable[[Any], object]] = {
    "write": lambda handle: handle.execute(text("INSERT INTO thing VALUES (gate())")),
    "read": lambda handle: handle.execute(text("SELECT 1 UNION ALL SELECT gate()")).fetchall(),
    "rows": lambda handle: list(handle.execute(text("SELECT 1 UNION ALL SELECT gate()"))),
    "returning": lambda handle: handle.execute(text("INSERT INTO thing VALUES (gate()) RETURNING id")).fetchall(),
}


def play_sqlalchemy_sqlite(dsn: str, path: str) -> None:
    engine = create_engine(f"sqlite:///{path}", pool_size=1, max_overflow=0)
    with engine.begin() as own:
        own.execute(text("CREATE TABLE thing (id)"))
    database = SqlalchemyDatabase(engine)
    for execute in STATEMENTS.values():
        connection, gate = database.acquire(), Gate()
        connection.batch((Boundary.BEGIN,))
        handle = connection.handle
        driver: Any = handle.connection.driver_connection
        driver.create_function("gate", 0, gate)
        with ThreadPoolExecutor() as pool:
            left = pool.submit(execute, handle)
            assert gate.reached.wait(PATIENCE_S)
            gate.pass_once(connection.discard)
            error = left.exception(PATIENCE_S)
        # Interrupted, unless there was nothing left to do.
        assert error is None or isinstance(error, (exc.OperationalError, TransactionMisused)), repr(error)
        following = database.acquire()
        assert following.handle.execute(text("SELECT count(*) FROM thing")).scalar() == 0
        following.batch((Boundary.COMMIT,))
        following.release()
    engine.dispose()


SCENES = {
    "psycopg": play_psycopg,
    "sqlalchemy-psycopg": play_sqlalchemy_psycopg,
    "sqlalchemy-sqlite": play_sqlalchemy_sqlite,
}


@pytest.mark.parametrize("scene", SCENES)
def test_a_connection_is_thrown_away_while_a_thread_is_inside(scene: str, postgres_dsn: str, tmp_path: Path) -> None:
    code = (
        "import faulthandler, sys, tests.db.test_left_threads as scenes\n"
        "faulthandler.enable()\n"
        "scenes.SCENES[sys.argv[1]](*sys.argv[2:])"
    )
    ended = fork_server().run("-c", code, scene, postgres_dsn, str(tmp_path / "left.db"), within_s=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_stream_that_is_not_read_on_holds_up_neither_the_end_nor_the_closing(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.db._psycopg_handle.END_S", 0.1)
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    connection.batch((Boundary.BEGIN,))
    rows = connection.handle.cursor().stream("SELECT generate_series(1, 9)")  # it holds psycopg's lock in between
    assert next(rows) == (1,)
    with pytest.raises(TransactionMisused, match="still uses"):
        connection.fetch(Statement("SELECT 1"))
    with pytest.raises(TransactionMisused, match="still uses"):
        connection.batch((Boundary.ROLLBACK,))
    connection.discard()
    assert connection._connection.closed
    with pytest.raises(TransactionMisused, match="is over"):
        next(rows)
    database.close()


@pytest.mark.parametrize("proof", [Boundary.RELEASE_SAVEPOINT, Boundary.ROLLBACK_TO_SAVEPOINT, Statement("SELECT 1")])
def test_psycopg_s_connection_is_void_from_the_handler_s_end_on(proof: Any, postgres_dsn: str) -> None:
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    connection.batch((Boundary.BEGIN, Boundary.SAVEPOINT))
    handle = connection.handle
    connection.batch((proof,))  # a request that fails: the rollback comes after it
    for sql in ("INSERT INTO thing VALUES (1)", "COMMIT"):
        with pytest.raises(TransactionMisused, match="is over"):
            handle.execute(sql)
    connection.batch((Boundary.ROLLBACK,))
    connection.release()
    database.close()


def test_a_natural_write_that_comes_late_is_in_no_transaction_of_psycopg_s(postgres_dsn: str) -> None:
    """Neither beside the one that has ended, which would be committed by itself, nor in the next request's."""
    insert = HandlerStatement("INSERT INTO thing VALUES (1) RETURNING id")
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, open=True) as pool:
        database = PsycopgDatabase(pool)
        connection = database.acquire()
        connection.batch((Boundary.BEGIN,))
        connection.handle.execute("CREATE TABLE thing (id int)")
        connection.batch((Boundary.COMMIT,))
        with pytest.raises(TransactionMisused, match="is over"):
            connection.query(insert)
        connection.release()
        following = database.acquire()
        following.batch((Boundary.BEGIN,))
        with pytest.raises(TransactionMisused, match="is over"):
            connection.query(insert)
        assert following.query(HandlerStatement("SELECT id FROM thing")).rows == []
        following.batch((Boundary.COMMIT,))
        following.batch((Boundary.BEGIN,))  # the same connection, for another transaction
        assert following.query(insert).rows == [(1,)]
        following.discard()
        database.close()


def test_a_request_that_fails_waits_for_a_statement_of_psycopg_s_only_so_long(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("onefold.db._psycopg_handle.END_S", 0.1)
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    connection.batch((Boundary.BEGIN, Boundary.SAVEPOINT))
    handle = connection.handle
    with ThreadPoolExecutor() as pool:
        left = pool.submit(handle.execute, "SELECT pg_sleep(3600)")
        deadline = time.monotonic() + PATIENCE_S
        while not handle.lock.locked():
            assert time.monotonic() < deadline
        for step in (Boundary.RELEASE_SAVEPOINT, Boundary.ROLLBACK):
            with pytest.raises(TransactionMisused, match="still uses"):
                connection.batch((step,))
        connection.discard()
        assert isinstance(left.exception(PATIENCE_S), (psycopg.OperationalError, TransactionMisused))
    assert caplog.text.count("still uses") == caplog.text.count("0.1 s after the handler's end") == 1
    database.close()


def test_a_cursor_is_not_closed_beside_its_connection(tmp_path: Path) -> None:
    """A thread that was interrupted as it read rows closes its cursor afterwards, when it seems to have left."""
    engine = create_engine(f"sqlite:///{tmp_path / 'cursors.db'}", pool_size=1, max_overflow=0)
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((Boundary.BEGIN,))
    result: Any = connection.handle.execute(text("SELECT 1 UNION ALL SELECT 2"))
    rows, closes = result.cursor, SlowCursor()
    rows._cursor = closes
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(rows.close)
        assert closes.entered.wait(PATIENCE_S)
        discarding = pool.submit(connection.discard)
        wait_until_stuck(discarding)
        has_waited = not discarding.done()
        closes.left.set()
        closing.result(PATIENCE_S)
        discarding.result(PATIENCE_S)
    assert has_waited, "the connection was closed while a thread closed a cursor of it"
    closes.entered.clear()
    rows.close()
    assert not closes.entered.is_set(), "a cursor of a connection that is closed was touched"
    engine.dispose()


class SlowCursor:
    """Its close waits in the driver."""

    def __init__(self) -> None:
        self.entered, self.left = threading.Event(), threading.Event()

    def close(self) -> None:
        self.entered.set()
        assert self.left.wait(PATIENCE_S)
