"""Publishing inside a transaction: events wait in memory until COMMIT is next, then leave with it in one batch.

Theory of operation. `publish` only checks and buffers, so a savepoint that rolls back takes its events along by
shortening the list. One that is cancelled stays there, with its cancellation behind it. The flush writes them sorted by
stream: each event with a key locks its stream's counter until COMMIT, which is in the same batch, so the locks are
short, and transactions that hold several took them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import BatchItem, Statement
from onefold._kernel.ids import new_id
from onefold._kernel.messages import Message
from onefold._kernel.tracing import Tracer
from onefold._outbox.event_checks import (
    check_due_ms,
    check_headers,
    check_key,
    check_source,
    check_topic,
    rfc3339,
    serialise,
)
from onefold._outbox.sql import STATEMENTS
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError, MessageInvalid

EVENTS_MAX: Final = 10_000

#: What event_bytes_max may be at most: 64 MiB.
EVENT_BYTES_MAX: Final = 67_108_864


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """What all transactions of an application share."""

    dialect: str
    source: str | None = None
    """The name of the service in its events. None: this application publishes nothing."""
    event_bytes_max: int = 512 * 1024
    now_ms: Callable[[], int] = wall_ms
    new_id: Callable[[int], str] = new_id
    tracer: Tracer | None = None
    committed: list[Callable[[], None]] = field(default_factory=list)
    """Called after a transaction with events committed: how relays are woken, in this process and in others."""

    def __post_init__(self) -> None:
        if self.source is not None:
            check_source(self.source)
            STATEMENTS.get(self.dialect)  # made now, and not while the first request waits
        require("event_bytes_max", self.event_bytes_max, least=1, most=EVENT_BYTES_MAX, whole=True)

    def new_buffer(self) -> EventBuffer:
        return EventBuffer(self)

    def make_event(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | UUID | None = None,
        headers: Mapping[str, str],
        content_type: str | None = None,
        event_id: str | None = None,
        time_ms: int | None = None,
    ) -> Message:
        """Check what an event is made of, and make it. It gets an id of its own, and the time it is now, unless they
        are given."""
        if self.source is None:
            raise ConfigurationError(
                f"an event on {topic!r} was published, but the application has no name to publish under: give Onefold "
                "a source, for example source='orders'"
            )
        now_ms = self.now_ms() if time_ms is None else time_ms
        name = check_key(check_topic(topic), key)
        return Message(
            id=self.new_id(now_ms) if event_id is None else event_id,
            source=self.source,
            topic=topic,
            key=name,
            time=rfc3339(now_ms),
            content_type=_content_type(topic, data, content_type),
            headers=check_headers(topic, headers),
            data=serialise(topic, data, bytes_max=self.event_bytes_max),
        )


class _BufferedEvent(NamedTuple):
    """An event, and before when it is not to be published: in milliseconds since 1970, or None."""

    event: Message
    due_ms: int | None


class EventBuffer:
    """The events of one transaction, in the order they were published, and the ids of those that were cancelled."""

    __slots__ = ("_entries", "_outbox")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._entries: list[_BufferedEvent | str] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | UUID | None,
        headers: Mapping[str, str],
        content_type: str | None,
        not_before: datetime | None,
        request: tuple[bytes, str] | None = None,
    ) -> str:
        """Check an event and keep it for COMMIT; its id."""
        if len(self._entries) >= EVENTS_MAX:
            raise MessageInvalid(
                f"a transaction publishes at most {EVENTS_MAX} events, and this one on {topic!r} is one more: commit "
                "in between"
            )
        event = self._outbox.make_event(topic, data, key=key, headers=headers, content_type=content_type)
        if self._outbox.tracer is not None:
            from onefold._kernel.message_trace import trace_creation  # most applications make no spans

            event = replace(event, headers=trace_creation(self._outbox.tracer, event))
        if request is not None:
            from onefold._outbox.request_names import name_request  # most requests publish nothing

            event = replace(event, headers=name_request(event.headers, *request))
        self._entries.append(_BufferedEvent(event, check_due_ms(topic, not_before, event.key)))
        return event.id

    def cancel(self, event_id: str) -> bool | tuple[BatchItem, ...]:
        """Take an event back: whether that is done now, or what does it, where it is one of an earlier transaction."""
        given: object = event_id
        if not isinstance(given, str):
            raise MessageInvalid(f"tx.cancel({given!r}): give the id of the event, which tx.publish returned")
        if event_id in self._entries:
            return False
        if any(isinstance(entry, _BufferedEvent) and entry.event.id == event_id for entry in self._entries):
            self._entries.append(event_id)
            return True
        return STATEMENTS[self._outbox.dialect].cancel(event_id)

    def cut(self, length: int) -> None:
        """A savepoint rolled back: what was published, or cancelled, since is not."""
        del self._entries[length:]

    def flush(self) -> tuple[Statement, ...]:
        """What writes the events: to go in front of COMMIT. Sorting is stable: within a stream, order is kept."""
        write = STATEMENTS[self._outbox.dialect].write
        statements: list[Statement] = []
        cancelled = {entry for entry in self._entries if isinstance(entry, str)}
        remaining = [
            entry for entry in self._entries if isinstance(entry, _BufferedEvent) and entry.event.id not in cancelled
        ]
        for event, due_ms in sorted(remaining, key=_stream) if len(remaining) > 1 else remaining:
            statements += write(event, due_ms)
        return tuple(statements)

    def announce(self) -> None:
        """The events are committed: wake the relays."""
        for wake in self._outbox.committed:
            wake()


def _stream(entry: _BufferedEvent) -> bytes:
    return entry.event.stream or b""


def _content_type(topic: str, data: object, given: str | None) -> str:
    if given is None:
        if isinstance(data, bytes):
            raise MessageInvalid(
                f"the data of an event on {topic!r} is bytes; say what they are with content_type=..., for example "
                "'application/protobuf'"
            )
        return "application/json"
    media: object = given
    if not isinstance(media, str) or not given.isascii() or not given.isprintable() or len(given) > 255:
        raise MessageInvalid(f"content_type={given!r} of an event on {topic!r} is not a media type")
    return given
