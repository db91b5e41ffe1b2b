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
from dataclasses import dataclass, replace
from typing import Any, Final

from onefold._kernel.table_writes import FindRow, FoundRow, InsertUnlessThere, WritableTable
from onefold._kernel.write_results import Inserted, InsertOutcome
from onefold.errors import RowDiffers, SerializationFailed, TransactionMisused

#: How often a row is inserted that is gone again when it is looked for.
TRIES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared with a row that is there."""

    columns: tuple[str, ...]
    tells: bool
    """Whether other values are told as an outcome; else they are RowDiffers."""


async def insert_once(table: WritableTable, insert: InsertUnlessThere, comparison: Comparison | None) -> Inserted[Any]:
    """The row under this key, made by this call or by an earlier one."""
    for _ in range(TRIES_MAX):
        made = await table.perform(insert)
        if made:
            if not made[0].answers[0]:
                raise TransactionMisused(
                    f"tx.insert_once: {table.name} has stored the row with {_describe(insert.key)} where its unique "
                    f"index on ({', '.join(insert.on)}) does not keep it single: with NULL in the key, or not among "
                    f"those with {dict(insert.among)!r:.200}. A default, a trigger or the driver has made it so. "
                    "Nothing of the transaction is kept: give the values that the index is of"
                )
            return Inserted(made[0].row, InsertOutcome.CREATED)
        compare = {} if comparison is None else {column: insert.values[column] for column in comparison.columns}
        found = await table.perform(FindRow(key=insert.key, among=insert.among, compare=compare))
        if found:
            return _judge(table, insert, comparison, found[0])
        # By the types of the key from now on: the index may have rounded or cut what it was given.
        insert = replace(insert, compared=tuple({*insert.compared, *insert.on}))
    raise SerializationFailed(
        f"{table.name}: a row with {_describe(insert.key)} could neither be inserted nor read, {TRIES_MAX} times: it "
        "is inserted and deleted elsewhere at this moment, or a row security policy or a trigger hides it"
    )


def _judge(
    table: WritableTable, insert: InsertUnlessThere, comparison: Comparison | None, found: FoundRow
) -> Inserted[Any]:
    if comparison is None:
        return Inserted(found.row, InsertOutcome.EXISTING)
    differing = tuple(column for column, is_same in zip(comparison.columns, found.answers, strict=True) if not is_same)
    if not differing:
        return Inserted(found.row, InsertOutcome.SAME)
    if comparison.tells:
        return Inserted(found.row, InsertOutcome.DIFFERENT, differing)
    error = RowDiffers(
        f"{table.name} has another row under {_describe(insert.key)}: it differs in {', '.join(differing)}. The same "
        "key with another payload is another request, or a mistake: nothing was written"
    )
    error.columns = differing
    raise error


def _describe(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{column}={value!r:.80}" for column, value in key.items())
