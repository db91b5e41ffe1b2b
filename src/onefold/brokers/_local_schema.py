"""The tables of the local broker, as a numbered migration per dialect. A number, once released, never changes."""

from __future__ import annotations

POSTGRES: dict[int, tuple[str, ...]] = {
    4: (
        """
        CREATE TABLE onefold_subscription (
            consumer text NOT NULL,
            topic    text NOT NULL,
            PRIMARY KEY (topic, consumer)
        )
        """,
        """
        CREATE TABLE onefold_delivery (
            position   bigint GENERATED ALWAYS AS IDENTITY,
            consumer   text    NOT NULL,
            id         text    NOT NULL,
            headers    text    NOT NULL,
            data       bytea   NOT NULL,
            taken      integer NOT NULL DEFAULT 0,
            holder     text,
            held_until timestamptz,
            PRIMARY KEY (consumer, position),
            UNIQUE (consumer, id)
        )
        """,
    ),
}

SQLITE: dict[int, tuple[str, ...]] = {
    4: (
        """
        CREATE TABLE onefold_subscription (
            consumer TEXT NOT NULL,
            topic    TEXT NOT NULL,
            PRIMARY KEY (topic, consumer)
        ) WITHOUT ROWID
        """,
        # AUTOINCREMENT: a receipt must never name another message than the one it was given for.
        """
        CREATE TABLE onefold_delivery (
            position      INTEGER PRIMARY KEY AUTOINCREMENT,
            consumer      TEXT    NOT NULL,
            id            TEXT    NOT NULL,
            headers       TEXT    NOT NULL,
            data          BLOB    NOT NULL,
            taken         INTEGER NOT NULL DEFAULT 0,
            holder        TEXT,
            held_until_ms INTEGER,
            UNIQUE (consumer, id)
        )
        """,
        "CREATE INDEX onefold_delivery_of_consumer ON onefold_delivery (consumer, position)",
    ),
}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}
