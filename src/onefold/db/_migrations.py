"""Numbered migrations, for any feature: each runs once, in the process that starts first, and none runs half.

Theory of operation. What is applied is first looked up without a lock: nearly always there is nothing to do. Else
one transaction takes the lock that all who migrate compete for, looks again, and applies what is missing. Both
Postgres and SQLite undo DDL with its transaction, so a crash leaves the schema as it was.

What is applied together is noted by one statement, and so with one time, whatever tool executes it: that shows later
which release has made a database (`_idempotency/database_origin.py`).

On Postgres another role may create in a schema where we look (`public`, for many). An `onefold_migration` of its making
could run its code with our rights: by a trigger when it is written, by a view or a policy already when it is read. It
is written only where our own role has it, and not read where that would run code of a stranger's. Where there is
nothing to write, a stranger's is used, with a warning: an application may well be another role than what migrates.

Rolling upgrades. A release that finds migrations it does not know leaves them alone and goes on: every migration must
leave a schema that the release before it can work with (its statements are recorded, and run against the new one).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import dedent
from typing import Any, TypeAlias

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Statement
from onefold._kernel.pg_catalog import qualified
from onefold.errors import ConfigurationError

_log = logging.getLogger("onefold.database")

Migrations: TypeAlias = Mapping[int, tuple[str, ...]]

#: The process that migrates holds this advisory lock until COMMIT. Any number will do, if it is always the same.
_LOCK_ID = 6_018_373_285_120_474_113

#: Not to_regclass: in a session that has called it before, it may still return NULL after the wait for the lock.
#: Finds the owner where it is a stranger ('' where it is not), and whether reading runs code of the owner's. A
#: superuser is a member of every role, but must not run what others have written.
_EXISTS = {
    "postgres": """
SELECT CASE WHEN owner.rolname = current_user THEN '' WHEN owner.rolsuper THEN ''
            WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN owner.rolname
            WHEN pg_has_role(owner.oid, 'USAGE') THEN '' ELSE owner.rolname END,
       relkind <> 'r' OR relhasrules OR relrowsecurity
