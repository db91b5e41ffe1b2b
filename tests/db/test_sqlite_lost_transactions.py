"""SQLite may roll a transaction back by itself: nothing that the handler does after that is kept, nor is its answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, abort
from sqlalchemy import create_engine

from onefold import Onefold, single_principal
from onefold._http.flask_views import current_transaction
from onefold._kernel.effects import Boundary, Statement
from onefold.db.sqlalchemy import SqlalchemyDatabase
from onefold.db.sqlite import SqliteDatabase
from onefold.db.sqlite._connection import SqliteConnection
from onefold.errors import TransactionEnded

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK


@pytest.fixture
def path(sqlite_path: Path) -> Path:
    with sqlite3.connect(sqlite_path) as file:
        file.execute("CREATE TABLE seat (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
        file.execute("CREATE TABLE charge (id)")
        file.execute("INSERT INTO seat VALUES (1)")
    file.close()
    return sqlite_path


@pytest.fixture
def connection(path: Path) -> Iterator[SqliteConnection]:
    database = SqliteDatabase(path)
    connection = database.acquire()
    yield connection
    connection.discard()
    database.close()


def charges(path: Path) -> list[Any]:
    with sqlite3.connect(path) as file:
        tables = file.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'made'").fetchall()
        rows = file.execute("SELECT id FROM charge").fetchall()
    file.close()
    return rows + [table for table in tables if table != (0,)]


def lose(handle: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        handle.execute("INSERT INTO seat VALUES (1)")
    assert not handle.in_transaction


class Mine(sqlite3.Cursor):
    """A handler's own kind of cursor."""


def stream(handle: sqlite3.Connection) -> Iterator[tuple[int]]:
    yield (1,)
    lose(handle)
    yield (2,)


