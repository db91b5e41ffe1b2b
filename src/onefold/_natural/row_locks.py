"""`lock_row`: the row with a key, as it stays until the transaction ends, or the place where it is not.

Theory of operation. SELECT … FOR UPDATE locks the row: others that would write it wait. Where there is no row, there is
nothing to lock, and two that look for it would both find none and both make it; so the key itself is locked then
(`exclusive`), and looked for once more: what was committed while this one waited is found. On SQLite a transaction that
reads in this way has the write lock, and nothing else is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from onefold._kernel.table_writes import FoundRow, WritableTable
from onefold._natural.exclusive import lock, lock_number
from onefold._natural.plans import LockPlan
from onefold._natural.sql.natural_dialect import NaturalDialect
from onefold.errors import TransactionMisused

#: A row that is about to be made elsewhere is waited for so long.
WAIT_S: Final = 5.0


async def lock_row(
    table: WritableTable, plan: LockPlan, values: tuple[Any, ...], sql: NaturalDialect, part: Callable[[], int]
) -> Any:
    """The row, or None. `part` gives the number of a savepoint."""
    rows = await table.perform(plan.find, values)
    if len(rows) == 1:
        return rows[0][0]
    found = _one(table, plan, values, rows)
    if not sql.ONE_WRITER:
        # What a column takes for the same (a UUID and its text, in either case) must not be two keys here.
        [hashes] = await table.perform(plan.hash, values)
        numbers = dict(zip(plan.key, hashes[1], strict=True))
        named = [text for column in sorted(plan.key) for text in (column, str(numbers[column]))]
        place = ("onefold row", table.name, *named)
        await lock(sql, place, lock_number(place), WAIT_S, part=part, writing=True)
        found = _one(table, plan, values, await table.perform(plan.find, values))
    return None if found is None else found[0]


def _one(table: WritableTable, plan: LockPlan, values: tuple[Any, ...], found: list[FoundRow]) -> FoundRow | None:
    if len(found) > 1:
        where = dict(zip(plan.key, values, strict=True))
        raise TransactionMisused(
            f"tx.lock_row: where={where!r:.200} stands for {len(found)} rows of {table.name}, not for one. Nothing of "
            "the transaction is kept: name the row by its key"
        )
    return found[0] if found else None
