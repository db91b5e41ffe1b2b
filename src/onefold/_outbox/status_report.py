"""The status of an outbox for operators: what waits, what is stopped and why, which relays run; and ways to act.

The query is cheap whatever the backlog: counts are bounded, and marked when they were cut. Nothing here touches a row
that waits in its turn, only rows that are stopped, or delayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Row, Statement, Value
from onefold._kernel.topics import is_pattern, matches_any
from onefold._outbox.sql import STATEMENTS
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

#: Rows that one statement moves or deletes: others wait for it no longer than that.
AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Events of one topic, or copies of them for one endpoint, that nothing speaks against sending."""

    topic: str
    waiting: int
    destination: str | None = None
    """Where they go, where that is not their topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """An event that failed. Those behind it, of the same key, wait with it."""

    id: str
    topic: str
    key: str | None
    attempts: int
    error: str | None
    next_try_s: float | None
    """None: it is a dead letter until a person chooses `retry` or `discard`."""
    destination: str | None = None
    """Where it goes, where that is not its topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which stopped events. What is None filters nothing."""

    ids: tuple[str, ...] | None = None
    topic: str | None = None
    reason: str | None = None
    """A part of the error."""
    destination: str | None = None
    since: datetime | None = None
    """Dead since this time or later."""
    until: datetime | None = None
    """Dead before this time."""
    dead: bool = False
    """Dead letters only, not events that are tried again."""

    def __post_init__(self) -> None:
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None and moment.tzinfo is None:
                raise ConfigurationError(f"{name}={moment.isoformat()} has no time zone; use an aware datetime")

    def values(self) -> tuple[Value, ...]:
        ids = None if self.ids is None else json.dumps(self.ids)
        since_ms, until_ms = (
            None if moment is None else int(moment.timestamp() * 1000) for moment in (self.since, self.until)
        )
        return (ids, self.topic, self.reason, self.destination, since_ms, int(self.dead), until_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySeen:
    """A relay with a row of its own. A negative lease: it is dead, and its row not deleted yet."""

    relay: str
    buckets: int
    lease_left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An outbox at one moment."""

    pending: tuple[Pending, ...]
    pending_cut: bool
    """There are more than were counted."""
    oldest_s: float | None
    """For how long the oldest event has waited that could be sent. None: there is none."""
    delayed: int
    """Published for later, and not due yet."""
    stopped: tuple[Stopped, ...]
    """The failed and the set aside, the next to be tried first; at most as many as the limit."""
    relays: tuple[RelaySeen, ...]


async def report(dialect: str, *, count_max: int = 100_000, stopped_max: int = 100) -> Report:
    """Look at the outbox: reads that lock nothing."""
    sql = STATEMENTS[dialect]

    async def work() -> Report:
        rows = await Fetch(sql.pending(count_max))
        pending = [Pending(topic=topic, waiting=count, destination=aim) for topic, aim, count in rows]
        [(oldest_ms,)] = await Fetch(sql.oldest())
        [(delayed,)] = await Fetch(sql.delayed(count_max))
        stopped = await Fetch(sql.all_stopped(stopped_max))
        relays = await Fetch(sql.relays_seen())
        return Report(
            pending=tuple(pending),
            pending_cut=sum(topic.waiting for topic in pending) >= count_max,
            oldest_s=None if oldest_ms is None else oldest_ms / 1000,
            delayed=delayed,
            stopped=tuple(map(_read_stopped, stopped)),
            relays=tuple(
                RelaySeen(relay=relay, buckets=buckets, lease_left_s=left_ms / 1000)
                for relay, buckets, left_ms in relays
            ),
        )

    return await with_connection(work)


async def list_stopped(dialect: str, chosen: Chosen, *, limit: int = 100) -> list[Stopped]:
    """Stopped events, the next to be tried first and the dead ones last."""
    require("limit", limit, least=1, most=100_000)

    async def work() -> list[Stopped]:
        return [_read_stopped(row) for row in await Fetch(STATEMENTS[dialect].list_stopped(chosen.values(), limit))]

    return await with_connection(work)


async def retry(dialect: str, ids: Sequence[str]) -> int:
    """Try these stopped events now; how many of them were stopped. One that killed relays is still sent alone."""
    return await retry_all(dialect, Chosen(ids=tuple(ids)))


async def retry_all(dialect: str, chosen: Chosen) -> int:
    """`retry` for all events that fit. Their attempts begin anew."""
    return await _each(lambda: STATEMENTS[dialect].retry(chosen.values(), AT_ONCE))


async def retry_topics(dialect: str, topics: Sequence[str]) -> int:
    """Try what these topics, or patterns, have stopped now, dead letters too: the reason of the refusal may be gone.
    Not what was at hand when relays died."""
    sql = STATEMENTS[dialect]

    async def work() -> int:
        named = {topic for topic in topics if not is_pattern(topic)}
        if len(named) < len(topics):
            named |= {topic for (topic,) in await Fetch(sql.stopped_topics()) if matches_any(topics, topic)}
        return await _count(sql.retry_topics(sorted(named)))

    return await with_connection(work)


async def discard(dialect: str, ids: Sequence[str]) -> int:
    """Delete these stopped events, never to be published; how many of them were stopped. Their keys go on: consumers
    that count versions will see a gap."""
    return await discard_all(dialect, Chosen(ids=tuple(ids)))


async def discard_all(dialect: str, chosen: Chosen) -> int:
    """`discard` for all events that fit."""
    return await _each(lambda: STATEMENTS[dialect].discard(chosen.values(), AT_ONCE))


async def cancel(dialect: str, ids: Sequence[str]) -> int:
    """Delete those of these events that wait for their time, never to be published; how many of them did."""

    async def work() -> int:
        await Batch((Boundary.BEGIN,))
        counts = [await Batch(STATEMENTS[dialect].cancel(event_id)) for event_id in ids]
        await Batch((Boundary.COMMIT,))
        return sum(counts)

    return await with_connection(work)


async def _each(statement: Callable[[], Statement]) -> int:
    """Some at a time, until there are no more."""

    async def work() -> int:
        total = 0
        while True:
            count = await Batch((statement(),))
            total += count
            if count < AT_ONCE:
                return total

    return await with_connection(work)


async def _count(statement: Statement) -> int:
    return await Batch((statement,))


def _read_stopped(row: Row) -> Stopped:
    id_, topic, key, attempts, error, wait_ms, destination = row
    next_try_s = None if wait_ms is None else max(0.0, wait_ms / 1000)
    return Stopped(
        id=id_, topic=topic, key=key, attempts=attempts, error=error, next_try_s=next_try_s, destination=destination
    )