WRITES: dict[str, Callable[[sqlite3.Connection], object]] = {
    "INSERT": lambda handle: handle.execute("INSERT INTO charge VALUES (1)"),
    "with parameters": lambda handle: handle.execute("INSERT INTO charge VALUES (?)", (1,)),
    "WITH": lambda handle: handle.execute("WITH x AS (SELECT 1) INSERT INTO charge SELECT * FROM x"),
    "RETURNING": lambda handle: handle.execute("INSERT INTO charge VALUES (1) RETURNING id").fetchall(),
    "executemany": lambda handle: handle.executemany("INSERT INTO charge VALUES (?)", [(1,), (2,)]),
    "cursor": lambda handle: handle.cursor().execute("INSERT INTO charge VALUES (1)"),
    "cursor of its own": lambda handle: handle.cursor(Mine).execute("INSERT INTO charge VALUES (1)"),
    "DDL": lambda handle: handle.execute("CREATE TABLE IF NOT EXISTS made (id)"),
    "SAVEPOINT": lambda handle: handle.execute("SAVEPOINT mine"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_after_sqlite_has_rolled_back(
    write: Callable[[sqlite3.Connection], object], path: Path, connection: SqliteConnection
) -> None:
    handle = connection.handle
    write(handle)  # sqlite3 has it compiled from here on
    lose(handle)
    for _ in range(2):
        with pytest.raises(TransactionEnded, match="rolled back"):
            write(handle)
    with pytest.raises(TransactionEnded):
        connection.batch((BEGIN, COMMIT))
    assert charges(path) == []


@pytest.mark.parametrize("script", ["INSERT INTO charge VALUES (1)", "CREATE TABLE made (id)"])
def test_no_script_is_executed_after_sqlite_has_rolled_back(
    script: str, path: Path, connection: SqliteConnection
) -> None:
    lose(handle := connection.handle)
    with pytest.raises(TransactionEnded):
        handle.executescript(script)
    assert charges(path) == []


def test_a_blob_is_not_written_after_sqlite_has_rolled_back(path: Path, connection: SqliteConnection) -> None:
    lose(handle := connection.handle)
    with pytest.raises(TransactionEnded):
        handle.blobopen("charge", "id", 1)


def test_rows_that_lose_the_transaction_while_they_are_read_are_not_written(
    path: Path, connection: SqliteConnection
) -> None:
    handle = connection.handle
    with pytest.raises(TransactionEnded):
        handle.executemany("INSERT INTO charge VALUES (?)", stream(handle))
    assert charges(path) == []


def test_a_cursor_made_behind_our_back_compiles_no_write_after_sqlite_has_rolled_back(
    path: Path, connection: SqliteConnection
) -> None:
    lose(handle := connection.handle)
    for sql in ("INSERT INTO charge VALUES (1)", "CREATE TABLE made (id)", "SAVEPOINT mine"):
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            sqlite3.Cursor(handle).execute(sql)
    assert charges(path) == []


def test_an_interrupted_transaction_is_lost_as_well(path: Path, connection: SqliteConnection) -> None:
    handle = connection.handle
    handle.create_function("stop", 0, lambda: handle.interrupt())
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE stop() IS NULL"
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        handle.execute(f"INSERT INTO charge {endless}")
    with pytest.raises(TransactionEnded):
        handle.execute("INSERT INTO charge VALUES (1)")
    assert charges(path) == []


def test_an_answer_whose_rows_are_undone_is_not_stored_either(path: Path, connection: SqliteConnection) -> None:
    lose(connection.handle)
    with pytest.raises(TransactionEnded):
        connection.batch((ROLLBACK, BEGIN, Statement("INSERT INTO charge VALUES (1)"), COMMIT))
    connection.batch((ROLLBACK,))  # which alone is harmless
    assert charges(path) == []


def test_over_sqlalchemy_an_answer_whose_rows_are_undone_is_not_stored_either(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    connection = SqlalchemyDatabase(engine).acquire()
    with pytest.raises(Exception, match="UNIQUE"):
        connection.handle.exec_driver_sql("INSERT INTO seat VALUES (1)")
    with pytest.raises(TransactionEnded):
        connection.handle.exec_driver_sql("INSERT INTO charge VALUES (1)")
    with pytest.raises(TransactionEnded):
        connection.batch((ROLLBACK, BEGIN, Statement("INSERT INTO charge VALUES (1)"), COMMIT))
    connection.discard()
    engine.dispose()
    assert charges(path) == []


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_request_that_goes_on_keeps_nothing(path: Path, keyed: bool, refuses: bool, writes: bool) -> None:
    app = Flask(__name__)
    once = Onefold(path, principal=single_principal)

    @app.post("/seats")
    @once.idempotent(required=False)
    def reserve() -> str:
        db = current_transaction().connection
        lose(db)
        if writes:
            db.execute("INSERT INTO charge VALUES (1)")
        return abort(409) if refuses else "reserved"

    once.install(app)
    client = app.test_client()
    for _ in range(2):
        answer = client.post("/seats", headers={"Idempotency-Key": '"k"'} if keyed else {})
        # Without a key there is nothing to store: a refusal that undoes nothing may be told.
        assert answer.status_code == (409 if refuses and not writes and not keyed else 500)
        assert "Idempotent-Replayed" not in answer.headers
    once.close()
    assert charges(path) == []


def test_a_transaction_of_ones_own_keeps_nothing(path: Path) -> None:
    once = Onefold(path, principal=single_principal)

    def work() -> None:
        with once.transaction() as tx:
            lose(tx.connection)
            tx.connection.execute("INSERT INTO charge VALUES (1)")

    with pytest.raises(TransactionEnded):
        work()
    once.close()
    assert charges(path) == []


def test_a_message_of_the_ledger_alone_keeps_nothing_and_is_not_handled(path: Path) -> None:
    once = Onefold(path, source="tests", principal=single_principal)
    once.migrate()

    def handle() -> None:
        with once.handling("billing", "m-1") as tx:
            assert tx is not None
            lose(tx.connection)
            tx.connection.execute("INSERT INTO charge VALUES (1)")

    for _ in range(2):
        with pytest.raises(TransactionEnded):
            handle()
    once.close()
    assert charges(path) == []
