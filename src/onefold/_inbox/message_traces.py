"""Where messages have gone: which consumers of this database have handled them, and which keep them as failed messages.

Reads that lock nothing, and whose cost does not grow with the tables: a message is looked up by its names, under each
consumer that there is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from onefold._inbox.failed_messages import read_row
from onefold._inbox.message_identity import identity_of
from onefold._inbox.sql import STATEMENTS
from onefold._inbox.sql.message_traces import TRACES
from onefold._inbox.stored_message import FailedMessage
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Fetch, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledMessage:
    """A row of the ledger."""

    consumer: str
    message_id: str
    handled_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAt:
    """A failed message, and whose it is."""

    consumer: str
    failed: FailedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTraces:
    """The outcomes of some messages here."""

    handled: tuple[HandledMessage, ...]
    failed: tuple[FailedAt, ...]


async def trace_messages(
    dialect: str, messages: Sequence[tuple[str, str]], correlation: str, *, limit: int = 200
) -> MessageTraces:
    """The traces of these messages (source and id), and of what failed with this correlation id, in order of time."""
    sql = TRACES[dialect]
    named: dict[str, str] = {name: id_ for source, id_ in messages for name in _names(id_, source)}

    async def work() -> tuple[list[Row], list[Row]]:
        rows = await Fetch(sql.correlated(correlation, limit))
        failed = [row for row in rows if json.loads(row[1]).get("correlation-id") == correlation]
        ids = json.dumps([*named, *(row[0] for row in failed if row[0] not in named)])
        consumers = json.dumps([name for (name,) in await Fetch(sql.consumers())])
        handled = await Fetch(sql.handled(consumers, ids, limit))
        keeping = json.dumps([name for (name,) in await Fetch(STATEMENTS[dialect].consumers_with_failed())])
        return handled, failed + await Fetch(sql.failed(keeping, ids, limit))

    handled, failed = await with_connection(work)
    ledger = [
        HandledMessage(consumer=row[0], message_id=named.get(row[1]) or row[1], handled_ms=row[2]) for row in handled
    ]
    kept = {(row[-1], row[0]): FailedAt(consumer=row[-1], failed=read_row(*row[:-1])) for row in failed}
    return MessageTraces(
        handled=tuple(sorted(ledger, key=lambda each: each.handled_ms)),
        failed=tuple(sorted(kept.values(), key=lambda each: each.failed.created_ms)),
    )


def _names(message_id: str, source: str) -> tuple[str, str]:
    identity = identity_of(message_id, source)
    return identity.name, identity.apart
