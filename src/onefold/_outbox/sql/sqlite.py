"""The outbox on SQLite, where the one write lock keeps versions in order. Times are in milliseconds since 1970."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from onefold._kernel.clock import milliseconds
from onefold._kernel.dialects import SQLITE_NOW_MS as _NOW
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Row, Statement
from onefold._kernel.messages import Message
from onefold._outbox.claimed_rows import AT_HAND_MAX, DIED_OF, Limits, TourPosition
from onefold._outbox.event_checks import write_headers
from onefold._outbox.schema import bucket_of
from onefold._outbox.sql.sqlite_claims import PEEK, scan, tour
from onefold._outbox.sql.statements import Statements

_CONTENT = "id, source, topic, key, epoch, version, time, content_type, headers, data"

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

_ANY_DEAD = f"SELECT 1 FROM onefold_relay WHERE leased_until_ms < {_NOW} LIMIT 1"

_EXPIRE_DEAD = f"DELETE FROM onefold_relay WHERE leased_until_ms < {_NOW} RETURNING trying"

_SUSPECT = f"""
UPDATE onefold_outbox SET
    started = started + 1,
    due_at_ms = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN {NEVER_MS} ELSE due_at_ms END,
    error = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN ?2 ELSE error END,
    died_at_ms = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN {_NOW} END
WHERE position IN (SELECT value FROM json_each(?1)) AND published_at_ms IS NULL
"""

_SET_ASIDE = f"""
SELECT id, topic FROM onefold_outbox
WHERE position IN (SELECT value FROM json_each(?1)) AND due_at_ms = {NEVER_MS}
"""

_READY = "published_at_ms IS NULL AND due_at_ms IS NULL"

_NOTE = f"UPDATE onefold_relay SET trying = ?3, leased_until_ms = {_LEASE} WHERE relay = ?1"

_PAST = f"published_at_ms IS NOT NULL AND published_at_ms < {_NOW} - ?1"

# --- queries of operators ---------------------------------------------------------------------------------------

_HELD_BACK = "published_at_ms IS NULL AND due_at_ms IS NOT NULL"

_FITS = f"""
{_HELD_BACK} AND error IS NOT NULL
AND (?1 IS NULL OR id IN (SELECT value FROM json_each(?1)))
AND (?2 IS NULL OR topic = ?2)
AND (?3 IS NULL OR instr(error, ?3) > 0)
AND (?4 IS NULL OR destination = ?4)
AND (?5 IS NULL OR died_at_ms >= ?5)
AND (?6 = 0 OR due_at_ms = {NEVER_MS})
AND (?7 IS NULL OR died_at_ms < ?7)
"""

_STOPPED_COLUMNS = f"""
SELECT id, topic, key, started, error, CASE WHEN due_at_ms < {NEVER_MS} THEN due_at_ms - {_NOW} END, destination
FROM onefold_outbox
"""

_CHOSEN = f"position IN (SELECT position FROM onefold_outbox WHERE {_FITS} ORDER BY due_at_ms LIMIT ?8)"

_THESE = "position IN (SELECT value FROM json_each(?1))"


class Sqlite(Statements):
    """The statements of the outbox on SQLite."""

    #: Again, where the answer to the first time was lost.
    ENTER = f"""
INSERT INTO onefold_relay (relay, leased_until_ms) VALUES (?1, {_LEASE})
ON CONFLICT (relay) DO UPDATE SET leased_until_ms = excluded.leased_until_ms
"""

    RENEW = f"UPDATE onefold_relay SET leased_until_ms = {_LEASE} WHERE relay = ?1"

    SHARES = f"""
SELECT NULL, relay FROM onefold_relay WHERE leased_until_ms >= {_NOW} OR relay = ?1
UNION ALL SELECT bucket, relay FROM onefold_bucket
"""

    ASSIGN = """
UPDATE onefold_bucket SET relay = g.taker
FROM (
    SELECT CAST(key AS INTEGER) AS number, json_extract(value, '$[0]') AS owner, json_extract(value, '$[1]') AS taker
    FROM json_each(?1)) AS g
WHERE bucket = g.number AND relay IS g.owner
"""

    FAIL = f"""
UPDATE onefold_outbox SET
    started = started + f.counted, finished = finished + f.counted, error = f.error,
    due_at_ms = coalesce({_NOW} + f.wait_ms, {NEVER_MS}),
    died_at_ms = CASE WHEN f.wait_ms IS NULL THEN {_NOW} END
FROM (
    SELECT json_extract(value, '$.position') AS position, json_extract(value, '$.error') AS error,
           json_extract(value, '$.wait_ms') AS wait_ms, json_extract(value, '$.counted') AS counted
    FROM json_each(?2)) AS f
WHERE onefold_outbox.position = f.position AND {_READY}
  AND EXISTS (SELECT 1 FROM onefold_relay WHERE relay = ?1)
"""

    NEXT_DUE = f"""
SELECT due_at_ms - {_NOW} FROM onefold_outbox
WHERE published_at_ms IS NULL AND due_at_ms IS NOT NULL AND due_at_ms < {NEVER_MS} ORDER BY due_at_ms LIMIT 1
"""

    MAKE_DUE_CLAIMABLE = f"""
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
SELECT topic, destination, count(*) FROM (SELECT topic, destination FROM onefold_outbox WHERE {_READY} LIMIT ?1)
GROUP BY topic, destination ORDER BY topic, destination
"""

    OLDEST = f"""
SELECT {_NOW} - min(o.written_at_ms) FROM onefold_bucket AS b JOIN onefold_outbox AS o ON o.position = (
    SELECT w.position FROM onefold_outbox AS w
    WHERE w.bucket = b.bucket AND w.published_at_ms IS NULL AND w.due_at_ms IS NULL ORDER BY w.position LIMIT 1)
