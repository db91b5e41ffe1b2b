"""Events as people look for them: what waits, what is stuck and what stands behind it, one key, and all that belongs to
one correlation id. Reads that lock nothing, and whose cost does not grow with the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from onefold._kernel.audit import note_of
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Row, Statement
from onefold._kernel.messages import stream_of
from onefold._outbox.request_names import RequestName, read_headers
from onefold._outbox.schema import bucket_of
from onefold._outbox.sql import STATEMENTS
from onefold._outbox.sql.event_lists import BEHIND_MAX, EVENT_LISTS
from onefold._outbox.status_report import AT_ONCE, Chosen
from onefold._policy.ranges import require

__all__ = ["BEHIND_MAX", "EventPage", "KeyStanding", "ListedEvent"]

LISTED_MAX: Final = 1000
#: Rows that are looked through for a correlation id among what is about to leave.
LOOKED_AT_MAX: Final = 10_000

#: How statements write that only a person moves it.
_NEVER: Final = 0

EventState = Literal["waiting", "delayed", "retrying", "dead", "published"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEvent:
    """An event without its data."""

    position: int
    id: str
    source: str
    topic: str
    destination: str | None
    key: str | None
    version: int | None
    headers: dict[str, str]
    request: RequestName | None = None
    """The request that published it, where that had a key."""
    written_ms: int
    due_ms: int | None
    died_ms: int | None
    published_ms: int | None
    attempts: int
    error: str | None
    content_type: str
    data_bytes: int
    behind: int
    """Events of its key that wait for it, at most BEHIND_MAX."""
    state: EventState

    @property
    def trace(self) -> str:
        """What it is followed by: its correlation id, or else its own."""
        return self.headers.get("correlation-id") or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Some events, and what to give for those after them; None: there are none."""

    events: tuple[ListedEvent, ...]
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStanding:
    """The events of one key that are in the outbox."""

    version: int | None
    """Of the last event of this key. None: there never was one."""
    stopped: tuple[ListedEvent, ...]
    waiting: EventPage


async def list_waiting(dialect: str, *, after: str | None = None, limit: int = 50) -> EventPage:
    """What waits in its turn, the oldest first."""
    require("limit", limit, least=1, most=LISTED_MAX)
    rows = await _fetch(EVENT_LISTS[dialect].waiting(_number(after), limit + 1))
    return _page(rows, limit)


async def list_waiting_for(dialect: str, destination: str, *, limit: int = 50) -> EventPage:
    """Some of what waits for one topic or endpoint."""
    require("limit", limit, least=1, most=LISTED_MAX)
    rows = await _fetch(EVENT_LISTS[dialect].waiting_of_topic(destination, limit))
    return EventPage(events=tuple(map(_read, rows)))


async def list_dead_events(dialect: str, *, after: str | None = None, limit: int = 50) -> EventPage:
    """Dead letters of the outbox, in the order they were written."""
    require("limit", limit, least=1, most=LISTED_MAX)
    rows = await _fetch(EVENT_LISTS[dialect].dead(_number(after), limit + 1))
    return _page(rows, limit)


async def list_retrying(dialect: str, *, after: str | None = None, limit: int = 50) -> EventPage:
    """What was refused and is tried again, the next first."""
    require("limit", limit, least=1, most=LISTED_MAX)
    rows = await _fetch(EVENT_LISTS[dialect].retrying(_number(after), limit + 1))
    return _page(rows, limit)


async def look_at_key(
    dialect: str, source: str, topic: str, key: str, *, after: str | None = None, limit: int = 50
) -> KeyStanding:
    """The events of one key that were not published yet."""
    require("limit", limit, least=1, most=LISTED_MAX)
    lists, stream = EVENT_LISTS[dialect], stream_of(source, topic, key)

    async def work() -> KeyStanding:
        version = await Fetch(lists.version(stream))
        stopped = await Fetch(lists.stopped_of_key(stream, limit))
        bucket = bucket_of("", stream)
        waiting = await Fetch(lists.waiting_of_key(bucket, topic, stream, _number(after), limit + 1))
        return KeyStanding(
            version=version[0][0] if version else None,
            stopped=tuple(map(_read, stopped)),
            waiting=_page(waiting, limit),
        )

    return await with_connection(work)


async def trace_events(dialect: str, name: str, *, limit: int = 200) -> list[ListedEvent]:
    """Events with this correlation id, or with this id where they have none, in the order they were written. Of those
    that are about to leave, LOOKED_AT_MAX are looked at."""
    require("limit", limit, least=1, most=LISTED_MAX)
    lists = EVENT_LISTS[dialect]

    async def work() -> list[Row]:
        kept = await Fetch(lists.trace(name, limit))
        return kept + await Fetch(lists.trace_waiting(name, limit, LOOKED_AT_MAX))

    found = {event.position: event for event in map(_read, await with_connection(work)) if event.trace == name}
    return [found[position] for position in sorted(found)][:limit]


async def act_on_stopped(
    dialect: str, action: Literal["retry", "discard"], chosen: Chosen, *, actor: str, why: str
) -> int:
    """Try the stopped events that fit now, or delete them, never to be published; how many there were. Each part is
    written to the audit in the transaction that does it."""
    sql = STATEMENTS[dialect]
    details = {name: value for name, value in _chosen_details(chosen) if value}

    async def work() -> int:
        total = 0
        while True:
            await Batch((Boundary.BEGIN,))
            statement = sql.retry if action == "retry" else sql.discard
            count = await Batch((statement(chosen.values(), AT_ONCE),))
            counted = {**details, "events": count}
            await Batch(
                (note_of(dialect, actor=actor, action=f"{action} events", details=counted, why=why), Boundary.COMMIT)
            )
            total += count
            if count < AT_ONCE:
                return total

    return await with_connection(work)


def _chosen_details(chosen: Chosen) -> Sequence[tuple[str, object]]:
    return (
        ("ids", list(chosen.ids or ())), ("topic", chosen.topic), ("destination", chosen.destination),
        ("error", chosen.reason), ("dead", chosen.dead),
    )  # fmt: skip


async def _fetch(statement: Statement) -> list[Row]:
    async def work() -> list[Row]:
        return await Fetch(statement)

    return await with_connection(work)


def _page(rows: Sequence[Row], limit: int) -> EventPage:
    events = tuple(map(_read, rows[:limit]))
    return EventPage(events=events, after=str(events[-1].position) if len(rows) > limit else None)


def _number(text: str | None) -> int:
    """A place in a list, as the address of a page has it: anything else begins at the beginning."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _read(row: Row) -> ListedEvent:
    (position, id_, source, topic, destination, key, version, headers, written_ms, due_ms, died_ms, published_ms,
     started, error, content_type, data_bytes, behind) = row  # fmt: skip
    own, request = read_headers(headers)
    return ListedEvent(
        position=position,
        id=id_,
        source=source,
        topic=topic,
        destination=destination,
        key=key,
        version=version,
        headers=own,
        request=request,
        written_ms=written_ms,
        due_ms=None if due_ms == _NEVER else due_ms,
        died_ms=died_ms,
        published_ms=published_ms,
        attempts=started,
        error=error,
        content_type=content_type,
        data_bytes=data_bytes,
        behind=behind,
        state=_state_of(due_ms, published_ms, error),
    )


def _state_of(due_ms: int | None, published_ms: int | None, error: str | None) -> EventState:
    if published_ms is not None:
        return "published"
    if due_ms is None:
        return "waiting"
    if due_ms == _NEVER:
        return "dead"
    return "delayed" if error is None else "retrying"
