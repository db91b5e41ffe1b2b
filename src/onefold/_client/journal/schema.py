"""The journal's table, as a numbered migration per dialect. A number, once released, never changes.

A row says under which key an intent is sent. It is unresolved until the server gave a final answer; `tries` counts its
claims, and `reason` is why the last call ended without an answer. `position` is the order of arrival, for lists.
"""

from __future__ import annotations

from onefold._kernel.checkout import with_connection
from onefold._kernel.dialects import SQLITE_NOW_MS
from onefold._kernel.effects import Fetch, Statement
from onefold.db._migrations import migrate, newer
from onefold.errors import SchemaMissing

POSTGRES: dict[int, tuple[str, ...]] = {
    5: (
        """
        CREATE TABLE onefold_intent (
            position    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            intent      text        NOT NULL UNIQUE,
            key         text        NOT NULL,
            fingerprint bytea       NOT NULL,
            target      text        NOT NULL,
            tries       integer     NOT NULL DEFAULT 1,
            reason      text,
            status      integer,
            created_at  timestamptz NOT NULL DEFAULT now(),
            tried_at    timestamptz NOT NULL DEFAULT now(),
            resolved_at timestamptz
        )
        """,
        "CREATE INDEX onefold_intent_unresolved ON onefold_intent (position) WHERE resolved_at IS NULL",
        "CREATE INDEX onefold_intent_resolved ON onefold_intent (resolved_at) WHERE resolved_at IS NOT NULL",
    ),
}

_NOW = f"({SQLITE_NOW_MS})"

SQLITE: dict[int, tuple[str, ...]] = {
    5: (
        f"""
        CREATE TABLE onefold_intent (
            position       INTEGER PRIMARY KEY,
            intent         TEXT    NOT NULL UNIQUE,
            key            TEXT    NOT NULL,
            fingerprint    BLOB    NOT NULL,
            target         TEXT    NOT NULL,
            tries          INTEGER NOT NULL DEFAULT 1,
            reason         TEXT,
            status         INTEGER,
            created_at_ms  INTEGER NOT NULL DEFAULT {_NOW},
            tried_at_ms    INTEGER NOT NULL DEFAULT {_NOW},
            resolved_at_ms INTEGER
        )
        """,
        "CREATE INDEX onefold_intent_unresolved ON onefold_intent (position) WHERE resolved_at_ms IS NULL",
        "CREATE INDEX onefold_intent_resolved ON onefold_intent (resolved_at_ms) WHERE resolved_at_ms IS NOT NULL",
    ),
}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}

_THERE = Statement("SELECT 1 FROM onefold_intent LIMIT 1")


async def prepare(dialect: str) -> None:
    """Make the journal's table in a database that has none of onefold's: a file of the client's own.

    A database that other features use is migrated on purpose (`onefold migrate`): there this raises SchemaMissing.
    """
    try:
        await with_connection(_look)
    except SchemaMissing as missing:
        if await newer(dialect, MIGRATIONS[dialect]):
            # It has other migrations than the journal's, as a database of an older onefold does.
            raise missing from None
        await migrate(dialect, MIGRATIONS[dialect])


async def _look() -> None:
    await Fetch(_THERE)
