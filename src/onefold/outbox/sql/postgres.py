"""The outbox on Postgres.

An event with a key is written in one statement with its version: the stream's row stays locked until COMMIT, so
versions become visible in their order, and positions, drawn under that lock, rise with them.

Whoever locks a relay's row and rows of the outbox in one transaction locks the relay's first.
"""

from __future__ import annotations

from collections.abc import Sequence

from onefold._kernel.effects import Fetch, Row, Statement, Step
from onefold.outbox.model import Draft
from onefold.outbox.sql.statements import Statements
from onefold.outbox.waiting import AT_HAND_MAX, COLUMNS, DIED_OF, Limits

_COLUMNS = "bucket, stream, id, source, topic, key, time, content_type, headers, data, due_at"

#: A stream that starts over (its row was lost with a backup, or forgotten) starts a later epoch.
_WRITE_KEYED = f"""
WITH counted AS (
    INSERT INTO onefold_stream AS s (stream, epoch, version)
    VALUES ($2::bytea, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, 1)
    ON CONFLICT (stream) DO UPDATE SET version = s.version + 1
    RETURNING epoch, version)
INSERT INTO onefold_outbox ({_COLUMNS}, epoch, version)
SELECT $1::smallint, $2::bytea, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text, $10::bytea,
       NULL, epoch, version
FROM counted
"""

_WRITE = f"""
INSERT INTO onefold_outbox ({_COLUMNS})
VALUES ($1::smallint, NULL, $2::text, $3::text, $4::text, NULL, $5::text, $6::text, $7::text, $8::bytea,
        to_timestamp($9::bigint / 1000.0))
"""

# --- the relay ----------------------------------------------------------------------------------------------

#: Who tends holds an advisory lock until COMMIT (any number will do, if it is always the same), and for no longer than
#: a lease, even if it stands still: all others wait for it, and no longer than that.
_BOUNDED = """
SELECT set_config('lock_timeout', $1::text, true), set_config('idle_in_transaction_session_timeout', $1::text, true)
"""
_LOCK = Statement("SELECT pg_advisory_xact_lock(6018373285120474114)")

_LEASE = "clock_timestamp() + $2::bigint * interval '1 millisecond'"

_SUSPECT = f"""
WITH suspected AS (
    UPDATE onefold_outbox SET
        started = started + 1,
        due_at = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN 'infinity' ELSE due_at END,
        error = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN $2::text ELSE error END
    WHERE position = ANY ($1::text::bigint[]) AND published_at IS NULL
    RETURNING id, topic, due_at)
SELECT id, topic FROM suspected WHERE due_at = 'infinity'
"""


#: One round trip. What is noted as tried is exactly what is returned, and nothing is returned to a relay whose row is
#: gone. The rows of a bucket must come from the ready index in their order, and stopped streams be looked up one by
#: one, also where the statistics are of better days. So the planner does not see how large the LIMIT is (it would
#: rather sort a backlog that it takes for small), and OFFSET 0 keeps it from making a join.
_CLAIM = f"""
WITH picked AS (
    SELECT o.*,
           row_number() OVER so_far AS place,
           count(*) FILTER (WHERE started > finished) OVER so_far AS suspects,
           sum(octet_length(data)) OVER so_far AS bytes
    FROM onefold_bucket AS b
    CROSS JOIN LATERAL (
        SELECT bucket, {COLUMNS} FROM onefold_outbox AS w
        WHERE w.bucket = b.bucket AND w.published_at IS NULL AND w.due_at IS NULL
          AND NOT EXISTS (
              SELECT FROM onefold_outbox AS s
              WHERE s.stream = w.stream AND s.stream IS NOT NULL AND s.published_at IS NULL AND s.due_at IS NOT NULL
              OFFSET 0)
        ORDER BY w.position LIMIT (SELECT $3::integer)) AS o
    WHERE b.relay = $1::text
    WINDOW so_far AS (ORDER BY position ROWS UNBOUNDED PRECEDING)),
taken AS MATERIALIZED (
    SELECT * FROM picked WHERE place = 1 OR (suspects = 0 AND place <= $4::integer AND bytes <= $5::bigint)),
noted AS (
    UPDATE onefold_relay SET trying = (SELECT array_agg(position) FROM taken), leased_until = {_LEASE}
    WHERE relay = $1::text AND EXISTS (SELECT FROM taken)
    RETURNING relay)
SELECT bucket, {COLUMNS} FROM taken CROSS JOIN noted ORDER BY position
"""

_PAST = "published_at IS NOT NULL AND published_at < now() - $1::bigint * interval '1 millisecond'"

# --- what operators ask -----------------------------------------------------------------------------------------

_READY = "published_at IS NULL AND due_at IS NULL"

_STOPPED = "published_at IS NULL AND due_at IS NOT NULL AND error IS NOT NULL"

_CHOSEN = f"{_STOPPED} AND id IN (SELECT json_array_elements_text($1::text::json))"


