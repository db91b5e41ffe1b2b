"""Revisions of Alembic that make onefold's tables: on SQLite, beside `migrate`, as a script, and interrupted.

The page of docs walks the whole of it on Postgres: `tests/book/test_walks.py`.
"""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, MetaData, NullPool, create_engine

from onefold import Onefold
from onefold._app.migrations import MIGRATIONS
from onefold.alembic import include_name, upgrade
from onefold.errors import ConfigurationError

ALL = {dialect: sorted(known) for dialect, known in MIGRATIONS.items()}


def revise(engine: Engine, **given: Any) -> list[int]:
    """As Alembic runs a revision, with its transaction."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        with context.begin_transaction():
            return upgrade(Operations(context), **given)


def engine_of(database: str) -> Engine:
    return create_engine(database.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)


def schema_of(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT name, sql FROM sqlite_master WHERE name LIKE 'onefold%'").fetchall())


def test_a_revision_makes_the_tables_that_migrate_makes(tmp_path: Path, postgres_dsn: str) -> None:
    with closing(Onefold(tmp_path / "migrated.db")):
        engine = engine_of(f"sqlite:///{tmp_path / 'revised.db'}")
        assert revise(engine) == ALL["sqlite"]
        assert revise(engine) == []
        assert schema_of(tmp_path / "revised.db") == schema_of(tmp_path / "migrated.db") != []
    on_server = engine_of(postgres_dsn)
    assert revise(on_server) == ALL["postgres"]
    with closing(Onefold(postgres_dsn)) as once:
        once.migrate()
    assert revise(on_server) == []
    with on_server.connect() as connection:
        compared = MigrationContext.configure(connection, opts={"include_name": include_name})
        assert compare_metadata(compared, MetaData()) == []


def test_autogenerate_would_drop_the_tables_without_the_filter(postgres_dsn: str) -> None:
    engine = engine_of(postgres_dsn)
    revise(engine)
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), MetaData())
    assert "remove_table" in {change[0] for change in found if isinstance(change, tuple)}


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_a_revision_that_fails_half_way_leaves_nothing(dialect: str, tmp_path: Path, postgres_dsn: str) -> None:
    engine = engine_of(postgres_dsn if dialect == "postgres" else f"sqlite:///{tmp_path / 'a.db'}")

    class Refuses:
        """The database goes away at a statement in the middle."""

        def __init__(self, op: Operations) -> None:
            self.op = op
            self.get_bind, self.get_context = op.get_bind, op.get_context

        def execute(self, sqltext: str) -> None:
            if "onefold_letter_dead" in sqltext:
                raise ConnectionError
            self.op.execute(sqltext)

    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        with pytest.raises(ConnectionError), context.begin_transaction():
            upgrade(Refuses(Operations(context)))
    assert revise(engine) == ALL[dialect]


def test_the_script_for_administrators_is_what_migrate_finds_done(postgres_dsn: str) -> None:
    written = io.StringIO()
    context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written})
    assert upgrade(Operations(context)) == ALL["postgres"]
    with psycopg.connect(postgres_dsn, autocommit=True) as server:
        server.execute(written.getvalue().encode())
    with engine_of(postgres_dsn).connect() as connection:
        assert upgrade(Operations(MigrationContext.configure(connection))) == []
    written.truncate(0)
    later = upgrade(Operations(context), after=ALL["postgres"][-2])
    assert later == ALL["postgres"][-1:]
    assert "CREATE TABLE onefold_migration" not in written.getvalue()


def test_a_database_that_is_none_of_ours_is_named() -> None:
    context = MigrationContext.configure(dialect_name="mysql", opts={"as_sql": True})
    with pytest.raises(ConfigurationError, match="'mysql': the database is PostgreSQL or SQLite"):
        upgrade(Operations(context))
