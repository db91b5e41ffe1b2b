"""Measures backlogs at intervals for the listener: numbers that no single event changes, read from the database.

A measurement is a few bounded reads, which cost the same for any backlog. It does not depend on the broker: the backlog
matters most while that is away. While the database is away the last numbers stay, and the worker logs that it pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from onefold._inbox.failed_messages import measure_failed
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.foreign_cancellations import cancel_until_ended, resist
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import FailedMessagesMeasured
from onefold._kernel.telemetry.every_event import Event
from onefold._kernel.telemetry.relay_events import OutboxMeasured
from onefold._outbox.status_report import Chosen, list_stopped, report
from onefold.errors import StoreError

#: Scrapes are rarely more frequent.
EVERY_S: Final = 15.0
COUNT_MAX: Final = 10_000
STOPPED_MAX: Final = 1000

_log = logging.getLogger("onefold.worker")


async def measure_outbox(dialect: str) -> OutboxMeasured:
    """The backlog of the outbox: waiting, delayed, retried and dead events, and its relays."""
    status = await report(dialect, count_max=COUNT_MAX, stopped_max=STOPPED_MAX)
    dead = await list_stopped(dialect, Chosen(dead=True), limit=STOPPED_MAX)
    pending: dict[str, int] = {}
    for each in status.pending:
        name = each.destination or each.topic
        pending[name] = pending.get(name, 0) + each.waiting
    return OutboxMeasured(
        pending=pending,
        oldest_s=max(0.0, status.oldest_s or 0.0),
        delayed=status.delayed,
        retrying=sum(stopped.next_try_s is not None for stopped in status.stopped),
        dead=len(dead),
        relays=sum(relay.lease_left_s > 0 for relay in status.relays),
    )


async def measure_consumer(consumer: str, dialect: str) -> FailedMessagesMeasured:
    """How many failed messages a consumer has."""
    return FailedMessagesMeasured(consumer, *await measure_failed(dialect, consumer, COUNT_MAX))


@asynccontextmanager
async def measuring(
    database: AsyncDatabase[Any],
    listener: Listener | None,
    *measurements: Callable[[str], Flow[Event]],
    every_s: float | None = None,
) -> AsyncIterator[None]:
    """Measure and emit until the block ends, every EVERY_S by default; without a listener, nothing is measured."""
    if listener is None:
        yield
        return
    task = asyncio.create_task(_measure(database, listener, measurements, EVERY_S if every_s is None else every_s))
    try:
        yield
    finally:
        await cancel_until_ended(task)


async def _measure(
    database: AsyncDatabase[Any],
    listener: Listener,
    measurements: tuple[Callable[[str], Flow[Event]], ...],
    every_s: float,
) -> None:
    while True:
        for look in measurements:
            try:
                emit(listener, await resist(run_async(look(database.dialect), TaskExecutor(database))))
            except StoreError:
                pass
            except Exception:
                _log.warning("the backlog could not be measured; it is tried again in %g s", every_s, exc_info=True)
        await asyncio.sleep(every_s)
