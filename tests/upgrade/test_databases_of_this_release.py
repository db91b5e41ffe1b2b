"""A database that the previous release never had: nothing is looked for, written or locked there for its sake. Where it
may have had it, or where that cannot be told, all is as beside it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import NullPool, create_engine, event

from onefold._app.migrations import MIGRATIONS
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.alembic import upgrade
from onefold.db._drivers import sync_database
from onefold.db._migrations import migrate, script
from tests.db.roles import create_login
from tests.upgrade.places import dialect_of, restore, rows
from tests.upgrade.record import listened
from tests.upgrade.scenes import SCENES, Scene
from tests.upgrade.test_records import REFUND, Stage

PLAIN = Scene("plain-one", "/orders", b"{}")

COUNT = "SELECT count(*) FROM onefold_record"

#: Rows of a request with a parameter in its path: its record, and the signpost where the previous release looks.
ALONE, WITH_SIGNPOST = 1, 2


@pytest.fixture(params=["postgres", "sqlite"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def rows_written(place: Any, stack: ExitStack, address: str, **options: Any) -> int:
    """By one request of a process that begins now."""
    [(before,)] = rows(address, COUNT)
    post = Stage(place, stack).serve(migrating=False, **options)
    asked = REFUND._replace(key=f"new-{before}")
    assert post(asked)[:2] == (201, b"ran")
    assert post(asked)[2]
    [(after,)] = rows(address, COUNT)
    return int(after - before)


def migrate_with(address: str, versions: int | None = None) -> None:
    """With `onefold migrate` of a release that has so many of the versions."""
    with closing(sync_database(address)) as database:
        known = MIGRATIONS[database.dialect]
        run(migrate(database.dialect, dict(sorted(known.items())[:versions])), ThreadExecutor(database))


def engine_of(address: str) -> Any:
    url = address.replace("postgresql://", "postgresql+psycopg://") if "://" in address else f"sqlite:///{address}"
    return create_engine(url, poolclass=NullPool)


def migrate_with_alembic(address: str) -> None:
    with engine_of(address).connect() as connection:
        context = MigrationContext.configure(connection)
        with context.begin_transaction():
            upgrade(Operations(context))


def execute(address: str, text: str) -> None:
    """Statement by statement, as tools do that know nothing of transactions."""
    for statement in filter(None, (re.sub(r"--.*", "", part).strip() for part in text.split(";\n"))):
        if statement not in ("BEGIN", "COMMIT"):
            rows(address, statement)


def migrate_with_script(address: str) -> None:
    execute(address, script(dialect_of(address), MIGRATIONS[dialect_of(address)]))


def migrate_with_script_of_alembic(address: str) -> None:
    name = {"postgres": "postgresql"}.get(dialect_of(address), "sqlite")
    written = io.StringIO()
    options = {"as_sql": True, "output_buffer": written}
    upgrade(Operations(MigrationContext.configure(dialect_name=name, opts=options)))
    execute(address, re.sub(r"(SAVEPOINT|RELEASE) onefold_upgrade;\n", "", written.getvalue()))


WAYS: dict[str, Callable[[str], None]] = {
    "migrate": migrate_with,
    "Alembic": migrate_with_alembic,
    "script": migrate_with_script,
    "script of Alembic": migrate_with_script_of_alembic,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_database_that_this_release_has_made_keeps_one_row_for_a_request(
    address: str, way: str, stack: ExitStack
) -> None:
    WAYS[way](address)
    assert rows_written(address, stack, address) == ALONE
    assert rows_written(address, stack, address, earlier_records=True) == WITH_SIGNPOST
    assert rows_written(address, stack, address, earlier_records=False) == ALONE


@pytest.mark.parametrize("way", ["migrate", "Alembic"])
def test_a_database_that_the_previous_release_has_made_keeps_a_signpost_too(
    address: str, way: str, stack: ExitStack
) -> None:
    restore(address)
    WAYS[way](address)
    assert rows_written(address, stack, address) == WITH_SIGNPOST
    assert rows_written(address, stack, address, earlier_records=False) == ALONE


def test_a_later_release_changes_nothing_in_what_is_known(address: str, stack: ExitStack) -> None:
    migrate_with(address, 10)
    migrate_with(address)
    assert rows_written(address, stack, address) == ALONE


def test_what_cannot_be_told_counts_as_the_previous_releases(address: str, stack: ExitStack) -> None:
    for number in range(1, 1 + len(MIGRATIONS[dialect_of(address)])):
        migrate_with(address, number)
    assert rows_written(address, stack, address) == WITH_SIGNPOST, "applied one by one"
    if dialect_of(address) == "postgres":  # a file would be migrated anew
        rows(address, "DELETE FROM onefold_migration")
        assert rows_written(address, stack, address) == WITH_SIGNPOST, "nothing is noted"


def test_a_file_that_both_releases_have_migrated_in_one_second_is_the_previous_releases(
    sqlite_path: Path, stack: ExitStack
) -> None:
    migrate_with(str(sqlite_path))
    rows(str(sqlite_path), "UPDATE onefold_migration SET applied_at = '2026-11-17 04:09:11'")
    assert rows_written(sqlite_path, stack, str(sqlite_path)) == WITH_SIGNPOST


def test_a_role_that_may_not_read_the_migrations_works_as_beside_the_previous_release(
    postgres_dsn: str, stack: ExitStack
) -> None:
    migrate_with(postgres_dsn)
    role = f"api_{postgres_dsn.rpartition('/')[2]}"
    theirs = create_login(role, postgres_dsn)
    rows(postgres_dsn, f"GRANT SELECT, INSERT, UPDATE, DELETE ON onefold_record TO {role}")
    assert rows_written(theirs, stack, postgres_dsn) == WITH_SIGNPOST
    rows(postgres_dsn, f"GRANT SELECT ON onefold_migration TO {role}")
    assert rows_written(theirs, stack, postgres_dsn) == ALONE


def test_a_pool_that_sets_the_search_path_of_its_connections_may_lead_to_other_tables(
    postgres_dsn: str, stack: ExitStack
) -> None:
    """One that was asked tells nothing of the next, where each tenant has its own."""
    migrate_with(postgres_dsn)
    engine = create_engine(postgres_dsn.replace("postgresql://", "postgresql+psycopg://"))
    stack.callback(engine.dispose)
    assert rows_written(engine, stack, postgres_dsn) == ALONE
    event.listen(engine, "checkout", lambda handle, *_: handle.execute("SET search_path = public, pg_temp"))
    assert rows_written(engine, stack, postgres_dsn) == WITH_SIGNPOST


def questions(heard: list[Any]) -> list[Any]:
    """Who made the database?"""
    return [said for said in heard if isinstance(said, dict) and "applied_at" in said["sql"]]


def test_the_database_is_asked_once_in_a_process(address: str, stack: ExitStack) -> None:
    migrate_with(address)
    with listened() as heard:
        post = Stage(address, stack).serve(migrating=False)
        for number in range(3):
            post(REFUND._replace(key=f"k-{number}"))
            post(PLAIN._replace(key=f"k-{number}"))
        assert len(questions(heard)) == 1
    with listened() as heard:
        for known in (True, False):
            Stage(address, stack).serve(migrating=False, earlier_records=known)(REFUND._replace(key=str(known)))
        assert questions(heard) == [], "who says it need not ask"


def test_a_process_that_was_there_before_the_tables_asks_again(postgres_dsn: str, stack: ExitStack) -> None:
    post = Stage(postgres_dsn, stack).serve(migrating=False)
    assert [post(REFUND)[0] for _ in range(2)] == [503, 503]
    migrate_with(postgres_dsn)
    assert post(REFUND)[:2] == (201, b"ran")
    assert rows(postgres_dsn, COUNT) == [(ALONE,)]


@pytest.mark.parametrize(("known", "locks"), [(None, 3), (True, 5)])
def test_a_request_takes_as_many_locks_as_it_needs(
    postgres_dsn: str, stack: ExitStack, known: bool | None, locks: int
) -> None:
    """Its payload by value and by bytes, and its key; and what the previous release would hold: payload and key."""
    migrate_with(postgres_dsn)
    stage = Stage(postgres_dsn, stack)
    held: list[Any] = []

    def look() -> tuple[int, bytes, bool]:
        with psycopg.connect(postgres_dsn) as connection:
            held.extend(connection.execute("SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted"))
        return 0, b"", False

    stage.meanwhile = [look]
    assert stage.serve(migrating=False, earlier_records=known)(REFUND)[0] == 201
    assert len(held) == locks


@pytest.mark.parametrize(("key", "status"), [("sealed", 503), ("sealed-refund", 201)])
def test_an_answer_as_the_previous_release_sealed_it_is_not_opened_where_that_never_was(
    address: str, stack: ExitStack, key: str, status: int
) -> None:
    """Its status is not bound to it, and who can write the table can write its like. The second is stored under a name
    that is none of today's, and so it is not even found."""
    scene = next(scene for scene in SCENES if scene.key == key)
    restore(address)
    migrate_with(address)
    assert Stage(address, stack).serve(migrating=False, sealed=True)(scene)[::2] == (201, True)
    rows(address, "UPDATE onefold_migration SET applied_at = '2026-11-18 04:09:11.001'")
    assert Stage(address, stack).serve(migrating=False, sealed=True)(scene)[::2] == (status, False)


def test_threads_that_come_first_at_once_do_with_one_row_each(address: str, stack: ExitStack) -> None:
    migrate_with(address)
    post = Stage(address, stack).serve(migrating=False)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(post, [REFUND._replace(key=f"k-{number}") for number in range(4)]))
    assert [status for status, _, _ in answers] == [201] * 4
    assert rows(address, COUNT) == [(4 * ALONE,)]
