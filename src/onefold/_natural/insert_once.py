"""`insert_once`: one row per business key, and whether this call made it.

Theory of operation. The unique index decides: INSERT … ON CONFLICT DO NOTHING, which answers with the row that it made.
Where it makes none, a row with that key is there, and a second statement reads it. It has to be a second one: on
Postgres, under READ COMMITTED, an INSERT that had to wait for another transaction's row finds it in the index, but
its own snapshot is from before that row was committed. Under a stricter level Postgres refuses the INSERT there
(SerializationFailed): the transaction runs again.

Failure windows. The row may be deleted between the two: then the insert is tried again, a bounded number of times.
Between a look that finds no row and an insert that follows it (check-then-insert) two callers would both find none;
here the order is the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from onefold._kernel.table_writes import FoundRow, WritableTable
from onefold._kernel.write_results import Inserted, InsertOutcome
from onefold._natural.plans import InsertPlan
from onefold.errors import RowDiffers, SerializationFailed, TransactionMisused

#: How often a row is inserted that is gone again when it is looked for.
TRIES_MAX: Final = 3


async def insert_once(table: WritableTable, plan: InsertPlan, values: tuple[Any, ...]) -> Inserted[Any]:
    """The row under this key, made by this call or by an earlier one."""
    find = plan.find
    for _ in range(TRIES_MAX):
        made = await table.perform(plan.insert, values)
        if made:
            row, [is_indexed] = made[0]
            if not is_indexed:
                raise TransactionMisused(
                    f"tx.insert_once: {table.name} has stored the row with {_describe(plan.key(values))} where its "
                    f"unique index on ({', '.join(plan.on)}) does not keep it single: with NULL in the key, or not "
                    f"among those with {dict(plan.among)!r:.200}. A default, a trigger or the driver has made it so. "
                    "Nothing of the transaction is kept: give the values that the index is of"
                )
            return Inserted(row, InsertOutcome.CREATED)
        found = await table.perform(find, values)
        if found:
            return _judge(table, plan, values, found[0])
        # By the types of the key from now on: the index may have rounded or cut what it was given.
        find = table.prepare(replace(plan.look, as_stored=True))
    raise SerializationFailed(
        f"{table.name}: a row with {_describe(plan.key(values))} could neither be inserted nor read, {TRIES_MAX} "
        "times: it is inserted and deleted elsewhere at this moment, or a row security policy or a trigger hides it"
    )


def _judge(table: WritableTable, plan: InsertPlan, values: tuple[Any, ...], found: FoundRow) -> Inserted[Any]:
    comparison = plan.comparison
    row, answers = found
    if comparison is None:
        return Inserted(row, InsertOutcome.EXISTING)
    if all(answers):
        return Inserted(row, InsertOutcome.SAME)
    differing = tuple(column for column, is_same in zip(comparison.columns, answers, strict=True) if not is_same)
    if comparison.tells:
        return Inserted(row, InsertOutcome.DIFFERENT, differing)
    error = RowDiffers(
        f"{table.name} has another row under {_describe(plan.key(values))}: it differs in {', '.join(differing)}. The "
        "same key with another payload is another request, or a mistake: nothing was written"
    )
    error.columns = differing
    raise error


def _describe(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{column}={value!r:.80}" for column, value in key.items())
