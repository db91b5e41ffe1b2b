"""Forgetting what was handled long ago, in small batches with short locks. Failed messages are never forgotten."""

from __future__ import annotations

from onefold._inbox.sql import STATEMENTS
from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Batch, Statement
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import LedgerReaped


async def reap(
    dialect: str,
    consumer: str,
    retention_s: float,
    *,
    limit: int = 1000,
    batches_max: int = 1000,
    listener: Listener | None = None,
) -> int:
    """Delete the consumer's ledger rows that are past their retention, `limit` at a time; how many."""
    statement = STATEMENTS[dialect].reap(consumer, milliseconds(retention_s), limit)
    reaped = 0
    for _ in range(batches_max):
        deleted = await with_connection(lambda: _delete(statement))
        reaped += deleted
        if deleted < limit:
            break
    if reaped:
        emit(listener, LedgerReaped(consumer, reaped))
    return reaped


async def _delete(statement: Statement) -> int:
    return await Batch((statement,))
