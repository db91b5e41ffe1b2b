"""The statements of catching up: the failed messages of one stream, many at a time. Ids come as a JSON array."""

from __future__ import annotations

from onefold._inbox.sql.dialect import Dialect, failed_columns, mine
from onefold._kernel.effects import Statement


class Runs:
    """The statements of one dialect."""

    def __init__(self, d: Dialect) -> None:
        these = f"consumer = $1::text AND message_id IN (SELECT item FROM {d.items('$2::text')})"
        stream = "consumer = $1::text AND stream = $2::bytea"
        self._stands = d.text(f"""
            SELECT 1 FROM onefold_progress WHERE {stream} AND epoch = $3::bigint AND version = $4::bigint
        """)
        # Read from behind the last that was handled: what was deleted in front of it is not walked over. A failed
        # message with a time of its own has failed, or is redriven at a rate; any other waits for its predecessor only.
        self._take = d.text(f"""
            WITH free AS (
                SELECT message_id, version FROM onefold_letter
                WHERE {stream} AND epoch = $3::bigint AND version > $4::bigint AND state = 'waiting'
                  AND started <= failed
                  AND (due_at IS NULL OR due_at <= {d.now} OR (failed = 0 AND redrive IS NULL))
                ORDER BY version LIMIT $6::int {d.lock_free})
            UPDATE onefold_letter SET started = started + 1, due_at = {d.in_ms("$5::bigint")}
            WHERE consumer = $1::text AND message_id IN (
                SELECT message_id FROM (
                    SELECT message_id, version, row_number() OVER (ORDER BY version) AS place FROM free
                ) AS placed WHERE version = ($4::bigint + place))
            RETURNING {failed_columns(d)}
        """)
        self._write = d.text(f"""
            INSERT INTO onefold_inbox (consumer, message_id, source)
            SELECT $1::text, item, $3::text FROM {d.items("$2::text")}
        """)
        self._drop = d.text(f"DELETE FROM onefold_letter WHERE {these}")
        each = ("each.name", "each.apart", "each.source")
        self._known = d.text(f"""
            SELECT each.name FROM {d.identities("$2::text")}
            WHERE {mine("onefold_letter", each)} OR {mine("onefold_inbox", each)}
        """)

    def stands(self, consumer: str, stream: bytes, epoch: int, version: int) -> Statement:
        """A row if the stream stands there."""
        return Statement(self._stands, (consumer, stream, epoch, version))

    def take(self, consumer: str, stream: bytes, epoch: int, version: int, lease_ms: int, limit: int) -> Statement:
        """Start the failed messages that follow this version without a gap."""
        return Statement(self._take, (consumer, stream, epoch, version, lease_ms, limit))

    def write(self, consumer: str, ids: str, source: str | None) -> Statement:
        """Their ledger rows; one that is there already breaks the transaction."""
        return Statement(self._write, (consumer, ids, source))

    def drop(self, consumer: str, ids: str) -> Statement:
        return Statement(self._drop, (consumer, ids))

    def known(self, consumer: str, those: str) -> Statement:
        """Of a JSON array of identities the names of those that were handled or are kept."""
        return Statement(self._known, (consumer, those))
