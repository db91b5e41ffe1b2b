"""onefold's tables for the inbox, as numbered migrations per dialect. A number, once released, never changes.

`onefold_inbox` is the ledger: a row says that this consumer handled this message (see `message_identity.py`).
`onefold_letter` holds the failed messages: not handled, and no longer at the broker. (The table, and the column
`letters` of `onefold_redrive`, keep their names: processes of the previous release use them during a rolling upgrade.)
A failed message is `waiting` until `due_at` (NULL: until its predecessor is handled) or `dead` until a person says what
to do. `started` and `failed` count runs; a failed message that was started more often than it failed was at hand when a
process died. `onefold_progress` is where an ordered consumer stands in a stream: version 0 means that nothing was
handled yet, and `settle_at` is when the smallest version at hand is taken as the beginning. `onefold_consumer` has a
row for each process that runs a consumer: see `registry.py`. A consumer with a row in `onefold_pause` is paused: see
`pausing.py`.
"""

from __future__ import annotations

from typing import Final

from onefold._kernel.audit import ABOUT_CHARS
from onefold._kernel.dialects import SQLITE_NOW_MS

#: The correlation id among the headers of a failed message. Cut, because an index of Postgres refuses
#: long values, and so the row.
TRACE_CHARS: Final = 200
#: By splitting, which takes 0.4 us for each row that is written; a regular expression takes 10 us.
POSTGRES_TRACE: Final = f"""
    left(CASE WHEN position('"correlation-id":' IN headers) > 0
        THEN split_part(split_part(headers, '"correlation-id":', 2), '"', 2) END, {TRACE_CHARS})
"""
SQLITE_TRACE: Final = f"""substr(
    CASE WHEN json_valid(headers) THEN json_extract(headers, '$."correlation-id"') END, 1, {TRACE_CHARS})"""

#: In the whole order of the list of dead letters: one that is to be sorted may be read to its end for each page.
_NEWEST_DEAD: Final = tuple(
    (
        "DROP INDEX onefold_letter_dead",
        f"CREATE INDEX onefold_letter_dead ON onefold_letter (consumer, {died}, message_id) WHERE state = 'dead'",
    )
    for died in ("died_at", "died_at_ms")
)

POSTGRES: dict[int, tuple[str, ...]] = {
    3: (
        """
        CREATE TABLE onefold_inbox (
            consumer   text        NOT NULL,
            message_id text        NOT NULL,
            handled_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (consumer, message_id)
        )
        """,
        "CREATE INDEX onefold_inbox_handled_at ON onefold_inbox (consumer, handled_at)",
        # One row per stream and consumer, updated in place by every message: room for that on its page.
        """
        CREATE TABLE onefold_progress (
            consumer  text   NOT NULL,
            stream    bytea  NOT NULL,
            epoch     bigint NOT NULL,
            version   bigint NOT NULL,
            settle_at timestamptz,
            PRIMARY KEY (consumer, stream)
        ) WITH (fillfactor = 70)
        """,
        """
        CREATE TABLE onefold_letter (
            consumer   text        NOT NULL,
            message_id text        NOT NULL,
            state      text        NOT NULL CHECK (state IN ('waiting', 'dead')),
            headers    text        NOT NULL,
            data       bytea       NOT NULL,
            body       bytea,
            envelope   text        NOT NULL,
            source     text,
            topic      text,
            key        text,
            stream     bytea,
            epoch      bigint,
            version    bigint,
            reason     text        NOT NULL,
            started    integer     NOT NULL,
            failed     integer     NOT NULL,
            history    text        NOT NULL,
            redrive    text,
            created_at timestamptz NOT NULL DEFAULT now(),
            due_at     timestamptz,
            died_at    timestamptz,
            PRIMARY KEY (consumer, message_id)
        )
        """,
        "CREATE INDEX onefold_letter_due ON onefold_letter (consumer, due_at) WHERE state = 'waiting'",
        "CREATE INDEX onefold_letter_dead ON onefold_letter (consumer, died_at) WHERE state = 'dead'",
        """
        CREATE INDEX onefold_letter_stream ON onefold_letter (consumer, stream, epoch, version)
        WHERE stream IS NOT NULL
        """,
        "CREATE INDEX onefold_letter_redrive ON onefold_letter (redrive) WHERE redrive IS NOT NULL",
        """
        CREATE TABLE onefold_redrive (
            id           text        NOT NULL PRIMARY KEY,
            consumer     text        NOT NULL,
            actor        text        NOT NULL,
            filter       text        NOT NULL,
            letters      integer     NOT NULL,
            started_at   timestamptz NOT NULL DEFAULT now(),
            cancelled_at timestamptz
        )
        """,
        """
        CREATE TABLE onefold_audit (
            id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            audit_at timestamptz NOT NULL DEFAULT now(),
            actor    text        NOT NULL,
            action   text        NOT NULL,
            consumer text        NOT NULL,
            details  text        NOT NULL
        )
        """,
    ),
    # NULL where the release before wrote the row, or a receiver that knows no source: see `message_identity.py`.
    7: ("ALTER TABLE onefold_inbox ADD COLUMN source text",),
    11: (
        """
        CREATE TABLE onefold_consumer (
            consumer   text        NOT NULL,
            process    text        NOT NULL,
            topics     text        NOT NULL,
            started_at timestamptz NOT NULL DEFAULT now(),
            seen_at    timestamptz NOT NULL DEFAULT now(),
            left_at    timestamptz,
            PRIMARY KEY (consumer, process)
        )
        """,
    ),
    13: (
        """
        CREATE TABLE onefold_pause (
            consumer  text        NOT NULL PRIMARY KEY,
            actor     text        NOT NULL,
            paused_at timestamptz NOT NULL DEFAULT now()
        )
        """,
    ),
    # Failed messages of one correlation id.
    21: (
        f"""
        CREATE INDEX onefold_letter_trace ON onefold_letter (({POSTGRES_TRACE})) WHERE {POSTGRES_TRACE} IS NOT NULL
        """,
        *_NEWEST_DEAD[0],
    ),
    # What was done to one thing, by the beginning of its line: see `find_audit`.
    23: (f"CREATE INDEX onefold_audit_about ON onefold_audit (action, left(details, {ABOUT_CHARS}))",),
}

