"""Giving a failed message the id that it has, where it is kept under another name."""

from __future__ import annotations

from dataclasses import replace

from onefold._inbox.sql.statements import Statements
from onefold._inbox.stored_message import FailedMessage
from onefold._kernel.effects import Batch, Boundary, Fetch


async def rename(sql: Statements, consumer: str, failed_message: FailedMessage) -> FailedMessage | None:
    """Its row gets its id: it can be read now, or is to be named apart. None: a message of that id was handled, or is
    kept."""
    row_id = failed_message.row_id
    await Batch((Boundary.BEGIN,))
    if not await Batch((sql.rename(consumer, row_id, failed_message.values(), failed_message.identity.apart),)):
        if not await Fetch(sql.id_conflict(consumer, failed_message.identity)):
            await Batch((sql.drop(consumer, row_id), Boundary.COMMIT))
            return None
        failed_message = failed_message.set_apart()
        await Batch((sql.rename(consumer, row_id, failed_message.values(), failed_message.id),))
    await Batch((Boundary.COMMIT,))
    return replace(failed_message, row_id=failed_message.id)