"""

    DELAYED = f"""
SELECT count(*) FROM (SELECT 1 FROM onefold_outbox WHERE {_HELD_BACK} AND error IS NULL LIMIT ?1)
"""

    LIST_STOPPED = f"{_STOPPED_COLUMNS} WHERE {_FITS} ORDER BY due_at_ms LIMIT ?8"

    ALL_STOPPED = f"""
{_STOPPED_COLUMNS} WHERE {_HELD_BACK} AND error IS NOT NULL ORDER BY due_at_ms, position LIMIT ?1
"""

    RELAYS_SEEN = f"""
SELECT relay, (SELECT count(*) FROM onefold_bucket AS b WHERE b.relay = r.relay), leased_until_ms - {_NOW}
FROM onefold_relay AS r ORDER BY relay
"""

    #: Attempts begin anew. What was at hand when relays died stays suspect, with fewer deaths to its name.
    RETRY = f"""
UPDATE onefold_outbox
SET due_at_ms = NULL, died_at_ms = NULL, started = min(started - finished, 1), finished = 0 WHERE {_CHOSEN}
"""

    RETRY_TOPICS = f"""
UPDATE onefold_outbox SET due_at_ms = NULL, died_at_ms = NULL, started = 0, finished = 0
WHERE {_HELD_BACK} AND error IS NOT NULL AND started = finished AND topic IN (SELECT value FROM json_each(?1))
"""

    STOPPED_TOPICS = f"SELECT DISTINCT topic FROM onefold_outbox WHERE {_HELD_BACK} AND error IS NOT NULL"

    FORGET_TRYING = "UPDATE onefold_relay SET trying = '[]' WHERE relay = ?1"
    COPYABLE = f"""
SELECT position FROM onefold_outbox
WHERE {_THESE} AND published_at_ms IS NULL AND destination IS NULL ORDER BY position
"""
    COPY = f"""
INSERT INTO onefold_outbox (bucket, stream, {_CONTENT}, written_at_ms, destination)
SELECT bucket, ?2, {_CONTENT}, written_at_ms, ?3 FROM onefold_outbox WHERE position = ?1
"""
    LEAVE = "DELETE FROM onefold_relay WHERE relay = ?1"
    DELETE = f"DELETE FROM onefold_outbox WHERE {_THESE}"
    KEEP = f"UPDATE onefold_outbox SET published_at_ms = {_NOW} WHERE {_THESE}"
    DISCARD = f"DELETE FROM onefold_outbox WHERE {_CHOSEN}"
    CANCEL = f"""
DELETE FROM onefold_outbox WHERE id = ?1 AND {_HELD_BACK} AND error IS NULL AND started = 0
"""

    def write(self, event: Message, due_ms: int | None = None) -> tuple[Statement, ...]:
        """Write an event; one with a key gets its version."""
        stream = event.stream
        values = (
            bucket_of(event.id, stream), stream, event.id, event.source, event.topic, event.key,
            event.time, event.content_type, write_headers(event.headers), event.data, due_ms,
        )  # fmt: skip
        count = () if stream is None else (Statement(_COUNT, (stream,)),)
        return (*count, Statement(_WRITE, values))

    def cancel(self, event_id: str) -> tuple[BatchItem, ...]:
        """It may be the first that is written in its transaction, which begins then."""
        return (Boundary.BEGIN, *super().cancel(event_id))

    def turn(self, lease_s: float) -> tuple[BatchItem, ...]:
        """Nothing more: BEGIN takes the one write lock there is."""
        return ()

    def limit_transaction(self, lease_s: float) -> tuple[BatchItem, ...]:
        """Nothing bounds it: a stopped process holds the file."""
        return ()

    async def expire_dead(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Remove the relays whose lease ran out. As a rule there is none, and then the write lock is not taken."""
        if not await Fetch(Statement(_ANY_DEAD)):
            return 0, ()
        await Batch((Boundary.BEGIN,))
        expired = await Fetch(Statement(_EXPIRE_DEAD))
        found = self.positions([position for (trying,) in expired for position in json.loads(trying)])
        await Batch((Statement(_SUSPECT, (found, DIED_OF)),))
        aside = await Fetch(Statement(_SET_ASIDE, (found,)))
        await Batch((Boundary.COMMIT,))
        return len(expired), tuple((id_, topic) for id_, topic in aside)

    async def scan(self, relay: str, lease_s: float, limits: Limits, paused: Collection[str]) -> list[Row]:
        """The oldest rows of the relay's buckets, noted as tried."""
        return await self._claim(scan(relay, limits, paused), relay, lease_s)

    async def tour(
        self, relay: str, lease_s: float, limits: Limits, paused: Collection[str], start: TourPosition
    ) -> list[Row]:
        """Rows of one stream after the other of the relay's buckets, noted as tried."""
        return await self._claim(tour(relay, limits, paused, start), relay, lease_s)

    async def _claim(self, claim: Statement, relay: str, lease_s: float) -> list[Row]:
        if not await Fetch(Statement(PEEK, (relay,))):
            return []
        await Batch((Boundary.BEGIN,))
        rows = await Fetch(claim)
        tried = [row[1] for row in rows if row[1] is not None]
        note = Statement(_NOTE, (relay, milliseconds(lease_s), json.dumps(tried)))
        await Batch((note, Boundary.COMMIT) if tried else (Boundary.ROLLBACK,))
        return rows

    def positions(self, positions: Sequence[int]) -> str:
        return json.dumps(positions)
