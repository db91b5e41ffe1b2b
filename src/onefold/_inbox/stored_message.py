"""A message as the inbox keeps it: what came from the broker, to the byte, and what was read from it.

Invariant: `stored_from_row(stored.values()) == stored`, so a failed message is handled as its delivery would
have been.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, Literal, Self

from onefold._inbox.message_identity import Identity, identity_of
from onefold._kernel.effects import Value
from onefold._kernel.messages import NOWHERE, Delivery, Message, Origin, read_again

ID_LENGTH_MAX: Final = 512
HISTORY_MAX: Final = 20
REASON_MAX: Final = 1000
TRACE_MAX: Final = 4000

_NOWHERE: Final = asdict(NOWHERE)

#: Where it is not known to which topic a message was sent.
UNKNOWN_TOPIC: Final = "?"

UNREADABLE: Final = "the message has no envelope that can be read; see its headers and bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One message and its wrapping. Without a message it could not be read, and `problem` says why."""

    id: str
    headers: Mapping[str, str]
    """As they came."""
    data: bytes
    message: Message | None
    problem: str | None = None
    origin: Origin = NOWHERE

    @property
    def topic(self) -> str:
        return self.message.topic if self.message is not None else self.origin.topic or UNKNOWN_TOPIC

    @property
    def source(self) -> str | None:
        return None if self.message is None else self.message.source

    @property
    def identity(self) -> Identity:
        """By what it is known: its name is the one it is kept under."""
        if self.message is None:
            return Identity(self.id, self.id, None)
        return replace(identity_of(self.message.id, self.message.source), name=self.id)

    @property
    def own_id(self) -> str | None:
        """Its id, where it goes by another name."""
        return None if self.message is None or self.id == self.message.id else self.message.id

    def set_apart(self) -> Self:
        """The same under the name that it has where another source's message has its id."""
        return replace(self, id=self.identity.apart)

    @property
    def stream(self) -> bytes | None:
        return None if self.message is None else self.message.stream

    def values(self) -> tuple[Value, ...]:
        """As a failed message's row has them, from message_id to version."""
        message = self.message
        origin = {name: value for name, value in asdict(self.origin).items() if value != _NOWHERE[name]}
        if message is None:
            # Without a source it counts as unreadable; the topic is for people to find it by.
            named = (None, self.origin.topic or None, None, None, None, None)
            return (self.id, _write_headers(self.headers), self.data, None, json.dumps({"origin": origin}), *named)
        envelope = {
            "origin": origin,
            "content_type": message.content_type,
            "time": message.time,
            "epoch": message.epoch,
            "headers": dict(message.headers),
        }
        if self.id != message.id:
            envelope["id"] = message.id
        body = None if message.data == self.data else message.data
        called = (message.source, message.topic, message.key, self.stream, message.epoch or 0, message.version)
        return (self.id, _write_headers(self.headers), self.data, body, json.dumps(envelope), *called)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage(StoredMessage):
    """A message that was not handled and is no longer at the broker: it is in `onefold_letter`."""

    row_id: str
    """What its row is called: another name than its own where that could not be read when it came."""
    state: Literal["waiting", "dead"]
    reason: str
    started: int
    failed: int
    history_json: str
    created_ms: int
    due_in_s: float | None
    """None: it waits for its predecessor, or is dead."""
    died_ms: int | None
    redrive: str | None

    @property
    def history(self) -> list[dict[str, str]]:
        """Its last failures: at, error, traceback."""
        failures: list[dict[str, str]] = json.loads(self.history_json)
        return failures


def stream_position(stored: StoredMessage) -> tuple[bytes, int, int]:
    """Stream, epoch and version of a message that an ordered consumer can handle: anything else was refused before."""
    message, stream = stored.message, stored.stream
    assert message is not None
    assert message.version is not None
    assert stream is not None
    return stream, message.epoch or 0, message.version


def stored_from_delivery(delivery: Delivery) -> StoredMessage:
    """A delivery as a stored message. What cannot be kept under its own id is named after what its broker calls it."""
    headers, origin = delivery.headers, delivery.origin
    message, problem = delivery.message, delivery.problem
    if message is not None:
        problem = _problem(message)
        if problem is None:
            return StoredMessage(id=message.id, headers=headers, data=delivery.data, message=message, origin=origin)
    problem = tidy((problem or UNREADABLE)[:REASON_MAX])
    name = f"unreadable:{_digest(delivery)}"
    return StoredMessage(id=name, headers=headers, data=delivery.data, message=None, problem=problem, origin=origin)


