"""Writing down that a message has failed: when it is tried again, or that it is a dead letter.

Invariant: what a person has discarded stays discarded. A failed message whose row is gone when its handler fails is not
written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from onefold._inbox.consumer import Consumer
from onefold._inbox.failure_decision import AttemptsSoFar, decide_failure
from onefold._inbox.sql.statements import Statements
from onefold._inbox.stored_message import FailedMessage, StoredMessage, reason_of, stream_position, with_failure
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement
from onefold._kernel.telemetry.consumer_events import DeadLettered, Duplicate, Failed, InboxEvent
from onefold._policy.backoff import Draw

_log = logging.getLogger("onefold.consumer")


async def write_failure(
    sql: Statements,
    consumer: Consumer,
    stored: StoredMessage,
    error: Exception,
    *,
    draw: Draw,
    now_ms: Callable[[], int],
) -> InboxEvent:
    """On a connection of its own: what its handler wrote is rolled back."""
    name = consumer.name
    first: tuple[Statement, ...] = ()
    if consumer.order != "none":
        stream, epoch, _ = stream_position(stored)
        first = (sql.ensure(name, stream, epoch),)
    await Batch((Boundary.BEGIN, *first))
    if await Fetch(sql.id_conflict(name, stored.identity)):
        stored = stored.set_apart()
    rows = await Fetch(sql.known(name, stored.id))
    is_handled = bool(await Fetch(sql.handled(name, stored.identity)))
    if isinstance(stored, FailedMessage) and not rows and not is_handled:
        await Batch((Boundary.ROLLBACK,))
        _log.info(
            "consumer %r: message %s on %r was discarded while its handler ran, and has failed: %s; it stays discarded",
            name, stored.id, stored.topic, reason_of(error),
        )  # fmt: skip
        return Duplicate(name, stored.topic)
    state, started, failed, history = rows[0] if rows else ("waiting", 1, 0, "[]")
    if isinstance(stored, FailedMessage) and failed == stored.failed:
        # A process that took it over meanwhile finds that it has failed here: its start is not one more.
        started = min(started, stored.started)
    before = AttemptsSoFar(state, started, failed)
    decision = decide_failure(consumer, error, before, is_handled=is_handled, draw=draw)
    if decision is None:
        await Batch((Boundary.ROLLBACK,))
        return Duplicate(name, stored.topic)
    reason = reason_of(error)
    keep = sql.keep(
        name,
        stored.values(),
        state="dead" if decision.due_ms is None else "waiting",
        reason=reason,
        started=decision.started,
        failed=decision.failed,
        history=with_failure(history, error, now_ms()),
        due_ms=decision.due_ms,
    )
    await Batch((keep, Boundary.COMMIT))
    if decision.due_ms is None:
        return DeadLettered(name, stored.topic, reason, stored.id)
    return Failed(name, stored.topic, reason, decision.failed, stored.id, retry_s=decision.due_ms / 1000)
