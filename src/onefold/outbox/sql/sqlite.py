"""The outbox on SQLite, where the one write lock keeps versions in order. Times are in milliseconds since 1970."""

from __future__ import annotations

import json
from collections.abc import Sequence

from onefold._kernel.dialects import SQLITE_NOW_MS as _NOW
from onefold._kernel.effects import Batch, Boundary, Fetch, Row, Statement, Step
from onefold.outbox.model import Draft
from onefold.outbox.sql.statements import Statements
from onefold.outbox.waiting import AT_HAND_MAX, COLUMNS, DIED_OF, Limits

#: A stream that starts over (its row was lost with a backup, or forgotten) starts a later epoch.
_COUNT = f"""
INSERT INTO onefold_stream (stream, epoch, version) VALUES (?1, {_NOW}, 1)
ON CONFLICT (stream) DO UPDATE SET version = version + 1
"""

_COLUMNS = "bucket, stream, id, source, topic, key, time, content_type, headers, data, due_at_ms, written_at_ms"

_WRITE = f"""
INSERT INTO onefold_outbox ({_COLUMNS}, epoch, version)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, {_NOW},
        (SELECT epoch FROM onefold_stream WHERE stream = ?2), (SELECT version FROM onefold_stream WHERE stream = ?2))
"""

# --- the relay ----------------------------------------------------------------------------------------------

#: Later than any clock: SQLite has no infinity among its integers.
NEVER_MS = 2**62

_LEASE = f"{_NOW} + ?2"

_SUSPECT = f"""
UPDATE onefold_outbox SET
    started = started + 1,
    due_at_ms = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN {NEVER_MS} ELSE due_at_ms END,
    error = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN ?2 ELSE error END
WHERE position IN (SELECT value FROM json_each(?1)) AND published_at_ms IS NULL
"""

_SET_ASIDE = f"""
SELECT id, topic FROM onefold_outbox
WHERE position IN (SELECT value FROM json_each(?1)) AND due_at_ms = {NEVER_MS}
"""

_READY = "published_at_ms IS NULL AND due_at_ms IS NULL"

_STOPPED = "s.stream IS NOT NULL AND s.published_at_ms IS NULL AND s.due_at_ms IS NOT NULL"

#: Whether there is anything to claim, without the write lock.
_PEEK = f"""
SELECT 1 FROM onefold_bucket AS b
WHERE b.relay = ?1 AND EXISTS (SELECT 1 FROM onefold_outbox AS w WHERE w.bucket = b.bucket AND {_READY})
LIMIT 1
"""

_PICK = f"""
WITH picked AS (
    SELECT bucket, {COLUMNS},
           row_number() OVER (ORDER BY position) AS place,
           count(*) FILTER (WHERE started > finished) OVER (ORDER BY position) AS suspects,
           sum(length(data)) OVER (ORDER BY position) AS bytes
    FROM onefold_outbox WHERE position IN (
        SELECT o.position FROM onefold_bucket AS b JOIN onefold_relay AS r ON r.relay = b.relay
        JOIN onefold_outbox AS o ON o.position IN (
            SELECT w.position FROM onefold_outbox AS w
            WHERE w.bucket = b.bucket AND w.published_at_ms IS NULL AND w.due_at_ms IS NULL
              AND NOT EXISTS (SELECT 1 FROM onefold_outbox AS s WHERE s.stream = w.stream AND {_STOPPED})
            ORDER BY w.position LIMIT ?2)
        WHERE b.relay = ?1))
SELECT bucket, {COLUMNS} FROM picked
WHERE place = 1 OR (suspects = 0 AND place <= ?3 AND bytes <= ?4) ORDER BY position
"""

_NOTE = f"UPDATE onefold_relay SET trying = ?3, leased_until_ms = {_LEASE} WHERE relay = ?1"

_PAST = f"published_at_ms IS NOT NULL AND published_at_ms < {_NOW} - ?1"

# --- what operators ask -----------------------------------------------------------------------------------------

_HELD_BACK = "published_at_ms IS NULL AND due_at_ms IS NOT NULL"

_CHOSEN = f"{_HELD_BACK} AND error IS NOT NULL AND id IN (SELECT value FROM json_each(?1))"

_THESE = "position IN (SELECT value FROM json_each(?1))"


