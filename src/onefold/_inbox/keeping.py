"""Keeping a message that is not handled now: until its turn, or as a dead letter.

One that is kept already, and that this process has started, is written only where it is still this process's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from onefold._inbox.consumer import Consumer
from onefold._inbox.sql.statements import Statements
from onefold._inbox.stored_message import FailedMessage, StoredMessage, stream_position, write_held
from onefold._inbox.version_order import Early, StreamPosition
from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Batch, Statement


def park(sql: Statements, consumer: str, stored: StoredMessage, early: Early) -> Statement:
    """It waits for its turn. That it was started to find this out does not count."""
    if isinstance(stored, FailedMessage):
        return sql.in_hand.give_back(consumer, write_held([stored]), early.due_in_ms, early.reason)
    return _keep(sql, consumer, stored, "waiting", early.reason, early.due_in_ms)


async def keep_new(
    sql: Statements,
    consumer: str,
    stored: StoredMessage,
    reason: str,
    *,
    lease_ms: int,
    started: Literal[0, 1],
    note: Callable[[StoredMessage], object] = lambda stored: None,
) -> StoredMessage | None:
    """Keep a delivery as a failed message, as it is called then; None: it was handled, or is kept already. It is due
    after so long, unless it is started and its lease renewed. `note` hears of each name before it is tried."""
    note(stored)
    content, apart = stored.values(), stored.identity.apart
    keep = sql.keep_new(consumer, content, apart, reason=reason, lease_ms=lease_ms, started=started)
    if await Batch((keep,)):
        return stored
    if await Batch((sql.id_conflict(consumer, stored.identity),)):
        again = stored.set_apart()
        return await keep_new(sql, consumer, again, reason, lease_ms=lease_ms, started=started, note=note)
    return None


def begin_wait(
    sql: Statements, consumer: Consumer, position: StreamPosition, stored: StoredMessage, early: Early
) -> tuple[Statement, ...]:
    """The stream waits for its beginning, if it does not yet."""
    if not early.begins:
        return ()
    stream, epoch, _ = stream_position(stored)
    wait = sql.wait(consumer.name, stream, epoch, milliseconds(consumer.baseline_wait_s))
    # What is parked of the epoch that ends here will never have its turn.
    return (wait, sql.wake(consumer.name, stream, epoch, 0)) if epoch > position.epoch else (wait,)


def dead_letter(sql: Statements, consumer: str, stored: StoredMessage, reason: str) -> Statement:
    """It is never handled, unless a person has it tried again."""
    if isinstance(stored, FailedMessage):
        return sql.in_hand.dead_letter(consumer, write_held([stored]), reason)
    return _keep(sql, consumer, stored, "dead", reason, None)


def _keep(
    sql: Statements, consumer: str, stored: StoredMessage, state: str, reason: str, due_ms: int | None
) -> Statement:
    content = stored.values()
    return sql.keep(consumer, content, state=state, reason=reason, started=0, failed=0, history="[]", due_ms=due_ms)
