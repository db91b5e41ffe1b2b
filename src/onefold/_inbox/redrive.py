"""A redrive: dead letters are tried again, as a job, which leaves a line in the audit.

The job makes them due one after the other, at a rate, in the order of their streams. While one of them has not been run
the job can be cancelled, and that one is dead as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from onefold._inbox.consumer import DAY_S
from onefold._inbox.sql import STATEMENTS
from onefold._kernel.audit import check_actor, with_why
from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import milliseconds, wall_ms
from onefold._kernel.effects import Batch, Boundary, Fetch, Flow, Statement, Value
from onefold._kernel.ids import new_id
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import Redriven
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError, ProgrammerError

REDRIVE_MAX: Final = 100_000
IDS_MAX: Final = 10_000
COUNTED_MAX: Final = 1_000_000


class FailedMessageNotFit(ProgrammerError):
    """There is no such failed message, or its state does not allow the action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which dead letters of a consumer. What is None filters nothing."""

    consumer: str
    topic: str | None = None
    reason: str | None = None
    """A part of the reason."""
    since: datetime | None = None
    """Died at this time or later."""
    until: datetime | None = None
    ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None and moment.tzinfo is None:
                raise ConfigurationError(f"{name}={moment.isoformat()} has no time zone; use an aware datetime")
        if self.ids is not None and len(self.ids) > IDS_MAX:
            raise ConfigurationError(f"ids has {len(self.ids)} entries, at most {IDS_MAX}: use another filter")

    def values(self) -> tuple[Value, ...]:
        ids = None if self.ids is None else json.dumps(self.ids)
        return (self.consumer, self.topic, self.reason, _ms(self.since), _ms(self.until), ids)

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters with one topic and one reason. `unfit` of them are too old to be redriven."""

    topic: str | None
    reason: str
    failed_messages: int
    unfit: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a redrive would do."""

    groups: list[Group]
    """The largest ones."""
    matched: int
    """How many dead letters there are, in all groups."""
    unfit: int
    """How many of them are too old."""
    first: list[str]
    """The ids that would come first."""
    cut: bool = False
    """There are more than were counted."""

    @property
    def failed_messages(self) -> int:
        return self.matched - self.unfit


@dataclass(frozen=True, slots=True)
class Job:
    """How a redrive stands. Its messages are counted where they are kept: one that is gone leaves no trace of why."""

    id: str
    consumer: str
    failed_messages: int
    cancelled: bool
    waiting: int
    dead: int

    @property
    def gone(self) -> int | None:
        """Handled, discarded, or taken by a later redrive. None of a cancelled one, which no longer has what it had not
        tried either."""
        return None if self.cancelled else self.failed_messages - self.waiting - self.dead


async def preview(
    dialect: str, chosen: Filter, *, dead_letter_s: float = 7 * DAY_S, first: int = 10, count_max: int = COUNTED_MAX
) -> Preview:
    """A dry run. It counts up to `count_max`, and where that does not reach the end it names no ids."""
    sql, age_ms = STATEMENTS[dialect], milliseconds(dead_letter_s)

    async def work() -> Preview:
        rows = await Fetch(sql.tally(chosen.values(), age_ms, count_max))
        groups = [Group(*row[:4]) for row in rows]
        matched, unfit = map(int, rows[0][4:] if rows else (0, 0))  # sums of counts are NUMERIC on Postgres
        if matched >= count_max:
            return Preview(groups, matched, unfit, [], cut=True)
        sample = [row[0] for row in await Fetch(sql.sample(chosen.values(), age_ms, first))]
        return Preview(groups, matched, unfit, sample)

    return await with_connection(work)


async def redrive(
    dialect: str,
    chosen: Filter,
    *,
    actor: str,
    per_second: float = 10.0,
    limit: int = 10_000,
    dead_letter_s: float = 7 * DAY_S,
    why: str = "",
    listener: Listener | None = None,
    now_ms: Callable[[], int] = wall_ms,
) -> Job:
    """Try dead letters again. Their counts begin anew, their history stays. What could not be read is read again."""
    check_actor(actor)
    require("per_second", per_second, least=0.001, most=100_000)
    require("limit", limit, least=1, most=REDRIVE_MAX)
    sql, job_id = STATEMENTS[dialect], new_id(now_ms())
    pause_us = round(1_000_000 / per_second)
    details = with_why({"job": job_id, "per_second": per_second, "limit": limit, "filter": chosen.to_json()}, why)

    async def work() -> Job:
        await Batch(
            (
                Boundary.BEGIN,
                sql.redrive(chosen.values(), milliseconds(dead_letter_s), limit, job_id, pause_us),
                sql.job(job_id, chosen.consumer, actor, chosen.to_json()),
                sql.audit(actor, "redrive", chosen.consumer, json.dumps(details)),
                Boundary.COMMIT,
            )
        )
        return await read_job(sql.job_state(job_id), job_id)

    job = await with_connection(work)
    emit(listener, Redriven(chosen.consumer, actor, job.failed_messages))
    return job


async def job_of(dialect: str, job_id: str) -> Job:
    """How a redrive stands."""
    return await with_connection(lambda: read_job(STATEMENTS[dialect].job_state(job_id), job_id))


async def cancel(dialect: str, job_id: str, *, actor: str, why: str = "") -> Job:
    """What the job has not run yet is dead again; what ran and failed goes on with its attempts."""
    check_actor(actor)
    sql = STATEMENTS[dialect]

    async def work() -> Job:
        await Batch((Boundary.BEGIN,))
        before = await read_job(sql.job_state(job_id), job_id)
        audit = sql.audit(actor, "cancel", before.consumer, json.dumps(with_why({"job": job_id}, why)))
        await Batch((sql.cancel(job_id), sql.recall(job_id), audit, Boundary.COMMIT))
        return await read_job(sql.job_state(job_id), job_id)

    return await with_connection(work)


def read_job(statement: Statement, job_id: str) -> Flow[Job]:
    async def work() -> Job:
        rows = await Fetch(statement)
        if not rows:
            raise FailedMessageNotFit(f"there is no redrive job {job_id!r}")
        consumer, failed_messages, cancelled, waiting, dead = rows[0]
        return Job(job_id, consumer, failed_messages, bool(cancelled), waiting, dead)

    return work()


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
