"""The outbox on Postgres.

An event with a key is written in one statement with its version: the stream's row stays locked until COMMIT, so
versions become visible in their order, and positions, drawn under that lock, rise with them.
"""

from __future__ import annotations

from onefold._kernel.effects import Statement
from onefold.outbox.model import Draft

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


def write(draft: Draft) -> tuple[Statement, ...]:
    """Write an event; one with a key gets its version."""
    body = (draft.time, draft.content_type, draft.headers, draft.data)
    if draft.stream is not None:
        named = (draft.bucket, draft.stream, draft.id, draft.source, draft.topic, draft.key)
        return (Statement(_WRITE_KEYED, (*named, *body)),)
    return (Statement(_WRITE, (draft.bucket, draft.id, draft.source, draft.topic, *body, draft.due_ms)),)
