"""Failed messages as people look for them: whose there are, the newest dead letters page by page, one of them, and the
jobs that tried some again. Reads that lock nothing, and whose cost does not grow with the table."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from onefold._inbox.failed_messages import LISTED_MAX, read_row
from onefold._inbox.redrive import Filter, Job, read_job
from onefold._inbox.sql import STATEMENTS
from onefold._inbox.stored_message import FailedMessage
from onefold._kernel.checkout import fetch_rows, with_connection
from onefold._kernel.effects import Fetch
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPage:
    """Dead letters without their data and history, the newest first."""

    letters: tuple[FailedMessage, ...]
    after: str | None
    """What to give for the next page; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A redrive, and who began it when."""

    job: Job
    actor: str
    started_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerTally:
    """How many failed messages a consumer has; each is counted up to a limit."""

    consumer: str
    waiting: int
    parked: int
    dead: int


async def list_failed_consumers(dialect: str) -> list[str]:
    """The consumers that have failed messages, by name."""
    rows = await with_connection(functools.partial(fetch_rows, STATEMENTS[dialect].consumers_with_failed()))
    return [name for (name,) in rows]


async def tally_failed(dialect: str, *, count_max: int, consumers_max: int) -> list[ConsumerTally]:
    """The consumers that have failed messages, by name, in one round trip."""
    rows = await with_connection(functools.partial(fetch_rows, STATEMENTS[dialect].tallies(count_max, consumers_max)))
    return [ConsumerTally(*row) for row in rows]


async def list_dead(dialect: str, chosen: Filter, *, after: str | None = None, limit: int = 50) -> DeadPage:
    """One page of the dead letters that fit."""
    require("limit", limit, least=1, most=LISTED_MAX)
    statement = STATEMENTS[dialect].newest_dead(chosen.values(), _read_position(after), limit + 1)
    rows = await with_connection(functools.partial(fetch_rows, statement))
    page = rows[:limit]
    letters = tuple(read_row(*row[:-1]) for row in page)
    more = len(rows) > limit
    return DeadPage(letters=letters, after=f"{page[-1][-1]}-{letters[-1].row_id}" if more else None)


async def list_waiting(dialect: str, consumer: str, *, limit: int = 50) -> list[FailedMessage]:
    """Failed messages that are not dead, the next to be tried first, without their data and history."""
    require("limit", limit, least=1, most=LISTED_MAX)
    chosen = Filter(consumer=consumer).values()
    rows = await with_connection(functools.partial(fetch_rows, STATEMENTS[dialect].next_waiting(chosen, limit)))
    return [read_row(*row) for row in rows]


async def find_failed(dialect: str, consumer: str, message_id: str) -> FailedMessage | None:
    """One failed message with its data and history; None: there is none."""
    rows = await with_connection(functools.partial(fetch_rows, STATEMENTS[dialect].find(consumer, message_id)))
    return read_row(*rows[0]) if rows else None


async def list_jobs(dialect: str, *, limit: int = 20) -> list[ListedJob]:
    """Redrives, the newest first, and how they stand."""
    require("limit", limit, least=1, most=LISTED_MAX)
    sql = STATEMENTS[dialect]

    async def work() -> list[ListedJob]:
        return [
            ListedJob(job=await read_job(sql.job_state(job_id), job_id), actor=actor, started_ms=started_ms)
            for job_id, actor, started_ms in await Fetch(sql.jobs(limit))
        ]

    return await with_connection(work)


def _read_position(after: str | None) -> tuple[int, str] | None:
    if after is None:
        return None
    moment, _, message_id = after.partition("-")
    if not moment.isdecimal() or len(moment) > 18:
        raise ConfigurationError(
            f"after={after[:100]!r} is not a position in a list of dead letters: give the `after` of the page before"
        )
    return int(moment), message_id
