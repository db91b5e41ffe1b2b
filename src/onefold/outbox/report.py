"""What an operator asks of an outbox: what waits, what is stopped and why, who is at work; and two ways to act.

The look is cheap whatever the backlog: counts are bounded, and say when they were cut. Nothing here touches a row that
waits in its turn, only rows that are stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold._kernel.borrow import borrowing
from onefold._kernel.effects import Batch, Fetch, Statement
from onefold.outbox.sql import STATEMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Events of one topic that nothing speaks against sending."""

    topic: str
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """An event that failed. Those behind it, of the same key, wait with it."""

    id: str
    topic: str
    key: str | None
    attempts: int
    error: str | None
    next_try_s: float | None
    """None: it is set aside until a person says `retry` or `discard`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySeen:
    """A relay with a row of its own. A negative lease: it is dead, and not buried yet."""

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
    """The failed and the set aside, the next to be tried first; at most as many as were asked for."""
    relays: tuple[RelaySeen, ...]


async def report(dialect: str, *, count_max: int = 100_000, stopped_max: int = 100) -> Report:
    """Look at the outbox, without disturbing anyone."""
    sql = STATEMENTS[dialect]

    async def work() -> Report:
        pending = [Pending(topic=topic, waiting=n) for topic, n in await Fetch(sql.pending(count_max))]
        [(oldest_ms,)] = await Fetch(sql.oldest())
        [(delayed,)] = await Fetch(sql.delayed(count_max))
        stopped = await Fetch(sql.stopped(stopped_max))
        relays = await Fetch(sql.relays_seen())
        return Report(
            pending=tuple(pending),
            pending_cut=sum(topic.waiting for topic in pending) >= count_max,
            oldest_s=None if oldest_ms is None else oldest_ms / 1000,
            delayed=delayed,
            stopped=tuple(
                Stopped(
                    id=id_,
                    topic=topic,
                    key=key,
                    attempts=attempts,
                    error=error,
                    next_try_s=None if wait_ms is None else max(0.0, wait_ms / 1000),
                )
                for id_, topic, key, attempts, error, wait_ms in stopped
            ),
            relays=tuple(
                RelaySeen(relay=relay, buckets=buckets, lease_left_s=left_ms / 1000)
                for relay, buckets, left_ms in relays
            ),
        )

    return await borrowing(work)


async def retry(dialect: str, ids: Sequence[str]) -> int:
    """Try these stopped events now; how many of them were stopped. One that killed relays is still sent alone."""
    return await borrowing(lambda: _count(STATEMENTS[dialect].retry(ids)))


async def retry_topics(dialect: str, topics: Sequence[str]) -> int:
    """Try what these topics have stopped now, except what was set aside: the reason of its refusal may be gone."""
    return await borrowing(lambda: _count(STATEMENTS[dialect].retry_topics(topics)))


async def discard(dialect: str, ids: Sequence[str]) -> int:
    """Delete these stopped events, never to be published; how many of them were stopped. Their keys go on: consumers
    that count versions will see a gap."""
    return await borrowing(lambda: _count(STATEMENTS[dialect].discard(ids)))


async def _count(statement: Statement) -> int:
    return await Batch((statement,))
