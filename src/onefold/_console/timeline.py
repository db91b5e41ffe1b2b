"""The timeline of one correlation id: requests, events, deliveries and failures, in the order of time.

It is made from what the tables of this database still have. An event is here while it waits, and after that for as long
as relays keep published events; what consumers of another database did is in theirs. A request is found by its events,
which name its record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, cast

from onefold._idempotency.stored_keys import KeyView
from onefold._inbox.message_traces import FailedAt, HandledMessage, MessageTraces
from onefold._outbox.event_lists import ListedEvent
from onefold._outbox.request_names import RequestName

Tone = Literal["neutral", "good", "warn", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A past or future moment."""

    at_ms: int
    lane: str
    """Where: the service that wrote it, the relay, a consumer."""
    what: str
    tone: Tone
    event: str
    """The id of the event or message."""
    detail: str = ""
    error: str = ""
    """The error text of an exception or a broker."""
    link: str = ""
    to_come: bool = False


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """A moment, placed in the drawing: from 0 at the first to 1000 at the last."""

    moment: Moment
    x: float
    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The values of the template: the drawing, and the list below it."""

    moments: tuple[Moment, ...]
    lanes: tuple[str, ...]
    marks: tuple[TimelineMark, ...]

    @property
    def span_ms(self) -> int:
        return self.moments[-1].at_ms - self.moments[0].at_ms if self.moments else 0


def draw_timeline(
    events: Sequence[ListedEvent], traces: MessageTraces, records: Mapping[str, KeyView] | None = None
) -> Timeline:
    """The timeline of these events, their requests (by their records), and their deliveries."""
    unsorted = list(_of_requests(events, records or {}))
    unsorted += [moment for event in events for moment in _of_event(event)]
    unsorted += map(_of_handled, traces.handled)
    unsorted += [moment for failed in traces.failed for moment in _of_failed(failed)]
    moments = tuple(sorted(unsorted, key=lambda moment: (moment.at_ms, _RANK[moment.lane.partition(" ")[0]])))
    lanes = tuple(dict.fromkeys(moment.lane for moment in moments))
    if not moments:
        return Timeline(moments=(), lanes=(), marks=())
    first, last = moments[0].at_ms, moments[-1].at_ms
    scale = 1000 / max(1, last - first)
    marks = tuple(
        TimelineMark(each, round((each.at_ms - first) * scale, 1), lanes.index(each.lane)) for each in moments
    )
    return Timeline(moments=moments, lanes=lanes, marks=marks)


_RANK = {"request": 0, "service": 1, "relay": 2, "consumer": 3}


def _of_requests(events: Sequence[ListedEvent], records: Mapping[str, KeyView]) -> Iterator[Moment]:
    """Each once, at the time of its first event: in Postgres that of the BEGIN of its transaction."""
    first: dict[RequestName, ListedEvent] = {}
    for event in events:
        if event.request is not None:
            first.setdefault(event.request, event)
    for request, event in first.items():
        record = records.get(request.digest)
        if record is None:
            what, tone = "its record is not stored: it is not finished, or was erased, or has expired", "neutral"
        else:
            what, tone = f"run, and answered {record.status}", "good" if record.status < 400 else "warn"
        yield Moment(
            at_ms=event.written_ms, lane="request" if record is None else f"request {record.operation}", what=what,
            tone=cast("Tone", tone), event=event.id, detail=f"key hash {request.key_hash}",
            link=f"/keys/{request.digest}?hash={request.key_hash}",
        )  # fmt: skip


def _of_event(event: ListedEvent) -> Iterator[Moment]:
    of = f"{event.topic}" + ("" if event.key is None else f", key {event.key}, version {event.version}")
    yield Moment(
        at_ms=event.written_ms,
        lane=f"service {event.source}",
        what="committed, with the rows of its transaction",
        tone="neutral",
        event=event.id,
        detail=of,
    )
    to = event.destination or event.topic
    match event.state:
        case "published" if event.published_ms is not None:
            what = f"published to {to}, confirmed by the broker"
            yield Moment(at_ms=event.published_ms, lane="relay", what=what, tone="good", event=event.id)
        case "dead":
            at_ms = event.written_ms if event.died_ms is None else event.died_ms
            what = f"refused {event.attempts} times: a dead letter of the outbox, waits for a person"
            yield Moment(
                at_ms=at_ms, lane="relay", what=what, tone="bad", event=event.id, error=event.error or "",
                link="/outbox/stuck",
            )  # fmt: skip
        case "retrying" | "delayed" if event.due_ms is not None:
            text = "is published then" if event.state == "delayed" else f"refused {event.attempts} times, tried again"
            yield Moment(
                at_ms=event.due_ms, lane="relay", what=text, tone="neutral" if event.state == "delayed" else "warn",
                event=event.id, error=event.error or "", to_come=True,
            )  # fmt: skip
        case _:
            pass


def _of_handled(handled: HandledMessage) -> Moment:
    return Moment(
        at_ms=handled.handled_ms,
        lane=f"consumer {handled.consumer}",
        what="handled, committed with the rows of its handler",
        tone="good",
        event=handled.message_id,
    )


def _of_failed(found: FailedAt) -> Iterator[Moment]:
    failed, lane = found.failed, f"consumer {found.consumer}"
    for failure in failed.history:
        at = datetime.fromisoformat(failure["at"])
        yield Moment(
            at_ms=int(at.timestamp() * 1000), lane=lane, what="failed", tone="warn", event=failed.row_id,
            error=failure["error"],
        )  # fmt: skip
    if failed.state == "dead":
        yield Moment(
            at_ms=failed.died_ms or failed.created_ms, lane=lane, what="a dead letter, waits for a person", tone="bad",
            event=failed.row_id, error=failed.reason, link="/dead-letters",
        )  # fmt: skip
    elif not failed.history:
        yield Moment(
            at_ms=failed.created_ms, lane=lane, what="parked" if failed.due_in_s is None else "waits", tone="warn",
            event=failed.row_id, error=failed.reason,
        )  # fmt: skip
