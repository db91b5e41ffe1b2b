"""onefold's tables for the outbox, as numbered migrations per dialect. A number, once released, never changes.

A row of `onefold_outbox` is waiting while `published_at` is NULL. `due_at` is NULL while nothing speaks against sending
it now: else it was published for later, or failed and is tried again then (`infinity`: only when a person says so).
`started` and `finished` count attempts; a row that was started more often than finished was at hand when a relay died.
`died_at` is when it became a dead letter, which only a person moves. `destination` is where it goes, where that is not
its topic: one of the endpoints it was split for.
A bucket belongs to the relay it names for as long as that relay's own lease lasts.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

#: Into how many parts the relays divide the work. Streams stay whole: a stream's bucket follows from its digest.
BUCKETS: Final = 64


def bucket_of(event_id: str, stream: bytes | None) -> int:
    """Streams stay whole, events without a key spread evenly."""
    digest = stream or blake2b(event_id.encode(), digest_size=1).digest()
    return digest[0] % BUCKETS


#: What an event is followed by: its correlation id, or else its own id. Cut, because an index of Postgres refuses long
#: values, and so the row; and read only where it can be, because a row that cannot is to be marked as such.
TRACE_CHARS: Final = 200
#: By splitting, which takes 0.4 us for each row that is written; a regular expression takes 10 us.
POSTGRES_TRACE: Final = f"""
    left(coalesce(CASE WHEN position('"correlation-id":' IN headers) > 0
        THEN split_part(split_part(headers, '"correlation-id":', 2), '"', 2) END, id), {TRACE_CHARS})
"""
SQLITE_TRACE: Final = f"""
    substr(coalesce(
        CASE WHEN json_valid(headers) THEN json_extract(headers, '$."correlation-id"') END, id), 1, {TRACE_CHARS})
"""

#: Recurring events, and when each is due next.
_SCHEDULES: Final = """
    CREATE TABLE onefold_schedule (
        name     text   NOT NULL PRIMARY KEY,
        rule     text   NOT NULL,
        due_ms   bigint NOT NULL,
        fired_ms bigint
    )