class Postgres(Statements):
    """What the outbox asks of Postgres."""

    #: Again, where the answer to the first time was lost.
    ENTER = f"""
INSERT INTO onefold_relay (relay, leased_until) VALUES ($1::text, {_LEASE})
ON CONFLICT (relay) DO UPDATE SET leased_until = excluded.leased_until
"""

    RENEW = f"UPDATE onefold_relay SET leased_until = {_LEASE} WHERE relay = $1::text"

    BURY = """
DELETE FROM onefold_relay WHERE leased_until < clock_timestamp() RETURNING array_to_json(trying)::text
"""

    ASSIGN = """
UPDATE onefold_bucket AS b SET relay = given.value
FROM json_each_text($1::text::json) AS given WHERE b.bucket = given.key::smallint
"""

    FAIL = """
UPDATE onefold_outbox AS o SET
    started = started + 1, finished = finished + 1, error = f.error,
    due_at = clock_timestamp() + f.wait_ms * interval '1 millisecond'
FROM json_to_recordset($2::text::json) AS f (position bigint, error text, wait_ms bigint)
WHERE o.position = f.position AND o.published_at IS NULL AND o.due_at IS NULL
  AND EXISTS (SELECT FROM onefold_relay WHERE relay = $1::text)
"""

    NEXT_DUE = """
SELECT (extract(epoch FROM due_at - clock_timestamp()) * 1000)::bigint FROM onefold_outbox
WHERE published_at IS NULL AND due_at IS NOT NULL AND due_at < 'infinity' ORDER BY due_at LIMIT 1
"""

    RELEASE_DUE = """
UPDATE onefold_outbox SET due_at = NULL WHERE position IN (
    SELECT position FROM onefold_outbox WHERE published_at IS NULL AND due_at <= clock_timestamp()
    ORDER BY due_at LIMIT $1::integer FOR UPDATE SKIP LOCKED)
"""

    FORGETTABLE = f"SELECT 1 FROM onefold_outbox WHERE {_PAST} LIMIT 1"

    FORGET = f"""
DELETE FROM onefold_outbox WHERE position IN (
    SELECT position FROM onefold_outbox WHERE {_PAST} ORDER BY published_at LIMIT $2::integer)
"""

    PENDING = f"""
SELECT topic, count(*) FROM (SELECT topic FROM onefold_outbox WHERE {_READY} LIMIT $1::integer) AS counted
GROUP BY topic ORDER BY topic
"""

    #: A bucket's first row is its oldest, or near it: positions are drawn a moment before they commit.
    OLDEST = f"""
SELECT (extract(epoch FROM clock_timestamp() - min(o.written_at)) * 1000)::bigint FROM onefold_bucket AS b
CROSS JOIN LATERAL (
    SELECT w.written_at FROM onefold_outbox AS w WHERE w.bucket = b.bucket AND {_READY}
    ORDER BY w.position LIMIT 1) AS o
"""

    DELAYED = """
SELECT count(*) FROM (
    SELECT FROM onefold_outbox WHERE published_at IS NULL AND due_at IS NOT NULL AND error IS NULL
    LIMIT $1::integer) AS counted
"""

    LIST_STOPPED = f"""
SELECT id, topic, key, started, error,
       CASE WHEN due_at < 'infinity' THEN (extract(epoch FROM due_at - clock_timestamp()) * 1000)::bigint END
FROM onefold_outbox WHERE {_STOPPED} ORDER BY due_at LIMIT $1::integer
"""

    RELAYS_SEEN = """
SELECT relay, (SELECT count(*) FROM onefold_bucket AS b WHERE b.relay = r.relay),
       (extract(epoch FROM leased_until - clock_timestamp()) * 1000)::bigint
FROM onefold_relay AS r ORDER BY relay
"""

    #: What was at hand when relays died stays suspect, with fewer deaths to its name.
    RETRY = f"UPDATE onefold_outbox SET due_at = NULL, started = least(started, finished + 1) WHERE {_CHOSEN}"

    RETRY_TOPICS = f"""
UPDATE onefold_outbox SET due_at = NULL
WHERE {_STOPPED} AND due_at < 'infinity' AND topic IN (SELECT json_array_elements_text($1::text::json))
"""

    FORGET_TRYING = "UPDATE onefold_relay SET trying = '{}' WHERE relay = $1::text"

    LEAVE = "DELETE FROM onefold_relay WHERE relay = $1::text"
    DELETE = "DELETE FROM onefold_outbox WHERE position = ANY ($1::text::bigint[])"

    KEEP = "UPDATE onefold_outbox SET published_at = now() WHERE position = ANY ($1::text::bigint[])"

    DISCARD = f"DELETE FROM onefold_outbox WHERE {_CHOSEN}"

    def write(self, draft: Draft) -> tuple[Statement, ...]:
        """Write an event; one with a key gets its version."""
        body = (draft.time, draft.content_type, draft.headers, draft.data)
        if draft.stream is not None:
            named = (draft.bucket, draft.stream, draft.id, draft.source, draft.topic, draft.key)
            return (Statement(_WRITE_KEYED, (*named, *body)),)
        return (Statement(_WRITE, (draft.bucket, draft.id, draft.source, draft.topic, *body, draft.due_ms)),)

    def turn(self, lease_s: float) -> tuple[Step, ...]:
        """Be the only one who tends, in this transaction."""
        return (Statement(_BOUNDED, (f"{round(lease_s * 1000)}ms",)), _LOCK)

    async def suspect(self, positions: Sequence[int]) -> list[Row]:
        """These were at hand when a relay died; returned are those for which that was once too often."""
        return await Fetch(Statement(_SUSPECT, (self.positions(positions), DIED_OF)))

    async def claim(self, relay: str, lease_s: float, limits: Limits) -> list[Row]:
        """Waiting rows of the relay's buckets, noted as tried."""
        values = (relay, round(lease_s * 1000), limits.per_bucket, limits.rows, limits.data_bytes)
        return await Fetch(Statement(_CLAIM, values))

    def positions(self, positions: Sequence[int]) -> str:
        return "{" + ",".join(map(str, positions)) + "}"
