"""Forgetting published events, where they are kept at all. A row that waits is never touched."""

from __future__ import annotations

from typing import Final

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Fetch
from onefold._outbox.sql import STATEMENTS

#: How many rows one call deletes at most.
FORGET_MAX: Final = 10_000


async def forget(dialect: str, *, keep_s: float, limit: int = 1000, batches_max: int = FORGET_MAX // 1000) -> int:
    """Delete rows published longer ago than `keep_s`, `limit` at a time; how many there were."""
    sql = STATEMENTS[dialect]

    async def work() -> int:
        total = 0
        for _ in range(batches_max):
            # Read first: most of the time there is nothing, and then no lock is taken.
            if not await Fetch(sql.forgettable(keep_s)):
                break
            # A batch returns the count of its last step, and COMMIT has none: so this one commits by itself.
            deleted = await Batch((sql.forget(keep_s, limit),))
            total += deleted
            if deleted < limit:
                break
        return total

    return await with_connection(work)
