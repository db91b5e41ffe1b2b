"""`transition`: a row from one state to the next, once, and why not where it did not move.

Theory of operation. One UPDATE with the states that the row may come from in its WHERE, and not the one it goes to: the
database may take for the same what Python does not ("paid" and "PAID", 1 and "1"), and each retry would move it. Of two
callers at once the second waits for the first, and its WHERE is judged again by what the first has committed. Where it
moves no row, one look says why. Between the two the row may have come into a state that it may come from: then the move
is tried again, a bounded number of times.
"""

from __future__ import annotations

from typing import Any, Final

from onefold._kernel.table_writes import FindState, FoundState, MovedState, MoveState, WritableTable
from onefold._kernel.write_results import Transitioned, TransitionOutcome
from onefold.errors import SerializationFailed, TransactionMisused

#: How often a row is moved that has come into a state that it may come from when it is looked at.
TRIES_MAX: Final = 3


async def transition(table: WritableTable, move: MoveState) -> Transitioned[Any]:
    """Move the row, or find out why it cannot be."""
    for _ in range(TRIES_MAX):
        moved = await table.perform(move)
        _check_one(table, move, len(moved))
        if moved:
            after = MovedState(*moved[0].answers)
            if not after.arrived:
                raise TransactionMisused(
                    f"tx.transition: {table.name} has put the row with {dict(move.key)!r:.200} into "
                    f"{after.state!r:.80}, not into {move.to!r:.80}: by a trigger. Nothing of the transaction is kept: "
                    "name the state that it comes to"
                )
            return _tell(TransitionOutcome.MOVED, after, moved[0].row)
        found = await table.perform(FindState(move))
        _check_one(table, move, len(found))
        if not found:
            return Transitioned(outcome=TransitionOutcome.MISSING, state=None, version=None, row=None)
        state = FoundState(*found[0].answers)
        outcome = _judge(state)
        if outcome is not None:
            return _tell(outcome, state, found[0].row)
    raise SerializationFailed(
        f"{table.name}: the row with {dict(move.key)!r:.200} is in a state that it may come from, but was not moved to "
        f"{move.to!r:.80}, {TRIES_MAX} times: its state changes elsewhere at this moment, or a trigger or a row "
        "security policy keeps it from being updated"
    )


def _judge(found: FoundState) -> TransitionOutcome | None:
    """None: it could be moved now."""
    if found.arrived:
        return TransitionOutcome.ALREADY_THERE
    if not found.allowed:
        return TransitionOutcome.NOT_ALLOWED
    return None if found.expected else TransitionOutcome.STALE


def _tell(outcome: TransitionOutcome, found: MovedState | FoundState, row: Any) -> Transitioned[Any]:
    return Transitioned(outcome=outcome, state=found.state, version=found.version, row=row)


def _check_one(table: WritableTable, move: MoveState, rows: int) -> None:
    if rows > 1:
        raise TransactionMisused(
            f"tx.transition: where={dict(move.key)!r:.200} stands for {rows} rows of {table.name}, not for one. "
            "Nothing of the transaction is kept: name the row by its key"
        )
