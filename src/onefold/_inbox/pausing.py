"""Pausing: an operator stops a consumer, wherever it runs, until an operator lets it go on.

A row of `onefold_pause` says that a consumer is paused, since when and by whom. It holds for all processes of the
consumer, and for those that start while it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold._inbox.consumer import check_name
from onefold._inbox.sql import STATEMENTS
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Since when a consumer is paused, and by whom."""

    consumer: str
    actor: str
    since_ms: int


async def pause(dialect: str, consumer: str, actor: str) -> bool:
    """Whether it is paused by this; False: it was already."""
    return await _change(dialect, consumer, actor, paused=True)


async def resume(dialect: str, consumer: str, actor: str) -> bool:
    """Whether it goes on by this; False: it was not paused."""
    return await _change(dialect, consumer, actor, paused=False)


async def pauses(dialect: str, consumer: str | None = None) -> Sequence[Pause]:
    """Of one consumer, or of all."""
    sql = STATEMENTS[dialect]

    async def work() -> Sequence[Pause]:
        rows = await Fetch(sql.pauses(consumer))
        return [Pause(consumer=name, actor=actor, since_ms=since) for name, actor, since in rows]

    return await with_connection(work)


async def _change(dialect: str, consumer: str, actor: str, *, paused: bool) -> bool:
    sql = STATEMENTS[dialect]
    change = sql.pause(check_name(consumer), actor) if paused else sql.resume(consumer)

    async def work() -> bool:
        if not await Batch((Boundary.BEGIN, change)):
            await Batch((Boundary.ROLLBACK,))
            return False
        await Batch((sql.audit(actor, "pause" if paused else "resume", consumer, "{}"), Boundary.COMMIT))
        return True

    return await with_connection(work)
