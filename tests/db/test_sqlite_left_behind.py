"""What a handler leaves in its SQLite connection is not there for the request that comes after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onefold._kernel.effects import Boundary
from onefold.db.sqlite import SqliteDatabase
from onefold.errors import TransactionMisused

Change = Callable[[sqlite3.Connection], object]


@pytest.fixture
def database(sqlite_path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(sqlite_path)
    connection = database.acquire()
    connection.handle.execute("CREATE TABLE thing (id INTEGER PRIMARY KEY, name TEXT CHECK (name <> ''))")
    connection.batch((Boundary.COMMIT,))
    connection.release()
    yield database
    database.close()


def is_used_again(database: SqliteDatabase, change: Change, end: Boundary) -> bool:
    connection = database.acquire()
    link = connection._file
    change(connection.handle)
    connection.batch((end,))
    at_rest = connection.release_at_rest()
    if not at_rest:
        connection.release()
    following = database.acquire()
    again = following._file is link
    following.release()
    assert at_rest == again, "a connection is closed on its thread, not on the event loop"
    return again


def set_level(handle: sqlite3.Connection) -> None:
    handle.isolation_level = "DEFERRED"


LEFT: dict[str, Change] = {
    "temporary table": lambda handle: handle.execute("CREATE TEMP TABLE line (id)"),
    "temporary table, by its schema": lambda handle: handle.execute("CREATE TABLE temp.line (id)"),
    "temporary table of a query": lambda handle: handle.execute("CREATE TEMP TABLE line AS SELECT 1"),
    "temporary view": lambda handle: handle.execute("CREATE TEMP VIEW line AS SELECT 1"),
    "temporary trigger": lambda handle: handle.execute(
        "CREATE TEMP TRIGGER line AFTER INSERT ON thing BEGIN SELECT 1; END"
    ),
    "constraints": lambda handle: handle.execute("PRAGMA ignore_check_constraints = ON"),
    "case": lambda handle: handle.execute("PRAGMA case_sensitive_like(1)"),
    "database": lambda handle: handle.execute("ATTACH ':memory:' AS other"),
    "function": lambda handle: handle.create_function("upper", 1, lambda value: "alice"),
    "aggregate": lambda handle: handle.create_aggregate("sum", 1, None),  # type: ignore[arg-type]
    "collation": lambda handle: handle.create_collation("nocase", lambda one, other: 0),
    "trace": lambda handle: handle.set_trace_callback(lambda sql: None),
    "progress": lambda handle: handle.set_progress_handler(lambda: 0, 1000),
    "limit": lambda handle: handle.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    "isolation level": set_level,
}


@pytest.mark.parametrize("end", [Boundary.COMMIT, Boundary.ROLLBACK])
@pytest.mark.parametrize("change", LEFT.values(), ids=LEFT)
def test_a_connection_that_was_changed_is_not_used_again(
    change: Change, end: Boundary, database: SqliteDatabase
) -> None:
    assert not is_used_again(database, change, end)


UNCHANGED: dict[str, Change] = {
    "rows": lambda handle: handle.execute("INSERT INTO thing (name) VALUES ('a')"),
    "table": lambda handle: handle.execute("CREATE TABLE other (id)"),
    "columns": lambda handle: handle.execute("PRAGMA table_info(thing)").fetchall(),
    "setting that is read": lambda handle: handle.execute("PRAGMA foreign_keys").fetchall(),
}


@pytest.mark.parametrize("change", UNCHANGED.values(), ids=UNCHANGED)
def test_a_connection_that_was_only_used_is_used_again(change: Change, database: SqliteDatabase) -> None:
    assert is_used_again(database, change, Boundary.COMMIT)


def test_a_handler_cannot_replace_the_authorizer(database: SqliteDatabase) -> None:
    connection = database.acquire()
    with pytest.raises(TransactionMisused, match="authorizer"):
        connection.handle.set_authorizer(None)
    connection.discard()