def stored_unread(delivery: Delivery) -> StoredMessage:
    """A delivery as a stored message that is read when it is taken, by the process that takes it: two releases of a
    consumer may give one message different ids."""
    found = read_again(delivery).message
    if delivery.message is not None and found != delivery.message:
        return stored_from_delivery(delivery)  # an adapter that is not ours may leave out what it was read from
    origin = replace(delivery.origin, topic=topic_sent_to(delivery) or "")
    return StoredMessage(
        id=f"unread:{_digest(delivery)}",
        headers=delivery.headers,
        data=delivery.data,
        message=None,
        problem=UNREADABLE,
        origin=origin,
    )


def _digest(delivery: Delivery) -> str:
    """A name: the same for each delivery of one message, and another for its twin. A broker that has no id for a
    message knows at least that it hands this one out for the first time; should that answer get lost, there are two
    failed messages of it."""
    origin = delivery.origin
    native = origin.id
    if native is None and not delivery.redelivered:
        native = delivery.tag
    names = json.dumps([origin.broker, origin.subject, native, dict(delivery.headers)], sort_keys=True)
    return blake2b(names.encode() + b"\n" + delivery.data, digest_size=16).hexdigest()


def stored_from_row(
    message_id: str,
    headers: str,
    data: bytes,
    body: bytes | None,
    envelope: str,
    source: str | None,
    topic: str | None,
    key: str | None,
    _stream: bytes | None,
    _epoch: int | None,
    version: int | None,
) -> StoredMessage:
    """The stored message in a failed message's row."""
    more: Mapping[str, Any] = json.loads(envelope)
    origin = Origin(**{name: value for name, value in more.get("origin", {}).items() if name in _NOWHERE})
    if source is None or topic is None:
        return StoredMessage(
            id=message_id,
            headers=json.loads(headers),
            data=bytes(data),
            message=None,
            problem=UNREADABLE,
            origin=origin,
        )
    message = Message(
        id=more.get("id", message_id),
        source=source,
        topic=topic,
        data=bytes(data if body is None else body),
        content_type=more["content_type"],
        time=more["time"],
        key=key,
        epoch=more["epoch"],
        version=version,
        headers=more["headers"],
    )
    return StoredMessage(id=message_id, headers=json.loads(headers), data=bytes(data), message=message, origin=origin)


def write_identities(stored_messages: Sequence[StoredMessage]) -> str:
    """Their identities, as a JSON array."""
    return json.dumps([asdict(stored.identity) for stored in stored_messages])


def topic_sent_to(received: Delivery | StoredMessage) -> str | None:
    """The topic that it was sent to, as far as that is known."""
    return received.origin.topic or (None if received.message is None else received.message.topic)


def kept_as_started(stored: StoredMessage, reason: str, now_ms: int, due_ms: int) -> FailedMessage:
    """The message as it was just kept: started once, by us."""
    return FailedMessage(
        id=stored.id, headers=stored.headers, data=stored.data, message=stored.message, origin=stored.origin,
        row_id=stored.id, state="waiting", reason=reason, started=1, failed=0, history_json="[]", created_ms=now_ms,
        due_in_s=due_ms / 1000, died_ms=None, redrive=None,
    )  # fmt: skip


def write_held(failed_messages: Sequence[FailedMessage]) -> str:
    """The names of their rows and the counts that their starts wrote, as a JSON array."""
    return json.dumps(
        [{"name": each.row_id, "started": each.started, "failed": each.failed} for each in failed_messages]
    )


def with_failure(history: str, error: BaseException, now_ms: int) -> str:
    """The history with one more failure; the last ones are kept, and not at any length."""
    failures: list[dict[str, str]] = json.loads(history)
    trace = "".join(traceback.format_exception(error, limit=-20))
    at = datetime.fromtimestamp(now_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    failures.append({"at": at, "error": reason_of(error), "traceback": tidy(trace[-TRACE_MAX:])})
    return json.dumps(failures[-HISTORY_MAX:])


def reason_of(error: BaseException) -> str:
    return tidy(f"{type(error).__qualname__}: {error}"[:REASON_MAX])


def tidy(text: str) -> str:
    """The text as every database takes it: no NUL, no half characters."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _write_headers(headers: Mapping[str, str]) -> str:
    return json.dumps(dict(headers), sort_keys=True)


def _is_tidy(text: str) -> bool:
    return (text.isascii() and "\0" not in text) or tidy(text) == text


def _problem(message: Message) -> str | None:
    """Why a message that was read cannot be kept under its own names."""
    for name, text in (("id", message.id), ("source", message.source), ("type", message.topic), ("key", message.key)):
        if text is not None and (len(text) > ID_LENGTH_MAX or not _is_tidy(text)):
            return f"the message's {name} is {text[:80]!r}; at most {ID_LENGTH_MAX} characters, and no NUL, can be kept"
    for name, number in (("sequence", message.version), ("sequenceepoch", message.epoch)):
        if number is not None and not -(2**63) <= number < 2**63:
            return f"the message's {name} is {number}, which has more than 64 bits"
    return None
