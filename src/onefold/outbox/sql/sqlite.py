"""The outbox on SQLite, where the one write lock keeps versions in order. Times are in milliseconds since 1970."""

from __future__ import annotations

from onefold._kernel.effects import Statement
from onefold.outbox.model import Draft

_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

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


def write(draft: Draft) -> tuple[Statement, ...]:
    """Write an event; one with a key gets its version."""
    values = (
        draft.bucket, draft.stream, draft.id, draft.source, draft.topic, draft.key,
        draft.time, draft.content_type, draft.headers, draft.data, draft.due_ms,
    )  # fmt: skip
    count = () if draft.stream is None else (Statement(_COUNT, (draft.stream,)),)
    return (*count, Statement(_WRITE, values))
