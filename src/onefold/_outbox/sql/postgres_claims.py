"""How a relay claims on Postgres: two statements, of one round trip each.

Both note what they return as tried, and return nothing to a relay whose row is gone.

The scan takes a bucket's oldest rows, as they come from the ready index, and then leaves out what may not go. So it
never reads more rows than it may return. What it left out (it is behind a stopped event, or of a paused destination)
it reports by a row without a position and data.

The tour steps from stream to stream, each step one descent of the turns index: what stands behind a stopped event, in a
busy stream or at a paused destination costs one step, however much it is. It goes on where the one before had to stop,
which it returns in a row without a position: every stream has its turn. What it finds is interleaved by destination.

No plan may depend on how a backlog is spread, which statistics never know in time. So ranges are compared as rows, and
ordered by all columns of the index that is meant: no other index has that order. The planner does not see how large the
LIMIT is (it would rather sort what it takes for small), and OFFSET 0 keeps it from making a join, or from evaluating
the same thing again for every column that depends on it. A tour, which is seldom, has a transaction of its own, in
which a setting keeps the planner from sorting what an index has in order.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from onefold._kernel.effects import Statement
from onefold._kernel.pg_catalog import qualified
from onefold._outbox.claimed_rows import BEYOND, COLUMNS, Limits, TourPosition

_READY: Final = "w.published_at IS NULL AND w.due_at IS NULL"

_DESTINATION: Final = "coalesce(w.destination, w.topic)"

_STREAM: Final = "coalesce(w.stream, ''::bytea)"

_TURNS: Final = f"w.bucket, {_DESTINATION}, {_STREAM}"


def _unstopped(stream: str) -> str:
    return f"""
        NOT EXISTS (
            SELECT FROM onefold_outbox AS z
            WHERE z.stream = {stream} AND z.stream IS NOT NULL AND z.published_at IS NULL AND z.due_at IS NOT NULL
            OFFSET 0)"""


#: What is noted as tried is exactly what is returned. A suspect was at hand when a relay died: it is taken alone.
_WITHIN: Final = "place = 1 OR (suspects = 0 AND place <= $4::integer AND bytes <= $5::bigint)"

_NOTED: Final = """
noted AS (
    UPDATE onefold_relay SET trying = coalesce((SELECT array_agg(position) FROM taken WHERE fit), '{}'),
                             leased_until = clock_timestamp() + ($2::bigint * interval '1 millisecond')
    WHERE relay = $1::text AND EXISTS (SELECT FROM taken)
    RETURNING relay)
"""

_SCAN: Final = qualified(f"""
WITH picked AS (
    SELECT o.*,
           count(*) FILTER (WHERE fit) OVER so_far AS place,
           count(*) FILTER (WHERE fit AND started > finished) OVER so_far AS suspects,
           sum(octet_length(data)) FILTER (WHERE fit) OVER so_far AS bytes
    FROM (
        SELECT w.*, coalesce(w.destination, w.topic) <> ALL ($6::text::text[]) AND {_unstopped("w.stream")} AS fit
        FROM onefold_bucket AS b
        CROSS JOIN LATERAL (
            SELECT w.bucket, {COLUMNS} FROM onefold_outbox AS w
            WHERE (w.bucket, w.position) > (b.bucket, 0::bigint) AND w.bucket <= b.bucket AND {_READY}
            ORDER BY w.bucket, w.position LIMIT (SELECT $3::integer)) AS w
        WHERE b.relay = $1::text OFFSET 0) AS o
    WINDOW so_far AS (ORDER BY position ROWS UNBOUNDED PRECEDING)),
taken AS MATERIALIZED (SELECT * FROM picked WHERE NOT fit OR {_WITHIN}),
{_NOTED}
SELECT bucket, CASE WHEN fit THEN position END, stream, id, source, topic, key, epoch, version, time, content_type,
       headers, CASE WHEN fit THEN data END, started, finished, destination, error
