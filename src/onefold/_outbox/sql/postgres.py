"""The outbox on Postgres.

An event with a key is written in one statement with its version: the stream's row stays locked until COMMIT, so
versions become visible in their order, and positions, drawn under that lock, rise with them.

A transaction that locks a relay's row and rows of the outbox locks the relay's first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from onefold._kernel.clock import milliseconds
from onefold._kernel.dialects import postgres_lease, postgres_span
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Row, Statement
from onefold._kernel.messages import Message
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.wakeup_signals import NOTIFIED, RELAYS_NOTIFIED
from onefold._outbox.claimed_rows import AT_HAND_MAX, DIED_OF, Limits, TourPosition
from onefold._outbox.event_checks import write_headers
from onefold._outbox.schema import bucket_of
from onefold._outbox.sql.postgres_claims import PLAN_BY_INDEX, scan, tour
from onefold._outbox.sql.statements import Statements

_COLUMNS = "bucket, stream, id, source, topic, key, time, content_type, headers, data, due_at"

_CONTENT = "id, source, topic, key, epoch, version, time, content_type, headers, data"

#: A stream that starts over (its row was lost with a backup, or forgotten) starts a later epoch.
_WRITE_KEYED = qualified(f"""
WITH counted AS (
    INSERT INTO onefold_stream AS s (stream, epoch, version)
    VALUES ($2::bytea, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, 1)
    ON CONFLICT (stream) DO UPDATE SET version = s.version + 1
    RETURNING epoch, version)
INSERT INTO onefold_outbox ({_COLUMNS}, epoch, version)
SELECT $1::smallint, $2::bytea, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text, $10::bytea,
       NULL, epoch, version
FROM counted
""")

_WRITE = qualified(f"""
INSERT INTO onefold_outbox ({_COLUMNS})
VALUES ($1::smallint, NULL, $2::text, $3::text, $4::text, NULL, $5::text, $6::text, $7::text, $8::bytea,
        to_timestamp($9::bigint / 1000.0))
""")

# --- the relay ----------------------------------------------------------------------------------------------

#: A relay that hands buckets over holds an advisory lock until COMMIT (any number will do, if it is always the same):
#: all others wait for it, for no longer than a lease.
_WAIT = qualified("SELECT set_config('lock_timeout', $1::text, true)")
_LOCK = Statement(qualified("SELECT pg_advisory_xact_lock(6018373285120474114)"))

_LEASE = "clock_timestamp() + ($2::bigint * interval '1 millisecond')"

#: In one statement, which no stopped process leaves half-way. A row that is locked is that of a relay that is in the
#: middle of something, or stands still there: others do not wait for it.
_EXPIRE_DEAD = qualified(f"""
WITH dead AS (
    DELETE FROM onefold_relay WHERE relay IN (
        SELECT relay FROM onefold_relay WHERE leased_until < clock_timestamp() FOR UPDATE SKIP LOCKED)
    RETURNING trying),
suspected AS (
    UPDATE onefold_outbox SET
        started = started + 1,
        due_at = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN 'infinity' ELSE due_at END,
        error = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN $1::text ELSE error END,
        died_at = CASE WHEN started + 1 - finished >= {AT_HAND_MAX} THEN clock_timestamp() END
    WHERE position = ANY (ARRAY (SELECT unnest(trying) FROM dead)) AND published_at IS NULL
    RETURNING id, topic, due_at)
SELECT NULL, NULL FROM dead UNION ALL SELECT id, topic FROM suspected WHERE due_at = 'infinity'
""")


_PAST = "published_at IS NOT NULL AND published_at < (now() - ($1::bigint * interval '1 millisecond'))"

# --- queries of operators ---------------------------------------------------------------------------------------

_READY = "published_at IS NULL AND due_at IS NULL"

_STOPPED = "published_at IS NULL AND due_at IS NOT NULL AND error IS NOT NULL"

_FITS = f"""
{_STOPPED}
AND ($1::text IS NULL OR id IN (SELECT json_array_elements_text($1::text::json)))
AND ($2::text IS NULL OR topic = $2::text)
AND ($3::text IS NULL OR position($3::text IN error) > 0)
AND ($4::text IS NULL OR destination = $4::text)
AND ($5::bigint IS NULL OR died_at >= to_timestamp($5::bigint / 1000.0))
AND ($6::integer = 0 OR due_at = 'infinity')
AND ($7::bigint IS NULL OR died_at < to_timestamp($7::bigint / 1000.0))
"""

_STOPPED_COLUMNS = """
id, topic, key, started, error,
CASE WHEN due_at < 'infinity' THEN (extract(epoch FROM due_at - clock_timestamp()) * 1000)::bigint END, destination
"""

_CHOSEN = f"position IN (SELECT position FROM onefold_outbox WHERE {_FITS} ORDER BY due_at LIMIT $8::integer)"


class Postgres(Statements):
    """The statements of the outbox on Postgres."""

    #: Again, where the answer to the first time was lost.
    ENTER = qualified(f"""
