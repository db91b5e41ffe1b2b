"""Publishing inside a transaction: events wait in memory until COMMIT is next, then leave with it in one batch.

Theory of operation. `publish` only checks and buffers, so a savepoint that rolls back takes its events along by
shortening the list. The flush writes them sorted by stream: each event with a key locks its stream's counter until
COMMIT, which is in the same batch, so the locks are short, and whoever holds several took them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Statement
from onefold._kernel.ids import new_id
from onefold._kernel.messages import stream_of
from onefold.errors import ConfigurationError, MessageInvalid
from onefold.outbox.model import (
    Draft,
    checked_headers,
    checked_key,
    checked_source,
    checked_topic,
    due_ms,
    rfc3339,
    serialised,
)
from onefold.outbox.sql import STATEMENTS

EVENTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """What all transactions of an application share."""

    dialect: str
    source: str | None = None
    """The name of the service in its events. None: this application publishes nothing."""
    event_bytes_max: int = 512 * 1024
    now_ms: Callable[[], int] = wall_ms
    new_id: Callable[[int], str] = new_id
    committed: list[Callable[[], None]] = field(default_factory=list)
    """Called after a transaction with events committed: how a relay in this process is woken."""

    def __post_init__(self) -> None:
        if self.source is not None:
            checked_source(self.source)
        if not 1 <= self.event_bytes_max <= 64 * 1024 * 1024:
            raise ConfigurationError(f"event_bytes_max={self.event_bytes_max} must be between 1 and 67108864 (64 MiB)")

    def outgoing(self) -> Outgoing:
        return Outgoing(self)


class Outgoing:
    """The events of one transaction, in the order they were published."""

    __slots__ = ("_drafts", "_outbox")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._drafts: list[Draft] = []

    def __len__(self) -> int:
        return len(self._drafts)

    def add(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | UUID | None,
        headers: Mapping[str, str],
        content_type: str | None,
        not_before: datetime | None,
    ) -> str:
        """Check an event and keep it for COMMIT; its id."""
        outbox = self._outbox
        if outbox.source is None:
            raise ConfigurationError(
                f"an event on {topic!r} was published, but the application has no name to publish under: give Onefold "
                "a source, for example source='orders'"
            )
        if len(self._drafts) >= EVENTS_MAX:
            raise MessageInvalid(
                f"a transaction publishes at most {EVENTS_MAX} events, and this one on {topic!r} is one more: commit "
                "in between"
            )
        now_ms = outbox.now_ms()
        name = checked_key(checked_topic(topic), key)
        draft = Draft(
            id=outbox.new_id(now_ms),
            source=outbox.source,
            topic=topic,
            key=name,
            stream=None if name is None else stream_of(outbox.source, topic, name),
            time=rfc3339(now_ms),
            content_type=_content_type(topic, data, content_type),
            headers=checked_headers(topic, headers),
            data=serialised(topic, data, bytes_max=outbox.event_bytes_max),
            due_ms=due_ms(topic, not_before, name),
        )
        self._drafts.append(draft)
        return draft.id

    def cut(self, length: int) -> None:
        """A savepoint rolled back: what was published since is gone with it."""
        del self._drafts[length:]

    def flush(self) -> tuple[Statement, ...]:
        """What writes the events: to go in front of COMMIT. Sorting is stable: within a stream, order is kept."""
        write = STATEMENTS[self._outbox.dialect].write
        statements: list[Statement] = []
        for draft in sorted(self._drafts, key=_by_stream):
            statements += write(draft)
        return tuple(statements)

    def committed(self) -> None:
        """They are in the database: whoever publishes them may be told."""
        for tell in self._outbox.committed:
            tell()


def _by_stream(draft: Draft) -> bytes:
    return draft.stream or b""


def _content_type(topic: str, data: object, given: str | None) -> str:
    if given is None:
        if isinstance(data, bytes):
            raise MessageInvalid(
                f"the data of an event on {topic!r} is bytes; say what they are with content_type=..., for example "
                "'application/protobuf'"
            )
        return "application/json"
    if not given.isascii() or not given.isprintable() or len(given) > 255:
        raise MessageInvalid(f"content_type={given!r} of an event on {topic!r} is not a media type")
    return given