FROM taken CROSS JOIN noted
""")

#: Walks from stream to stream by the index. A bucket that is not ours and a destination that is paused are left in one
#: step: the next one begins behind them.
_TOUR: Final = qualified(f"""
WITH RECURSIVE owned AS MATERIALIZED (SELECT bucket FROM onefold_bucket WHERE relay = $1::text),
steps AS (
    SELECT $8::smallint AS bucket, $9::text AS destination, $10::bytea AS stream, false AS open, 0 AS number
    UNION ALL
    SELECT (n.bucket + CASE WHEN n.ours THEN 0 ELSE 1 END)::smallint,
           CASE WHEN n.ours THEN n.destination ELSE '' END,
           CASE WHEN NOT n.ours THEN ''::bytea WHEN n.paused THEN $11::bytea ELSE n.stream END,
           n.ours AND NOT n.paused, s.number + 1
    FROM steps AS s
    CROSS JOIN LATERAL (
        SELECT w.bucket, {_DESTINATION} AS destination, {_STREAM} AS stream,
               EXISTS (SELECT FROM owned AS o WHERE o.bucket = w.bucket) AS ours,
               {_DESTINATION} = ANY ($7::text::text[]) AS paused
        FROM onefold_outbox AS w
        WHERE ({_TURNS}) > (s.bucket, s.destination, s.stream) AND {_READY}
        ORDER BY {_TURNS}, w.position LIMIT 1) AS n
    WHERE s.number < $3::integer),
found AS (
    SELECT o.*, CASE WHEN o.stream IS NULL THEN 1
                     ELSE row_number() OVER (PARTITION BY o.stream ORDER BY o.position) END AS rank
    FROM steps AS s
    CROSS JOIN LATERAL (
        SELECT w.bucket, {COLUMNS}, {_DESTINATION} AS aim FROM onefold_outbox AS w
        WHERE ({_TURNS}, w.position) > (s.bucket, s.destination, s.stream, 0::bigint)
          AND ({_TURNS}) <= (s.bucket, s.destination, s.stream) AND {_READY}
        ORDER BY {_TURNS}, w.position
        LIMIT (SELECT CASE WHEN s.stream = ''::bytea THEN $4::integer ELSE $6::integer END)) AS o
    WHERE s.open AND {_unstopped("s.stream")}),
turned AS (SELECT *, row_number() OVER (PARTITION BY aim ORDER BY rank, position) AS turn FROM found),
picked AS (
    SELECT *, true AS fit,
           row_number() OVER so_far AS place,
           count(*) FILTER (WHERE started > finished) OVER so_far AS suspects,
           sum(octet_length(data)) OVER so_far AS bytes
    FROM turned
    WINDOW so_far AS (ORDER BY turn, position ROWS UNBOUNDED PRECEDING)),
taken AS MATERIALIZED (SELECT * FROM picked WHERE {_WITHIN}),
{_NOTED}
SELECT bucket, {COLUMNS} FROM taken CROSS JOIN noted
UNION ALL
SELECT bucket, NULL, stream, NULL, NULL, destination,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM steps WHERE number = $3::integer
""")


#: For the transaction of a tour.
PLAN_BY_INDEX: Final = Statement(
    qualified("""
SELECT set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)
""")
)


def scan(relay: str, lease_ms: int, limits: Limits, paused: Collection[str]) -> Statement:
    values = (relay, lease_ms, limits.per_bucket, limits.rows, limits.data_bytes, _array(paused))
    return Statement(_SCAN, values)


def tour(relay: str, lease_ms: int, limits: Limits, paused: Collection[str], start: TourPosition) -> Statement:
    values = (relay, lease_ms, limits.steps, limits.rows, limits.data_bytes, limits.per_stream, _array(paused))
    return Statement(_TOUR, (*values, *start, BEYOND))


def _array(texts: Collection[str]) -> str:
    """As Postgres reads an array."""
    quoted = ('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)
    return "{" + ",".join(quoted) + "}"
