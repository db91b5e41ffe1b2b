"""Forgetting what has expired, in batches small enough to disturb nobody."""

from __future__ import annotations

from onefold._kernel.events import Listener, Reaped, tell
from onefold.idempotency.sql import postgres
from onefold.idempotency.store import Store


def pg_cron_job(limit: int = 50_000) -> str:
    """A job for pg_cron, for those who would rather not run a process for it."""
    return f"SELECT cron.schedule('onefold-reap', '*/5 * * * *', $${postgres.reap_script(limit)}$$);\n"


async def reap(store: Store, *, limit: int, batches_max: int, listener: Listener | None = None) -> Reaped:
    """Delete expired records and abandoned claims, `limit` at a time, until none is left or `batches_max` is done."""
    records = claims = 0
    for _ in range(batches_max):
        gone = await store.reap(limit)
        records, claims = records + gone[0], claims + gone[1]
        if max(gone) < limit:
            break
    reaped = Reaped(records, claims)
    tell(listener, reaped)
    return reaped
