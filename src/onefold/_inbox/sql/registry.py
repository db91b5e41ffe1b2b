"""The statements of the registry of consumers: which processes run under a name, with which topics, and since when.

All times are the database's own, so that hosts whose clocks differ agree on who is alive.
"""

from __future__ import annotations

from onefold._inbox.sql.dialect import Dialect
from onefold._kernel.effects import Statement


class RegistryStatements:
    """The registry, in one dialect."""

    def __init__(self, d: Dialect) -> None:
        self._register = d.text(f"""
            INSERT INTO onefold_consumer (consumer, process, topics) VALUES ($1::text, $2::text, $3::text)
            ON CONFLICT (consumer, process) DO UPDATE
            SET topics = excluded.topics, seen_at = {d.now}, left_at = NULL
        """)
        self._note_ended = d.text(f"""
            UPDATE onefold_consumer SET left_at = {d.now}, seen_at = {d.now}
            WHERE consumer = $1::text AND process = $2::text
        """)
        self._members = d.text(f"""
            SELECT consumer, process, topics, {d.epoch_ms("started_at")}, {d.until("seen_at")}, left_at IS NOT NULL
            FROM onefold_consumer WHERE $1::text IS NULL OR consumer = $1::text ORDER BY consumer, started_at, process
        """)
        self._forget = d.text(f"""
            DELETE FROM onefold_consumer
            WHERE consumer = $1::text AND process IN (SELECT item FROM {d.items("$2::text")})
        """)
        self._named = d.text("""
            SELECT consumer FROM onefold_consumer UNION SELECT consumer FROM onefold_letter ORDER BY 1
        """)
        self._end = [
            d.text(f"""
                DELETE FROM {table} WHERE consumer = $1::text AND {key} IN (
                    SELECT {key} FROM {table} WHERE consumer = $1::text LIMIT $2::int)
            """)
            for table, key in (
                ("onefold_inbox", "message_id"),
                ("onefold_letter", "message_id"),
                ("onefold_progress", "stream"),
                ("onefold_consumer", "process"),
                ("onefold_pause", "consumer"),
            )
        ]

    def register(self, consumer: str, process: str, topics: str) -> Statement:
        """This process runs under this name; executed again and again, while it does."""
        return Statement(self._register, (consumer, process, topics))

    def note_ended(self, consumer: str, process: str) -> Statement:
        return Statement(self._note_ended, (consumer, process))

    def processes(self, consumer: str | None) -> Statement:
        return Statement(self._members, (consumer,))

    def forget(self, consumer: str, processes: str) -> Statement:
        return Statement(self._forget, (consumer, processes))

    def consumers(self) -> Statement:
        """The consumers that this database knows of."""
        return Statement(self._named)

    def end(self, consumer: str, limit: int) -> list[Statement]:
        """Delete some of what the database has of a consumer: of its ledger, its failed messages, its progress, its
        processes, its pause."""
        return [Statement(text, (consumer, limit)) for text in self._end]
