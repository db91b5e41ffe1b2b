"""Consumers for the overview, from onefold's own tables: no broker is queried, for it may be away, or slow.

Waiting messages are counted where the database itself delivers (broker local), and not at other brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from onefold._inbox.pausing import pauses
from onefold._inbox.registry import list_processes
from onefold._kernel.ports import SubscriptionSeen
from onefold._worker.consumer_admin import ConsumerSeen, describe
from onefold.brokers.local._waiting import count_waiting

CONSUMERS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer and its state."""

    seen: ConsumerSeen
    word: str
    tone: Literal["good", "neutral", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class ConsumersNow:
    """Rows for the overview, those that need attention first."""

    rows: tuple[ConsumerRow, ...]
    left_out: int


async def look_at_consumers(dialect: str, *, count_max: int) -> ConsumersNow:
    """The rows of all known consumers, at most CONSUMERS_MAX."""
    processes = await list_processes(dialect)
    paused_by = {each.consumer: each.actor for each in await pauses(dialect)}
    waiting = await count_waiting(dialect, count_max=count_max, consumers_max=10 * CONSUMERS_MAX)
    rows = []
    for name in sorted({each.consumer for each in processes} | paused_by.keys() | waiting.keys()):
        at_broker = SubscriptionSeen(consumer=name, topics=None, waiting=waiting[name]) if name in waiting else None
        seen = describe(name, [each for each in processes if each.consumer == name], at_broker)
        rows.append(judge_consumer(replace(seen, paused_by=paused_by.get(name))))
    rows.sort(key=lambda row: ("bad", "warn", "neutral", "good").index(row.tone))
    return ConsumersNow(tuple(rows[:CONSUMERS_MAX]), max(0, len(rows) - CONSUMERS_MAX))


def judge_consumer(seen: ConsumerSeen) -> ConsumerRow:
    if seen.paused_by is not None:
        return ConsumerRow(seen, f"paused by {seen.paused_by}", "warn")
    if seen.running:
        return ConsumerRow(seen, "running", "good")
    if seen.waiting:
        return ConsumerRow(seen, "messages wait, none runs", "bad")
    return ConsumerRow(seen, "none runs", "neutral" if seen.waiting == 0 else "warn")
