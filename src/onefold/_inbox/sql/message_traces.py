"""Where messages have gone, as statements: by their names over all consumers, and by their correlation id."""

from __future__ import annotations

from typing import Final

from onefold._inbox.schema import POSTGRES_TRACE, SQLITE_TRACE, TRACE_CHARS
from onefold._inbox.sql.dialect import Dialect, failed_columns
from onefold._inbox.sql.postgres import Postgres
from onefold._inbox.sql.sqlite import Sqlite
from onefold._kernel.dialects import begin_in_json
from onefold._kernel.effects import Statement

CONSUMERS_MAX: Final = 200
NAMES_MAX: Final = 10_000


class TraceStatements:
    """The statement set of one dialect."""

    def __init__(self, d: Dialect, trace: str) -> None:
        # From one name to the next by the index: DISTINCT would walk through all rows.
        self._consumers = d.text(f"""
            WITH RECURSIVE found AS (
                SELECT min(consumer) AS consumer FROM onefold_inbox
                UNION ALL
                SELECT (SELECT min(consumer) FROM onefold_inbox WHERE onefold_inbox.consumer > found.consumer)
                FROM found WHERE found.consumer IS NOT NULL
            )
            SELECT consumer FROM found WHERE consumer IS NOT NULL LIMIT {CONSUMERS_MAX}
        """)
        # With a LIMIT a list is an array on Postgres, each item of which is looked up by the key: see `pg_catalog.py`.
        self._handled = d.text(f"""
            SELECT consumer, message_id, {d.epoch_ms("handled_at")} FROM onefold_inbox
            WHERE consumer IN (SELECT item FROM {d.items("$1::text")} LIMIT $3::int)
              AND message_id IN (SELECT item FROM {d.items("$2::text")} LIMIT $3::int) LIMIT $4::int
        """)
        self._failed = d.text(f"""
            SELECT {failed_columns(d)}, consumer FROM onefold_letter
            WHERE consumer IN (SELECT item FROM {d.items("$1::text")} LIMIT $3::int)
              AND message_id IN (SELECT item FROM {d.items("$2::text")} LIMIT $3::int) LIMIT $4::int
        """)
        self._correlated = d.text(f"""
            SELECT {failed_columns(d)}, consumer FROM onefold_letter
            WHERE {trace} IS NOT NULL AND {trace} IN ($1::text, $2::text) LIMIT $3::int
        """)

    def consumers(self) -> Statement:
        """Those that have handled something."""
        return Statement(self._consumers)

    def handled(self, consumers: str, names: str, limit: int) -> Statement:
        """Ledger rows of these messages."""
        return Statement(self._handled, (consumers, names, NAMES_MAX, limit))

    def failed(self, consumers: str, names: str, limit: int) -> Statement:
        """Failed messages of these names."""
        return Statement(self._failed, (consumers, names, NAMES_MAX, limit))

    def correlated(self, correlation: str, limit: int) -> Statement:
        """Failed messages of this correlation id, and some whose ids begin like it: see `begin_in_json`."""
        names = (correlation[:TRACE_CHARS], begin_in_json(correlation)[:TRACE_CHARS])
        return Statement(self._correlated, (*names, limit))


TRACES: Final = {
    "postgres": TraceStatements(Postgres(), POSTGRES_TRACE),
    "sqlite": TraceStatements(Sqlite(), SQLITE_TRACE),
}
