"""A database that is reused is as good as new: whatever a test did to it, the next one sees nothing of that."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import psycopg
import pytest

from onefold import Onefold
from onefold.testing.servers import PrivatePostgres
from tests.support import reused_database
from tests.support.reused_database import ReusedDatabase


def furnish(dsn: str) -> None:
    once = Onefold(dsn)
    once.migrate()
    once.close()
    run(dsn, "CREATE TABLE orders (id serial PRIMARY KEY, item text)")


def run(dsn: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def made(postgres: PrivatePostgres) -> tuple[ReusedDatabase, list[str]]:
    """A database, and each time that it was furnished."""
    times: list[str] = []

    def note(dsn: str) -> None:
        times.append(dsn)
        furnish(dsn)

    return ReusedDatabase(postgres, note), times


def test_rows_and_numbers_of_one_test_are_not_there_for_the_next(made: tuple[ReusedDatabase, list[str]]) -> None:
    database, times = made
    for _ in range(2):
        with database.ready() as dsn:
            assert run(dsn, "INSERT INTO orders (item) VALUES ('book') RETURNING id") == [(1,)]
            known = len(times)
    assert len(times) == known


CHANGES: dict[str, str] = {
    "a new table": "CREATE TABLE more (id int)",
    "a table less": "DROP TABLE orders",
    "a table of onefold less": "DROP TABLE onefold_bucket",
    "another column": "ALTER TABLE orders ADD COLUMN more int",
    "a column that may not be empty": "ALTER TABLE orders ALTER COLUMN item SET NOT NULL",
    "a constraint": "ALTER TABLE orders ADD CHECK (item <> '')",
    "another name": "ALTER TABLE orders RENAME TO sold",
    "a row of a migration": "UPDATE onefold_bucket SET bucket = bucket WHERE bucket = 0; DELETE FROM onefold_bucket",
    "a migration less": "DELETE FROM onefold_migration",
    "a function": "CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1'",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_is_made_anew(made: tuple[ReusedDatabase, list[str]], change: str) -> None:
    database, times = made
    with database.ready() as dsn:
        before = len(times)
        run(dsn, CHANGES[change])
    with database.ready() as dsn:
        assert run(dsn, "INSERT INTO orders (item) VALUES ('book') RETURNING id") == [(1,)]
        assert run(dsn, "SELECT count(*) FROM onefold_bucket") == [(64,)]
    assert len(times) == before + 1


@pytest.mark.parametrize("may_leave_sessions", [False, True])
def test_a_transaction_that_a_test_left_open_fails_it_or_is_cut_off(
    postgres: PrivatePostgres, monkeypatch: pytest.MonkeyPatch, may_leave_sessions: bool
) -> None:
    at_once = reused_database._EMPTY.replace("'30s'", "'50ms'")
    monkeypatch.setattr(reused_database, "_EMPTY", at_once)
    database = ReusedDatabase(postgres, furnish, may_leave_sessions=may_leave_sessions)
    told: AbstractContextManager[object] = nullcontext()
    if not may_leave_sessions:
        told = pytest.raises(psycopg.errors.LockNotAvailable)
    with told, database.ready() as dsn:
        left = psycopg.connect(dsn)
        left.execute("INSERT INTO orders (item) VALUES ('left')")
    left.close()
    with database.ready() as dsn:
        assert run(dsn, "SELECT count(*) FROM orders") == [(0,)]