class Sqlite(Statements):
    """What the outbox asks of SQLite."""

    #: Again, where the answer to the first time was lost.
    ENTER = f"""
INSERT INTO onefold_relay (relay, leased_until_ms) VALUES (?1, {_LEASE})
ON CONFLICT (relay) DO UPDATE SET leased_until_ms = excluded.leased_until_ms
"""

    RENEW = f"UPDATE onefold_relay SET leased_until_ms = {_LEASE} WHERE relay = ?1"

    BURY = f"DELETE FROM onefold_relay WHERE leased_until_ms < {_NOW} RETURNING trying"

    ASSIGN = """
UPDATE onefold_bucket SET relay = (SELECT value FROM json_each(?1) WHERE CAST(key AS INTEGER) = bucket)
WHERE bucket IN (SELECT CAST(key AS INTEGER) FROM json_each(?1))
"""

    FAIL = f"""
UPDATE onefold_outbox SET
    started = started + 1, finished = finished + 1,
    error = (SELECT value ->> 'error' FROM json_each(?2) WHERE value ->> 'position' = onefold_outbox.position),
    due_at_ms = {_NOW}
        + (SELECT value ->> 'wait_ms' FROM json_each(?2) WHERE value ->> 'position' = onefold_outbox.position)
WHERE position IN (SELECT value ->> 'position' FROM json_each(?2)) AND {_READY}
  AND EXISTS (SELECT 1 FROM onefold_relay WHERE relay = ?1)
"""

    NEXT_DUE = f"""
SELECT due_at_ms - {_NOW} FROM onefold_outbox
WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL AND due_at_ms < {NEVER_MS} ORDER BY due_at_ms LIMIT 1
"""

    RELEASE_DUE = f"""
UPDATE onefold_outbox SET due_at_ms = NULL WHERE position IN (
    SELECT position FROM onefold_outbox
    WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL AND due_at_ms <= {_NOW} ORDER BY due_at_ms LIMIT ?1)
"""

    FORGETTABLE = f"SELECT 1 FROM onefold_outbox WHERE {_PAST} LIMIT 1"

    FORGET = f"""
DELETE FROM onefold_outbox WHERE position IN (
    SELECT position FROM onefold_outbox WHERE {_PAST} ORDER BY published_at_ms LIMIT ?2)
"""

    PENDING = f"""
SELECT topic, count(*) FROM (SELECT topic FROM onefold_outbox WHERE {_READY} LIMIT ?1) GROUP BY topic ORDER BY topic
"""

    OLDEST = f"""
SELECT {_NOW} - min(o.written_at_ms) FROM onefold_bucket AS b JOIN onefold_outbox AS o ON o.position = (
    SELECT w.position FROM onefold_outbox AS w
    WHERE w.bucket = b.bucket AND w.published_at_ms IS NULL AND w.due_at_ms IS NULL ORDER BY w.position LIMIT 1)
"""

    DELAYED = f"""
SELECT count(*) FROM (SELECT 1 FROM onefold_outbox WHERE {_HELD_BACK} AND error IS NULL LIMIT ?1)
"""

    LIST_STOPPED = f"""
SELECT id, topic, key, started, error, CASE WHEN due_at_ms < {NEVER_MS} THEN due_at_ms - {_NOW} END
FROM onefold_outbox WHERE {_HELD_BACK} AND error IS NOT NULL ORDER BY due_at_ms LIMIT ?1
"""

    RELAYS_SEEN = f"""
SELECT relay, (SELECT count(*) FROM onefold_bucket AS b WHERE b.relay = r.relay), leased_until_ms - {_NOW}
FROM onefold_relay AS r ORDER BY relay
"""

    #: What was at hand when relays died stays suspect, with fewer deaths to its name.
    RETRY = f"UPDATE onefold_outbox SET due_at_ms = NULL, started = min(started, finished + 1) WHERE {_CHOSEN}"

    RETRY_TOPICS = f"""
UPDATE onefold_outbox SET due_at_ms = NULL
WHERE {_HELD_BACK} AND error IS NOT NULL AND due_at_ms < {NEVER_MS} AND topic IN (SELECT value FROM json_each(?1))
"""

    FORGET_TRYING = "UPDATE onefold_relay SET trying = '[]' WHERE relay = ?1"
    LEAVE = "DELETE FROM onefold_relay WHERE relay = ?1"
    DELETE = f"DELETE FROM onefold_outbox WHERE {_THESE}"
    KEEP = f"UPDATE onefold_outbox SET published_at_ms = {_NOW} WHERE {_THESE}"
    DISCARD = f"DELETE FROM onefold_outbox WHERE {_CHOSEN}"

    def write(self, draft: Draft) -> tuple[Statement, ...]:
        """Write an event; one with a key gets its version."""
        values = (
            draft.bucket, draft.stream, draft.id, draft.source, draft.topic, draft.key,
            draft.time, draft.content_type, draft.headers, draft.data, draft.due_ms,
        )  # fmt: skip
        count = () if draft.stream is None else (Statement(_COUNT, (draft.stream,)),)
        return (*count, Statement(_WRITE, values))

    def turn(self, lease_s: float) -> tuple[Step, ...]:
        """Nothing more: BEGIN takes the one write lock there is."""
        return ()

    async def suspect(self, positions: Sequence[int]) -> list[Row]:
        """These were at hand when a relay died; returned are those for which that was once too often."""
        found = self.positions(positions)
        await Batch((Statement(_SUSPECT, (found, DIED_OF)),))
        return await Fetch(Statement(_SET_ASIDE, (found,)))

    async def claim(self, relay: str, lease_s: float, limits: Limits) -> list[Row]:
        """Waiting rows of the relay's buckets, noted as tried."""
        if not await Fetch(Statement(_PEEK, (relay,))):
            return []
        await Batch((Boundary.BEGIN,))
        rows = await Fetch(Statement(_PICK, (relay, limits.per_bucket, limits.rows, limits.data_bytes)))
        note = Statement(_NOTE, (relay, round(lease_s * 1000), json.dumps([row[1] for row in rows])))
        await Batch((note, Boundary.COMMIT) if rows else (Boundary.ROLLBACK,))
        return rows

    def positions(self, positions: Sequence[int]) -> str:
        return json.dumps(positions)
