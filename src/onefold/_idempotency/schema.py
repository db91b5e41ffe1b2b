"""onefold's tables for idempotency, as numbered migrations per dialect. A number, once released, never changes."""

from __future__ import annotations

#: The response is stored apart from what is searched; `headers` and `body` may be sealed. No key, no principal:
#: the digest cannot be turned back into them.
POSTGRES: dict[int, tuple[str, ...]] = {
    1: (
        """
        CREATE TABLE onefold_record (
            digest         bytea       NOT NULL PRIMARY KEY,
            fingerprint    bytea       NOT NULL,
            operation      text        NOT NULL,
            schema_version smallint    NOT NULL,
            status         smallint    NOT NULL,
            headers        bytea       NOT NULL,
            body           bytea,
            expires_at     timestamptz NOT NULL
        )
        """,
        "CREATE INDEX onefold_record_expires_at ON onefold_record (expires_at)",
    ),
}

#: onefold_claim is unused now. It stays while a release whose claims were rows of it may still run beside this one.
SQLITE: dict[int, tuple[str, ...]] = {
    1: (
        """
        CREATE TABLE onefold_record (
            digest         BLOB    NOT NULL PRIMARY KEY,
            fingerprint    BLOB    NOT NULL,
            operation      TEXT    NOT NULL,
            schema_version INTEGER NOT NULL,
            status         INTEGER NOT NULL,
            headers        BLOB    NOT NULL,
            body           BLOB,
            expires_at_ms  INTEGER NOT NULL
        )
        """,
        "CREATE INDEX onefold_record_expires_at ON onefold_record (expires_at_ms)",
        """
        CREATE TABLE onefold_claim (
            digest          BLOB    NOT NULL PRIMARY KEY,
            fingerprint     BLOB    NOT NULL,
            operation       TEXT    NOT NULL,
            fence           INTEGER NOT NULL,
            lease_until_ms  INTEGER NOT NULL,
            forget_after_ms INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
    ),
}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}
