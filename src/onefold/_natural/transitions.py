"""`transition`: a row from one state to the next, once, and why not where it did not move.

Theory of operation. One UPDATE with the states that the row may come from in its WHERE, and not the one it goes to: the
database may take for the same what Python does not ("paid" and "PAID", 1 and "1"), and each retry would move it. Of two
callers at once the second waits for the first, and its WHERE is judged again by what the first has committed. Where it
moves no row, one look says why. Between the two the row may have come into a state that it may come from: then the move
is tried again, a bounded number of times.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from onefold._kernel.table_writes import MoveValues, WritableTable
from onefold._kernel.write_results import Transitioned, TransitionOutcome
from onefold._natural.plans import MovePlan
from onefold.errors import SerializationFailed, TransactionMisused

#: How often a row is moved that has come into a state that it may come from when it is looked at.
TRIES_MAX: Final = 3


async def transition(table: WritableTable, plan: MovePlan, values: tuple[Any, ...]) -> Transitioned[Any]:
    """Move the row, or find out why it cannot be."""
    for _ in range(TRIES_MAX):
        moved = await table.perform(plan.move, values)
        if moved:
            if len(moved) > 1:
                raise _several(table, plan, values, len(moved))
            row, (arrived, state, version) = moved[0]
            if not arrived:
                raise TransactionMisused(
                    f"tx.transition: {table.name} has put the row with {_key(plan, values)!r:.200} into "
                    f"{state!r:.80}, not into {values[0]!r:.80}: by a trigger. Nothing of the transaction is "
                    "kept: name the state that it comes to"
                )
            if plan.shape.version is not None and not isinstance(version, int | Decimal | float):
                raise TransactionMisused(
                    f"tx.transition: the version of the row with {_key(plan, values)!r:.200} in {table.name}, in "
                    f"{plan.shape.version}, is {'NULL' if version is None else repr(version)[:80]} after the move, and "
                    "counts nothing. Nothing of the transaction is kept: name a column with a number, NOT NULL"
                )
            return Transitioned(outcome=TransitionOutcome.MOVED, state=state, version=version, row=row)
        found = await table.perform(plan.find, values)
        if not found:
            return Transitioned(outcome=TransitionOutcome.MISSING, state=None, version=None, row=None)
        if len(found) > 1:
            raise _several(table, plan, values, len(found))
        row, (arrived, allowed, expected, state, version) = found[0]
        outcome = _judge(arrived, allowed, expected)
        if outcome is not None:
            return Transitioned(outcome=outcome, state=state, version=version, row=row)
    raise SerializationFailed(
        f"{table.name}: the row with {_key(plan, values)!r:.200} is in a state that it may come from, but was not "
        f"moved to {values[0]!r:.80}, {TRIES_MAX} times: its state changes elsewhere at this moment, or a trigger or a "
        "row security policy keeps it from being updated"
    )


def _judge(arrived: object, allowed: object, expected: object) -> TransitionOutcome | None:
    """By the answers of FindState. None: it could be moved now."""
    if arrived:
        return TransitionOutcome.ALREADY_THERE
    if not allowed:
        return TransitionOutcome.NOT_ALLOWED
    return None if expected else TransitionOutcome.STALE


def _several(table: WritableTable, plan: MovePlan, values: tuple[Any, ...], rows: int) -> TransactionMisused:
    return TransactionMisused(
        f"tx.transition: where={_key(plan, values)!r:.200} stands for {rows} rows of {table.name}, not for one. "
        "Nothing of the transaction is kept: name the row by its key"
    )


def _key(plan: MovePlan, values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(plan.shape.key, MoveValues.read(plan.shape, values).key, strict=True))
