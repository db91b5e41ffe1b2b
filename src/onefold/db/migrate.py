"""Numbered migrations, for any feature: each runs once, whoever starts first, and none runs half.

Theory of operation. What is applied is first looked up without a lock: nearly always there is nothing to do. Else
one transaction takes the lock that all who migrate compete for, looks again, and applies what is missing. Both
Postgres and SQLite undo DDL with its transaction, so a crash leaves the schema as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import TypeAlias

from onefold._kernel.borrow import borrowing
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement, Step
from onefold.errors import ConfigurationError

Migrations: TypeAlias = Mapping[int, tuple[str, ...]]

#: Whoever migrates holds this advisory lock until COMMIT. Any number will do, if it is always the same.
_LOCK_ID = 6_018_373_285_120_474_113

#: Not to_regclass: in a session that has asked before, it may still say no after the lock was waited for.
_EXISTS = {
    "postgres": "SELECT 1 FROM pg_class WHERE relname = 'onefold_migration' AND pg_table_is_visible(oid)",
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'onefold_migration'",
}

_CREATE = {
    "postgres": (
        "CREATE TABLE onefold_migration "
        "(version integer NOT NULL PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
    ),
    "sqlite": (
        "CREATE TABLE onefold_migration "
        "(version INTEGER NOT NULL PRIMARY KEY, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)"
    ),
}

#: SQLite's BEGIN takes the one write lock there is.
_LOCK: dict[str, tuple[str, ...]] = {
    "postgres": (f"SELECT pg_advisory_xact_lock({_LOCK_ID})",),
    "sqlite": (),
}

_APPLIED = "SELECT version FROM onefold_migration ORDER BY version"


async def migrate(dialect: str, migrations: Migrations) -> list[int]:
    """Apply what is missing; the versions applied now."""

    async def work() -> list[int]:
        if not _missing(migrations, await _applied(dialect)):
            return []
        await Batch((Boundary.BEGIN, *map(Statement, _LOCK[dialect])))
        missing = _missing(migrations, await _applied(dialect))
        steps: list[Step] = []
        if missing and not await Fetch(Statement(_EXISTS[dialect])):
            steps.append(Statement(_CREATE[dialect]))
        for version in missing:
            steps += map(Statement, _statements(version, migrations))
        await Batch((*steps, Boundary.COMMIT))
        return missing

    return await borrowing(work)


def script(dialect: str, migrations: Migrations, *, after: int = 0) -> str:
    """Plain SQL for people who run their own migrations: what `migrate` would do to a database at version `after`."""
    missing = [version for version in sorted(migrations) if version > after]
    statements = [*_LOCK[dialect], *([] if after else [_CREATE[dialect]])]
    for version in missing:
        statements += _statements(version, migrations)
    body = "".join(f"{dedent(statement).strip()};\n\n" for statement in statements)
    return f"-- onefold for {dialect}, versions {missing}\n\nBEGIN;\n\n{body}COMMIT;\n"


def _statements(version: int, migrations: Migrations) -> tuple[str, ...]:
    return (*migrations[version], f"INSERT INTO onefold_migration (version) VALUES ({version})")


async def _applied(dialect: str) -> set[int]:
    if not await Fetch(Statement(_EXISTS[dialect])):
        return set()
    return {version for (version,) in await Fetch(Statement(_APPLIED))}


def _missing(migrations: Migrations, applied: set[int]) -> list[int]:
    unknown = sorted(applied - migrations.keys())
    if unknown:
        raise ConfigurationError(
            f"the database has migrations {unknown}, which this onefold does not know (it knows up to "
            f"{max(migrations, default=0)}); a newer onefold migrated it: upgrade this one"
        )
    return sorted(migrations.keys() - applied)