INSERT INTO onefold_relay (relay, leased_until) VALUES ($1::text, {_LEASE})
ON CONFLICT (relay) DO UPDATE SET leased_until = excluded.leased_until
""")

    RENEW = qualified(f"UPDATE onefold_relay SET leased_until = {_LEASE} WHERE relay = $1::text")

    #: Also without those whose lease is over and whose row could not be removed.
    SHARES = qualified("""
SELECT NULL::smallint, relay FROM onefold_relay WHERE leased_until >= clock_timestamp() OR relay = $1::text
UNION ALL SELECT bucket, relay FROM onefold_bucket
""")

    ASSIGN = qualified("""
UPDATE onefold_bucket AS b SET relay = given.value::json ->> 1
FROM json_each_text($1::text::json) AS given
WHERE b.bucket = given.key::smallint AND coalesce(b.relay, '') = coalesce(given.value::json ->> 0, '')
""")

    FAIL = qualified("""
UPDATE onefold_outbox AS o SET
    started = started + f.counted, finished = finished + f.counted, error = f.error,
    due_at = coalesce(clock_timestamp() + (f.wait_ms * interval '1 millisecond'), 'infinity'::timestamptz),
    died_at = CASE WHEN f.wait_ms IS NULL THEN clock_timestamp() END
FROM json_to_recordset($2::text::json) AS f (position bigint, error text, wait_ms bigint, counted integer)
WHERE o.position = f.position AND o.published_at IS NULL AND o.due_at IS NULL
  AND EXISTS (SELECT FROM onefold_relay WHERE relay = $1::text)
""")

    NEXT_DUE = qualified("""
SELECT (extract(epoch FROM due_at - clock_timestamp()) * 1000)::bigint FROM onefold_outbox
WHERE published_at IS NULL AND due_at IS NOT NULL AND due_at < 'infinity' ORDER BY due_at LIMIT 1
""")

    MAKE_DUE_CLAIMABLE = qualified(f"""
{RELAYS_NOTIFIED}
UPDATE onefold_outbox SET due_at = NULL WHERE position IN (
    SELECT position FROM onefold_outbox WHERE published_at IS NULL AND due_at <= clock_timestamp()
    ORDER BY due_at LIMIT $1::integer FOR UPDATE SKIP LOCKED) AND {NOTIFIED}
""")

    FORGETTABLE = qualified(f"SELECT 1 FROM onefold_outbox WHERE {_PAST} LIMIT 1")

    FORGET = qualified(f"""
DELETE FROM onefold_outbox WHERE position IN (
    SELECT position FROM onefold_outbox WHERE {_PAST} ORDER BY published_at LIMIT $2::integer)
""")

    PENDING = qualified(f"""
SELECT topic, destination, count(*) FROM (
    SELECT topic, destination FROM onefold_outbox WHERE {_READY} LIMIT $1::integer) AS counted
GROUP BY topic, destination ORDER BY topic, destination
""")

    #: A bucket's first row is its oldest, or near it: positions are drawn a moment before they commit.
    OLDEST = qualified(f"""
SELECT (extract(epoch FROM clock_timestamp() - min(o.written_at)) * 1000)::bigint FROM onefold_bucket AS b
CROSS JOIN LATERAL (
    SELECT w.written_at FROM onefold_outbox AS w
    WHERE (w.bucket, w.position) > (b.bucket, 0::bigint) AND w.bucket <= b.bucket AND {_READY}
    ORDER BY w.bucket, w.position LIMIT 1) AS o
""")

    DELAYED = qualified("""
SELECT count(*) FROM (
    SELECT FROM onefold_outbox WHERE published_at IS NULL AND due_at IS NOT NULL AND error IS NULL
    LIMIT $1::integer) AS counted
""")

    LIST_STOPPED = qualified(
        f"SELECT {_STOPPED_COLUMNS} FROM onefold_outbox WHERE {_FITS} ORDER BY due_at LIMIT $8::integer"
    )

    ALL_STOPPED = qualified(
        f"SELECT {_STOPPED_COLUMNS} FROM onefold_outbox WHERE {_STOPPED} ORDER BY due_at, position LIMIT $1::integer"
    )

    RELAYS_SEEN = qualified("""