"""

POSTGRES: dict[int, tuple[str, ...]] = {
    2: (
        # One row per (source, topic, key), updated in place by every event of that key: room for that on its page.
        """
        CREATE TABLE onefold_stream (
            stream  bytea  NOT NULL PRIMARY KEY,
            epoch   bigint NOT NULL,
            version bigint NOT NULL
        ) WITH (fillfactor = 70)
        """,
        """
        CREATE TABLE onefold_outbox (
            position     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            bucket       smallint    NOT NULL,
            stream       bytea,
            id           text        NOT NULL,
            source       text        NOT NULL,
            topic        text        NOT NULL,
            key          text,
            epoch        bigint,
            version      bigint,
            time         text        NOT NULL,
            content_type text        NOT NULL,
            headers      text        NOT NULL,
            data         bytea       NOT NULL,
            written_at   timestamptz NOT NULL DEFAULT now(),
            due_at       timestamptz,
            started      integer     NOT NULL DEFAULT 0,
            finished     integer     NOT NULL DEFAULT 0,
            error        text,
            published_at timestamptz
        )
        """,
        """
        CREATE INDEX onefold_outbox_ready ON onefold_outbox (bucket, position)
        WHERE published_at IS NULL AND due_at IS NULL
        """,
        """
        CREATE INDEX onefold_outbox_due ON onefold_outbox (due_at)
        WHERE published_at IS NULL AND due_at IS NOT NULL
        """,
        """
        CREATE INDEX onefold_outbox_stopped ON onefold_outbox (stream)
        WHERE published_at IS NULL AND due_at IS NOT NULL AND stream IS NOT NULL
        """,
        "CREATE INDEX onefold_outbox_published ON onefold_outbox (published_at) WHERE published_at IS NOT NULL",
        """
        CREATE TABLE onefold_relay (
            relay        text        NOT NULL PRIMARY KEY,
            leased_until timestamptz NOT NULL,
            trying       bigint[]    NOT NULL DEFAULT '{}'
        )
        """,
        # Written with every claim: compressing it would cost more than the rest of the claim.
        "ALTER TABLE onefold_relay ALTER COLUMN trying SET STORAGE EXTERNAL",
        "CREATE TABLE onefold_bucket (bucket smallint NOT NULL PRIMARY KEY, relay text)",
        f"INSERT INTO onefold_bucket (bucket) SELECT generate_series(0, {BUCKETS - 1})",
    ),
    6: (
        "ALTER TABLE onefold_outbox ADD COLUMN destination text, ADD COLUMN died_at timestamptz",
        # What waits, by destination and stream: a claim steps from stream to stream by it, whatever stands behind each.
        """
        CREATE INDEX onefold_outbox_turns ON onefold_outbox
            (bucket, (coalesce(destination, topic)), (coalesce(stream, ''::bytea)), position)
        WHERE published_at IS NULL AND due_at IS NULL
        """,
        # How a backlog is spread over buckets is another thing every minute: a plan made from what ANALYZE saw of it
        # would be wrong most of the time. The release before plans its claim by it.
        "ALTER TABLE onefold_outbox ALTER COLUMN bucket TYPE smallint",  # forgets what ANALYZE saw so far
        "ALTER TABLE onefold_outbox ALTER COLUMN bucket SET STATISTICS 0",
    ),
    # Events that wait are cancelled by their id.
    12: (
        """
        CREATE INDEX onefold_outbox_delayed ON onefold_outbox (id)
        WHERE published_at IS NULL AND due_at IS NOT NULL
        """,
    ),
    14: (_SCHEDULES,),
    20: (
        # For people who look for what is stuck.
        """
        CREATE INDEX onefold_outbox_refused ON onefold_outbox (due_at, position)
        WHERE published_at IS NULL AND due_at IS NOT NULL AND error IS NOT NULL
        """,
        # Not of what is about to leave: most events are deleted a moment after they were written, and an entry in one
        # more index would be made for nothing.
        f"""
        CREATE INDEX onefold_outbox_trace ON onefold_outbox (({POSTGRES_TRACE}))
        WHERE published_at IS NOT NULL OR due_at IS NOT NULL
        """,
    ),
}

SQLITE: dict[int, tuple[str, ...]] = {
    2: (
        """
        CREATE TABLE onefold_stream (
            stream  BLOB    NOT NULL PRIMARY KEY,
            epoch   INTEGER NOT NULL,
            version INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        # AUTOINCREMENT: a position is never given out again, also after the last row was deleted.
        """
        CREATE TABLE onefold_outbox (
            position        INTEGER PRIMARY KEY AUTOINCREMENT,
            bucket          INTEGER NOT NULL,
            stream          BLOB,
            id              TEXT    NOT NULL,
            source          TEXT    NOT NULL,
            topic           TEXT    NOT NULL,
            key             TEXT,
            epoch           INTEGER,
            version         INTEGER,
            time            TEXT    NOT NULL,
            content_type    TEXT    NOT NULL,
            headers         TEXT    NOT NULL,
            data            BLOB    NOT NULL,
            written_at_ms   INTEGER NOT NULL,
            due_at_ms       INTEGER,
            started         INTEGER NOT NULL DEFAULT 0,
            finished        INTEGER NOT NULL DEFAULT 0,
            error           TEXT,
            published_at_ms INTEGER
        )
        """,
        """
        CREATE INDEX onefold_outbox_ready ON onefold_outbox (bucket, position)
        WHERE published_at_ms IS NULL AND due_at_ms IS NULL
        """,
        """
        CREATE INDEX onefold_outbox_due ON onefold_outbox (due_at_ms)
        WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL
        """,
        """
        CREATE INDEX onefold_outbox_stopped ON onefold_outbox (stream)
        WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL AND stream IS NOT NULL
        """,
        "CREATE INDEX onefold_outbox_published ON onefold_outbox (published_at_ms) WHERE published_at_ms IS NOT NULL",
        """
        CREATE TABLE onefold_relay (
            relay           TEXT    NOT NULL PRIMARY KEY,
            leased_until_ms INTEGER NOT NULL,
            trying          TEXT    NOT NULL DEFAULT '[]'
        ) WITHOUT ROWID
        """,
        "CREATE TABLE onefold_bucket (bucket INTEGER NOT NULL PRIMARY KEY, relay TEXT)",
        f"""
        WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {BUCKETS - 1})
        INSERT INTO onefold_bucket (bucket) SELECT n FROM numbers
        """,
    ),
    6: (
        "ALTER TABLE onefold_outbox ADD COLUMN destination TEXT",
        "ALTER TABLE onefold_outbox ADD COLUMN died_at_ms INTEGER",
        """
        CREATE INDEX onefold_outbox_turns ON onefold_outbox
            (bucket, coalesce(destination, topic), coalesce(stream, x''), position)
        WHERE published_at_ms IS NULL AND due_at_ms IS NULL
        """,
    ),
    12: (
        """
        CREATE INDEX onefold_outbox_delayed ON onefold_outbox (id)
        WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL
        """,
    ),
    14: (_SCHEDULES,),
    20: (
        """
        CREATE INDEX onefold_outbox_refused ON onefold_outbox (due_at_ms, position)
        WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL AND error IS NOT NULL
        """,
        f"""
        CREATE INDEX onefold_outbox_trace ON onefold_outbox ({SQLITE_TRACE})
        WHERE published_at_ms IS NOT NULL OR due_at_ms IS NOT NULL
        """,
    ),
}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}
