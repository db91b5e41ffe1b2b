"""Events that are due later: delayed ones, and those that were refused and are tried again."""

from __future__ import annotations

from collections.abc import Callable

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch
from onefold._outbox.sql import STATEMENTS


async def make_due_claimable(
    dialect: str, *, limit: int = 1000, made: Callable[[], object] = lambda: None
) -> float | None:
    """Rows whose time has come may be claimed, at most `limit`, and `made` is called where there are some; in how many
    seconds the next is due, if there is one."""
    sql = STATEMENTS[dialect]

    async def work() -> float | None:
        rows = await Fetch(sql.next_due())
        if rows and rows[0][0] <= 0:
            await Batch((Boundary.BEGIN, sql.make_due_claimable(limit), Boundary.COMMIT))
            made()
            rows = await Fetch(sql.next_due())
        return max(0.0, rows[0][0] / 1000) if rows else None

    return await with_connection(work)
