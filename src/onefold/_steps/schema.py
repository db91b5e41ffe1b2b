"""The tables of recorded steps, as numbered migrations per dialect. A number, once released, never changes.

`onefold_work` has one row for each work that is running, or waits to be continued; `onefold_step` has its records. No
key, no principal: the digest cannot be turned back into them; `request` and `result` may be sealed.
"""

from __future__ import annotations

POSTGRES: dict[int, tuple[str, ...]] = {
    15: (
        """
        CREATE TABLE onefold_work (
            digest        bytea       NOT NULL PRIMARY KEY,
            kind          text        NOT NULL,
            operation     text        NOT NULL,
            fingerprint   bytea       NOT NULL,
            fence         bigint      NOT NULL,
            lease_ends_at timestamptz NOT NULL,
            attempts      integer     NOT NULL,
            parked        text,
            request       bytea,
            result        bytea,
            finished_at   timestamptz,
            created_at    timestamptz NOT NULL,
            due_at        timestamptz NOT NULL,
            expires_at    timestamptz NOT NULL
        )
        """,
        "CREATE INDEX onefold_work_due_at ON onefold_work (kind, due_at)",
        "CREATE INDEX onefold_work_expires_at ON onefold_work (expires_at)",
        """
        CREATE TABLE onefold_step (
            digest      bytea       NOT NULL,
            position    integer     NOT NULL,
            name        text        NOT NULL,
            kind        text        NOT NULL,
            state       text        NOT NULL,
            result      bytea,
            recorded_at timestamptz NOT NULL,
            PRIMARY KEY (digest, position)
        )
        """,
    ),
    # For people who look for what is stuck, page by page. A lease that is renewed changes none of these columns.
    22: (
        "CREATE INDEX onefold_work_unfinished ON onefold_work (created_at, digest) WHERE finished_at IS NULL",
        """
        CREATE INDEX onefold_work_parked ON onefold_work (created_at, digest)
        WHERE finished_at IS NULL AND parked IS NOT NULL
        """,
    ),
}

SQLITE: dict[int, tuple[str, ...]] = {
    15: (
        """
        CREATE TABLE onefold_work (
            digest           BLOB    NOT NULL PRIMARY KEY,
            kind             TEXT    NOT NULL,
            operation        TEXT    NOT NULL,
            fingerprint      BLOB    NOT NULL,
            fence            INTEGER NOT NULL,
            lease_ends_at_ms INTEGER NOT NULL,
            attempts         INTEGER NOT NULL,
            parked           TEXT,
            request          BLOB,
            result           BLOB,
            finished_at_ms   INTEGER,
            created_at_ms    INTEGER NOT NULL,
            due_at_ms        INTEGER NOT NULL,
            expires_at_ms    INTEGER NOT NULL
        )
        """,
        "CREATE INDEX onefold_work_due_at ON onefold_work (kind, due_at_ms)",
        "CREATE INDEX onefold_work_expires_at ON onefold_work (expires_at_ms)",
        """
        CREATE TABLE onefold_step (
            digest         BLOB    NOT NULL,
            position       INTEGER NOT NULL,
            name           TEXT    NOT NULL,
            kind           TEXT    NOT NULL,
            state          TEXT    NOT NULL,
            result         BLOB,
            recorded_at_ms INTEGER NOT NULL,
            PRIMARY KEY (digest, position)
        ) WITHOUT ROWID
        """,
    ),
    22: (
        "CREATE INDEX onefold_work_unfinished ON onefold_work (created_at_ms, digest) WHERE finished_at_ms IS NULL",
        """
        CREATE INDEX onefold_work_parked ON onefold_work (created_at_ms, digest)
        WHERE finished_at_ms IS NULL AND parked IS NOT NULL
        """,
    ),
}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}
