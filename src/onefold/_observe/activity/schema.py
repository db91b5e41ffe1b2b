"""onefold's table of the activity history, as a numbered migration per dialect. A number, once released, never changes.

A row is what one process has counted of one series in one span, from `since_s` (seconds since 1970) on. Each span is
there three times: as a minute, for the last hours, and as a part of its hour and of its quarter of a day, for the last
days. A process writes what it has counted in a span so far, and never a difference: to write it again is harmless.
"""

from __future__ import annotations

from typing import Final

_KEY: Final = "span_s, since_s, instrument, labels, process"

POSTGRES: dict[int, tuple[str, ...]] = {
    # A row is updated in place for as long as its span lasts: room for that on its page.
    19: (
        f"""
        CREATE TABLE onefold_activity (
            span_s     integer NOT NULL,
            since_s    bigint  NOT NULL,
            instrument text    NOT NULL,
            labels     text    NOT NULL,
            process    text    NOT NULL,
            amount     bigint  NOT NULL,
            PRIMARY KEY ({_KEY})
        ) WITH (fillfactor = 70)
        """,
    ),
}

SQLITE: dict[int, tuple[str, ...]] = {
    19: (
        f"""
        CREATE TABLE onefold_activity (
            span_s     INTEGER NOT NULL,
            since_s    INTEGER NOT NULL,
            instrument TEXT    NOT NULL,
            labels     TEXT    NOT NULL,
            process    TEXT    NOT NULL,
            amount     INTEGER NOT NULL,
            PRIMARY KEY ({_KEY})
        ) WITHOUT ROWID
        """,
    ),
}

MIGRATIONS = {"postgres": POSTGRES, "sqlite": SQLITE}
