"""How a relay claims on SQLite: as on Postgres, see `postgres_claims.py`. The index that is meant is called by name."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from onefold._kernel.effects import Statement
from onefold._outbox.claimed_rows import BEYOND, COLUMNS, Limits, TourPosition

_READY: Final = "w.published_at_ms IS NULL AND w.due_at_ms IS NULL"

_DESTINATION: Final = "coalesce(w.destination, w.topic)"

_STREAM: Final = "coalesce(w.stream, x'')"

_TURNS: Final = f"w.bucket, {_DESTINATION}, {_STREAM}"

_PAUSED: Final = "IN (SELECT value FROM json_each(?6))"

_NULLS: Final = ", ".join(["NULL"] * 11)


def _unstopped(stream: str) -> str:
    return f"""
        NOT EXISTS (SELECT 1 FROM onefold_outbox AS z INDEXED BY onefold_outbox_stopped
                    WHERE z.stream = {stream} AND z.stream IS NOT NULL AND z.published_at_ms IS NULL
                      AND z.due_at_ms IS NOT NULL)"""


#: Whether there is anything to claim, without the write lock.
PEEK: Final = f"""
SELECT 1 FROM onefold_bucket AS b
WHERE b.relay = ?1 AND EXISTS (
    SELECT 1 FROM onefold_outbox AS w INDEXED BY onefold_outbox_ready WHERE w.bucket = b.bucket AND {_READY})
LIMIT 1
"""

_WITHIN: Final = "place = 1 OR (suspects = 0 AND place <= ?3 AND bytes <= ?4)"

_SCAN: Final = f"""
WITH looked AS (
    SELECT w.*, NOT {_DESTINATION} IN (SELECT value FROM json_each(?5)) AND {_unstopped("w.stream")} AS fit
    FROM onefold_outbox AS w WHERE w.position IN (
        SELECT o.position FROM onefold_bucket AS b JOIN onefold_relay AS r ON r.relay = b.relay
        JOIN onefold_outbox AS o ON o.position IN (
            SELECT w.position FROM onefold_outbox AS w INDEXED BY onefold_outbox_ready
            WHERE w.bucket = b.bucket AND {_READY} ORDER BY w.position LIMIT ?2)
        WHERE b.relay = ?1)),
picked AS (
    SELECT *,
           count(*) FILTER (WHERE fit) OVER so_far AS place,
           count(*) FILTER (WHERE fit AND started > finished) OVER so_far AS suspects,
           sum(length(data)) FILTER (WHERE fit) OVER so_far AS bytes
    FROM looked
    WINDOW so_far AS (ORDER BY position ROWS UNBOUNDED PRECEDING))
SELECT bucket, CASE WHEN fit THEN position END, stream, id, source, topic, key, epoch, version, time, content_type,
       headers, CASE WHEN fit THEN data END, started, finished, destination, error
FROM picked WHERE NOT fit OR {_WITHIN}
"""

#: What is of one stream, or has none and one destination.
_BEHIND: Final = f"""
    SELECT w.position FROM onefold_outbox AS w INDEXED BY onefold_outbox_turns
    WHERE w.bucket = s.bucket AND {_DESTINATION} = s.destination AND {_STREAM} = s.stream AND {_READY}
    ORDER BY w.position"""

_TOUR: Final = f"""
WITH RECURSIVE steps (bucket, destination, stream, open, number) AS (
    SELECT ?7, ?8, ?9, 0, 0
    UNION ALL
    SELECT w.bucket + CASE WHEN b.bucket IS NULL THEN 1 ELSE 0 END,
           CASE WHEN b.bucket IS NULL THEN '' ELSE {_DESTINATION} END,
           CASE WHEN b.bucket IS NULL THEN x'' WHEN {_DESTINATION} {_PAUSED} THEN ?10 ELSE {_STREAM} END,
           b.bucket IS NOT NULL AND NOT {_DESTINATION} {_PAUSED}, s.number + 1
    FROM steps AS s
    JOIN onefold_outbox AS w ON w.position = (
        SELECT w.position FROM onefold_outbox AS w INDEXED BY onefold_outbox_turns
        WHERE ({_TURNS}) > (s.bucket, s.destination, s.stream) AND {_READY}
        ORDER BY {_TURNS}, w.position LIMIT 1)
    LEFT JOIN onefold_bucket AS b
        ON b.bucket = w.bucket AND b.relay = (SELECT r.relay FROM onefold_relay AS r WHERE r.relay = ?1)
    WHERE s.number < ?2),
few AS MATERIALIZED (
    SELECT w.*, {_DESTINATION} AS aim, row_number() OVER (PARTITION BY w.stream ORDER BY w.position) AS rank
    FROM steps AS s JOIN onefold_outbox AS w ON w.position IN ({_BEHIND} LIMIT ?5)
    WHERE s.open AND s.stream <> x'' AND {_unstopped("s.stream")}
    UNION ALL
    SELECT w.*, {_DESTINATION}, 1
    FROM steps AS s JOIN onefold_outbox AS w ON w.position IN ({_BEHIND} LIMIT ?3)
    WHERE s.open AND s.stream = x''),
turned AS (SELECT *, row_number() OVER (PARTITION BY aim ORDER BY rank, position) AS turn FROM few),
picked AS (
    SELECT *,
           row_number() OVER so_far AS place,
           count(*) FILTER (WHERE started > finished) OVER so_far AS suspects,
           sum(length(data)) OVER so_far AS bytes
    FROM turned
    WINDOW so_far AS (ORDER BY turn, position ROWS UNBOUNDED PRECEDING))
SELECT bucket, {COLUMNS} FROM picked WHERE {_WITHIN}
UNION ALL
SELECT bucket, NULL, stream, NULL, NULL, destination, {_NULLS} FROM steps WHERE number = ?2
"""


def scan(relay: str, limits: Limits, paused: Collection[str]) -> Statement:
    values = (relay, limits.per_bucket, limits.rows, limits.data_bytes, json.dumps(list(paused)))
    return Statement(_SCAN, values)


def tour(relay: str, limits: Limits, paused: Collection[str], start: TourPosition) -> Statement:
    values = (relay, limits.steps, limits.rows, limits.data_bytes, limits.per_stream, json.dumps(list(paused)))
    return Statement(_TOUR, (*values, *start, BEYOND))