SELECT relay, (SELECT count(*) FROM onefold_bucket AS b WHERE b.relay = r.relay),
       (extract(epoch FROM leased_until - clock_timestamp()) * 1000)::bigint
FROM onefold_relay AS r ORDER BY relay
""")

    #: Attempts begin anew. What was at hand when relays died stays suspect, with fewer deaths to its name.
    RETRY = qualified(f"""
UPDATE onefold_outbox SET due_at = NULL, died_at = NULL, started = least(started - finished, 1), finished = 0
WHERE {_CHOSEN}
""")

    RETRY_TOPICS = qualified(f"""
{RELAYS_NOTIFIED}
UPDATE onefold_outbox SET due_at = NULL, died_at = NULL, started = 0, finished = 0
WHERE {_STOPPED} AND started = finished AND topic IN (SELECT json_array_elements_text($1::text::json)) AND {NOTIFIED}
""")

    STOPPED_TOPICS = qualified(f"SELECT DISTINCT topic FROM onefold_outbox WHERE {_STOPPED}")

    FORGET_TRYING = qualified("UPDATE onefold_relay SET trying = '{}' WHERE relay = $1::text")

    COPYABLE = qualified("""
SELECT position FROM onefold_outbox
WHERE position = ANY ($1::text::bigint[]) AND published_at IS NULL AND destination IS NULL ORDER BY position FOR UPDATE
""")

    COPY = qualified(f"""
INSERT INTO onefold_outbox (bucket, stream, {_CONTENT}, written_at, destination)
SELECT bucket, $2::bytea, {_CONTENT}, written_at, $3::text FROM onefold_outbox WHERE position = $1::bigint
""")

    LEAVE = qualified("DELETE FROM onefold_relay WHERE relay = $1::text")
    DELETE = qualified("DELETE FROM onefold_outbox WHERE position = ANY ($1::text::bigint[])")

    KEEP = qualified("UPDATE onefold_outbox SET published_at = now() WHERE position = ANY ($1::text::bigint[])")

    DISCARD = qualified(f"DELETE FROM onefold_outbox WHERE {_CHOSEN}")

    CANCEL = qualified("""
DELETE FROM onefold_outbox
WHERE id = $1::text AND published_at IS NULL AND due_at IS NOT NULL AND error IS NULL AND started = 0
RETURNING 1
""")

    def write(self, event: Message, due_ms: int | None = None) -> tuple[Statement, ...]:
        """Write an event; one with a key gets its version."""
        stream = event.stream
        bucket = bucket_of(event.id, stream)
        body = (event.time, event.content_type, write_headers(event.headers), event.data)
        if stream is not None:
            identity = (bucket, stream, event.id, event.source, event.topic, event.key)
            return (Statement(_WRITE_KEYED, (*identity, *body)),)
        return (Statement(_WRITE, (bucket, event.id, event.source, event.topic, *body, due_ms)),)

    def turn(self, lease_s: float) -> tuple[BatchItem, ...]:
        """Be the only relay that hands buckets over, in this transaction."""
        return (*self.limit_transaction(lease_s), Statement(_WAIT, (postgres_span(lease_s),)), _LOCK)

    def limit_transaction(self, lease_s: float) -> tuple[BatchItem, ...]:
        """This transaction lasts for a lease at the most, whatever becomes of this process."""
        return (postgres_lease(lease_s),)

    async def expire_dead(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Remove the relays whose lease ran out, and note what was at hand."""
        rows = await Fetch(Statement(_EXPIRE_DEAD, (DIED_OF,)))
        aside = tuple((id_, topic) for id_, topic in rows if id_ is not None)
        return len(rows) - len(aside), aside

    async def scan(self, relay: str, lease_s: float, limits: Limits, paused: Collection[str]) -> list[Row]:
        """The oldest rows of the relay's buckets, noted as tried."""
        return await Fetch(scan(relay, milliseconds(lease_s), limits, paused))

    async def tour(
        self, relay: str, lease_s: float, limits: Limits, paused: Collection[str], start: TourPosition
    ) -> list[Row]:
        """Rows of one stream after the other of the relay's buckets, noted as tried."""
        await Batch((Boundary.BEGIN, *self.limit_transaction(lease_s), PLAN_BY_INDEX))
        rows = await Fetch(tour(relay, milliseconds(lease_s), limits, paused, start))
        await Batch((Boundary.COMMIT,))
        return rows

    def positions(self, positions: Sequence[int]) -> str:
        return "{" + ",".join(map(str, positions)) + "}"