#: SQLite's own clock, in milliseconds since 1970.
_NOW = f"({SQLITE_NOW_MS})"

SQLITE: dict[int, tuple[str, ...]] = {
    3: (
        f"""
        CREATE TABLE onefold_inbox (
            consumer      TEXT    NOT NULL,
            message_id    TEXT    NOT NULL,
            handled_at_ms INTEGER NOT NULL DEFAULT {_NOW},
            PRIMARY KEY (consumer, message_id)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX onefold_inbox_handled_at ON onefold_inbox (consumer, handled_at_ms)",
        """
        CREATE TABLE onefold_progress (
            consumer     TEXT    NOT NULL,
            stream       BLOB    NOT NULL,
            epoch        INTEGER NOT NULL,
            version      INTEGER NOT NULL,
            settle_at_ms INTEGER,
            PRIMARY KEY (consumer, stream)
        ) WITHOUT ROWID
        """,
        f"""
        CREATE TABLE onefold_letter (
            consumer      TEXT    NOT NULL,
            message_id    TEXT    NOT NULL,
            state         TEXT    NOT NULL CHECK (state IN ('waiting', 'dead')),
            headers       TEXT    NOT NULL,
            data          BLOB    NOT NULL,
            body          BLOB,
            envelope      TEXT    NOT NULL,
            source        TEXT,
            topic         TEXT,
            key           TEXT,
            stream        BLOB,
            epoch         INTEGER,
            version       INTEGER,
            reason        TEXT    NOT NULL,
            started       INTEGER NOT NULL,
            failed        INTEGER NOT NULL,
            history       TEXT    NOT NULL,
            redrive       TEXT,
            created_at_ms INTEGER NOT NULL DEFAULT {_NOW},
            due_at_ms     INTEGER,
            died_at_ms    INTEGER,
            PRIMARY KEY (consumer, message_id)
        )
        """,
        "CREATE INDEX onefold_letter_due ON onefold_letter (consumer, due_at_ms) WHERE state = 'waiting'",
        "CREATE INDEX onefold_letter_dead ON onefold_letter (consumer, died_at_ms) WHERE state = 'dead'",
        """
        CREATE INDEX onefold_letter_stream ON onefold_letter (consumer, stream, epoch, version)
        WHERE stream IS NOT NULL
        """,
        "CREATE INDEX onefold_letter_redrive ON onefold_letter (redrive) WHERE redrive IS NOT NULL",
        f"""
        CREATE TABLE onefold_redrive (
            id              TEXT    NOT NULL PRIMARY KEY,
            consumer        TEXT    NOT NULL,
            actor           TEXT    NOT NULL,
            filter          TEXT    NOT NULL,
            letters         INTEGER NOT NULL,
            started_at_ms   INTEGER NOT NULL DEFAULT {_NOW},
            cancelled_at_ms INTEGER
        ) WITHOUT ROWID
        """,
        f"""
        CREATE TABLE onefold_audit (
            id          INTEGER PRIMARY KEY AUTOINCREMENT,
            audit_at_ms INTEGER NOT NULL DEFAULT {_NOW},
            actor       TEXT    NOT NULL,
            action      TEXT    NOT NULL,
            consumer    TEXT    NOT NULL,
            details     TEXT    NOT NULL
        )
        """,
    ),
    7: ("ALTER TABLE onefold_inbox ADD COLUMN source TEXT",),
    11: (
        f"""
        CREATE TABLE onefold_consumer (
            consumer      TEXT    NOT NULL,
            process       TEXT    NOT NULL,
            topics        TEXT    NOT NULL,
            started_at_ms INTEGER NOT NULL DEFAULT {_NOW},
            seen_at_ms    INTEGER NOT NULL DEFAULT {_NOW},
            left_at_ms    INTEGER,
            PRIMARY KEY (consumer, process)
        ) WITHOUT ROWID
        """,
    ),
    13: (
        f"""
        CREATE TABLE onefold_pause (
            consumer     TEXT    NOT NULL PRIMARY KEY,
            actor        TEXT    NOT NULL,
            paused_at_ms INTEGER NOT NULL DEFAULT {_NOW}
        ) WITHOUT ROWID
        """,
    ),
    21: (
        f"CREATE INDEX onefold_letter_trace ON onefold_letter ({SQLITE_TRACE}) WHERE {SQLITE_TRACE} IS NOT NULL",
        *_NEWEST_DEAD[1],
    ),
    23: (f"CREATE INDEX onefold_audit_about ON onefold_audit (action, substr(details, 1, {ABOUT_CHARS}))",),
}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}