FROM pg_class JOIN pg_roles AS owner ON owner.oid = relowner
WHERE relname = 'onefold_migration' AND pg_table_is_visible(pg_class.oid)
""",
    "sqlite": "SELECT '', false FROM sqlite_master WHERE type = 'table' AND name = 'onefold_migration'",
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

#: SQLite's clock stands still for a statement, not for a transaction. onefold 0.1 wrote no fractions of a second.
_NOW = {"postgres": "now()", "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')"}

#: SQLite's BEGIN takes the one write lock there is.
_LOCK: dict[str, tuple[str, ...]] = {
    "postgres": (f"SELECT pg_advisory_xact_lock({_LOCK_ID})",),
    "sqlite": (),
}

_APPLIED = "SELECT version FROM onefold_migration ORDER BY version"

#: What a statement looks up is the server's own: see `_kernel/pg_catalog.py`.
_QUALIFY: dict[str, Callable[[str], str]] = {"postgres": qualified, "sqlite": str}


async def migrate(dialect: str, migrations: Migrations) -> list[int]:
    """Apply what is missing; the versions applied now. What a newer release has applied is fine, see `newer`."""

    async def work() -> list[int]:
        found = await _look(dialect)
        if not _missing(migrations, await _fetch_applied(found)):
            _warn_of_stranger(found)
            return []
        await Batch((Boundary.BEGIN, *_to_statements(dialect, _LOCK[dialect])))
        found = await _look(dialect)
        missing = _missing(migrations, await _fetch_applied(found))
        items: list[BatchItem] = []
        if missing:
            _check_owner(found, to_write=True)
            items += [] if found else _to_statements(dialect, [_CREATE[dialect]])
        items += _to_statements(dialect, _texts_of(dialect, missing, migrations))
        await Batch((*items, Boundary.COMMIT))
        return missing

    return await with_connection(work)


async def missing(dialect: str, migrations: Migrations) -> list[int]:
    """The versions that are not applied yet."""

    async def work() -> list[int]:
        return _missing(migrations, await _fetch_applied(await _look(dialect)))

    return await with_connection(work)


async def newer(dialect: str, migrations: Migrations) -> list[int]:
    """The versions a newer onefold has applied, which this one does not know and works beside."""

    async def work() -> list[int]:
        return sorted(await _fetch_applied(await _look(dialect)) - migrations.keys())

    return await with_connection(work)


def script(dialect: str, migrations: Migrations, *, after: int = 0) -> str:
    """Plain SQL for people who run their own migrations: what `migrate` would do to a database at version `after`."""
    missing = [version for version in sorted(migrations) if version > after]
    statements = [*_LOCK[dialect], *([] if after else [_CREATE[dialect]])]
    statements += _texts_of(dialect, missing, migrations)
    body = "".join(f"{dedent(statement).strip()};\n\n" for statement in statements)
    return f"-- onefold for {dialect}, versions {missing}\n\nBEGIN;\n\n{body}COMMIT;\n"


def lock_statements(dialect: str) -> list[str]:
    """The lock by which processes that migrate at once wait for each other."""
    return [_QUALIFY[dialect](text) for text in _LOCK[dialect]]


def read_applied(
    dialect: str, migrations: Migrations, fetch: Callable[[str], Sequence[Sequence[Any]]]
) -> set[int] | None:
    """What is applied, read on a connection in a transaction of another tool that applies what is missing. None:
    nothing ever was."""
    found = fetch(_QUALIFY[dialect](_EXISTS[dialect]))
    _check_owner(found, to_write=False)
    if not found:
        return None
    applied = {row[0] for row in fetch(_APPLIED)}
    _check_owner(found, to_write=bool(_missing(migrations, applied)))
    return applied


def missing_statements(dialect: str, migrations: Migrations, applied: set[int] | None) -> list[str]:
    """What has to be executed where so much is applied, without the limits of a transaction."""
    texts = [_CREATE[dialect]] if applied is None else []
    texts += _texts_of(dialect, _missing(migrations, applied or set()), migrations)
    return [_QUALIFY[dialect](text) for text in texts]


def _to_statements(dialect: str, texts: Iterable[str]) -> list[Statement]:
    return [Statement(_QUALIFY[dialect](text)) for text in texts]


def _texts_of(dialect: str, versions: Sequence[int], migrations: Migrations) -> list[str]:
    if not versions:
        return []
    rows = ", ".join([f"({version}, {_NOW[dialect]})" for version in versions])
    texts = [text for version in versions for text in migrations[version]]
    return [*texts, f"INSERT INTO onefold_migration (version, applied_at) VALUES {rows}"]


async def _look(dialect: str) -> Sequence[Sequence[Any]]:
    return await Fetch(*_to_statements(dialect, [_EXISTS[dialect]]))


def _check_owner(found: Sequence[Sequence[Any]], *, to_write: bool) -> None:
    """Refuse the table that _EXISTS found, if using it would run code of a stranger's."""
    for stranger, is_run_by_reading in found:
        if stranger and (to_write or is_run_by_reading):
            raise ConfigurationError(
                f"onefold_migration belongs to the role {stranger!r}, which could have its own code run by the role "
                f"that migrates. If {stranger!r} made onefold's tables, migrate as that role; if not, drop what it "
                "made, or put onefold's tables into a schema where no stranger may create (`onefold docs postgres`)"
            )


def _warn_of_stranger(found: Sequence[Sequence[Any]]) -> None:
    """Nothing is to be written. A stranger may have made all tables before us, with triggers of its own; a role that
    migrates for an application which is another role looks the same, so that this is no error."""
    for stranger, _ in found:
        if stranger:
            _log.warning(
                "onefold's tables are up to date, but onefold_migration belongs to another role, %r, which could have "
                "its own code run by this one, with a trigger on a table. If %r is the role that migrates for this "
                "application, call migrate() as that role only; if not, drop what it made, or put onefold's tables "
                "into a schema where no stranger may create (`onefold docs postgres`)",
                stranger,
                stranger,
            )


async def _fetch_applied(found: Sequence[Sequence[Any]]) -> set[int]:
    _check_owner(found, to_write=False)
    if not found:
        return set()
    return {version for (version,) in await Fetch(Statement(_APPLIED))}


def _missing(migrations: Migrations, applied: set[int]) -> list[int]:
    return sorted(migrations.keys() - applied)
