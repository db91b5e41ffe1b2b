"""The table of local effects, as numbered migrations per dialect. A number, once released, never changes.

`onefold_effect` has a row for each step that has applied (with its result) or that was undone, also before it
could apply: then the row is a tombstone, and a late execution of the step is refused.
"""

from __future__ import annotations

from onefold._kernel.dialects import SQLITE_NOW_MS

POSTGRES: dict[int, tuple[str, ...]] = {
    18: (
        """
        CREATE TABLE onefold_effect (
            key        text        NOT NULL PRIMARY KEY,
            state      text        NOT NULL CHECK (state IN ('applied', 'undone')),
            result     text,
            created_at timestamptz NOT NULL DEFAULT now()
        )
        """,
        "CREATE INDEX onefold_effect_created_at ON onefold_effect (created_at)",
    ),
}

SQLITE: dict[int, tuple[str, ...]] = {
    18: (
        f"""
        CREATE TABLE onefold_effect (
            key           TEXT    NOT NULL PRIMARY KEY,
            state         TEXT    NOT NULL CHECK (state IN ('applied', 'undone')),
            result        TEXT,
            created_at_ms INTEGER NOT NULL DEFAULT ({SQLITE_NOW_MS})
        ) WITHOUT ROWID
        """,
        "CREATE INDEX onefold_effect_created_at ON onefold_effect (created_at_ms)",
    ),
}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}
