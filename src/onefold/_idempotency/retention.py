"""Deleting expired records, in batches so small that no request waits for them."""

from __future__ import annotations

from typing import Protocol

from onefold._idempotency.sql import postgres
from onefold._kernel.effects import Flow
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.request_events import Reaped
from onefold._policy.ranges import require

#: Rows in a batch, and batches in a turn.
REAP_LIMIT = 1000


def pg_cron_job(limit: int = 50_000) -> str:
    """A job for pg_cron, for those who would rather not run a process for it."""
    return f"SELECT cron.schedule('onefold-reap', '*/5 * * * *', $${postgres.reap_script(limit)}$$);\n"


class Reaps(Protocol):
    """What forgets expired rows, at most so many at once; how many records there were."""

    def reap(self, limit: int) -> Flow[int]: ...


async def reap(store: Reaps, *, limit: int, batches_max: int, listener: Listener | None = None) -> Reaped:
    """Delete expired records, `limit` at a time, until none is left or `batches_max` is done."""
    require("limit", limit, least=1, most=100_000, whole=True)
    require("batches_max", batches_max, least=1, whole=True)
    records = 0
    for _ in range(batches_max):
        deleted = await store.reap(limit)
        records += deleted
        if deleted < limit:
            break
    reaped = Reaped(records)
    emit(listener, reaped)
    return reaped
