"""`ledger_entry`: an additive write that is made once.

`balance = balance + 100` is right under concurrency and wrong under retries: nothing tells the second one from the
first. An entry with a unique id does. The entry is inserted first: of two callers with one id the second waits at the
unique index, and finds the entry there when the first has committed. The balance is moved by the one who made the
entry, in the same transaction, by a statement that reads and writes it at once.

Invariant: an entry without its movement is never committed, whatever its user goes on with. On Postgres a movement that
the server refuses has aborted the transaction, and one that never came there (a value that the driver cannot send, a
cancellation between the two) dooms it; elsewhere both are one part, which is undone together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from onefold._kernel.effects import Flow
from onefold._kernel.table_writes import WritableTable
from onefold._kernel.write_results import Entered
from onefold._natural.insert_once import insert_once
from onefold._natural.plans import AddPlan, InsertPlan
from onefold.errors import TransactionMisused

#: Runs a flow that must not stay half done.
Whole: TypeAlias = Callable[[Callable[[], Flow[Any]]], Flow[Any]]


async def enter(
    entries: WritableTable,
    entry: InsertPlan,
    entered: tuple[Any, ...],
    balances: WritableTable | None,
    addition: AddPlan | None,
    added: tuple[Any, ...],
) -> Entered[Any]:
    """Make the entry, and move the balance if it was made by this call."""
    row, created = await insert_once(entries, entry, entered)
    moved = None
    if created and balances is not None and addition is not None:
        rows = await balances.perform(addition.add, added)
        if len(rows) != 1:
            shape = addition.shape
            key = dict(zip(shape.key, added[len(shape.add) :], strict=True))
            raise TransactionMisused(
                f"tx.ledger_entry: {key!r:.200} stands for {len(rows)} rows of {balances.name} whose "
                f"{', '.join(shape.add)} can be added to, not for one. Nothing of the transaction is kept: insert "
                "the row of the balance first (tx.insert_once), with numbers instead of NULL, and name it by its key"
            )
        moved, _ = rows[0]
    return Entered(entry=row, created=created, balance=moved)
