"""A message as the inbox keeps it: what came from the broker, to the byte, and what was read from it.

Invariant: `restored(parcel.values()) == parcel`, so a letter is handled as its delivery would have been.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

from onefold._kernel.effects import Value
from onefold._kernel.messages import Delivery, Message, stream_of

ID_LENGTH_MAX: Final = 512
HISTORY_MAX: Final = 20
REASON_MAX: Final = 1000
TRACE_MAX: Final = 4000

UNREADABLE: Final = "the message has no envelope that can be read; see its headers and bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One message and its wrapping. Without a message it could not be read, and `problem` says why."""

    id: str
    headers: Mapping[str, str]
    """As they came."""
    data: bytes
    message: Message | None
    problem: str | None = None

    @property
    def topic(self) -> str:
        return self.message.topic if self.message is not None else "?"

    @property
    def stream(self) -> bytes | None:
        message = self.message
        if message is None or message.key is None:
            return None
        return stream_of(message.source, message.topic, message.key)

    def values(self) -> tuple[Value, ...]:
        """As a letter's row has them, from message_id to version."""
        message = self.message
        if message is None:
            return (self.id, _written(self.headers), self.data, None, "{}", None, None, None, None, None, None)
        envelope = {
            "content_type": message.content_type,
            "time": message.time,
            "epoch": message.epoch,
            "headers": dict(message.headers),
        }
        body = None if message.data == self.data else message.data
        named = (message.source, message.topic, message.key, self.stream, message.epoch or 0, message.version)
        return (self.id, _written(self.headers), self.data, body, json.dumps(envelope), *named)


def received(delivery: Delivery) -> Parcel:
    """A delivery as a parcel. What cannot be kept under its own id is named after its bytes."""
    headers = delivery.headers
    message, problem = delivery.message, delivery.problem
    if message is not None:
        problem = _problem(message)
        if problem is None:
            return Parcel(id=message.id, headers=headers, data=delivery.data, message=message)
    name = blake2b(_written(headers).encode() + b"\n" + delivery.data, digest_size=16).hexdigest()
    problem = tidy((problem or UNREADABLE)[:REASON_MAX])
    return Parcel(id=f"unreadable:{name}", headers=headers, data=delivery.data, message=None, problem=problem)


def restored(
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
) -> Parcel:
    """The parcel in a letter's row."""
    if source is None or topic is None:
        return Parcel(id=message_id, headers=json.loads(headers), data=bytes(data), message=None, problem=UNREADABLE)
    more: Mapping[str, Any] = json.loads(envelope)
    message = Message(
        id=message_id,
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
    return Parcel(id=message_id, headers=json.loads(headers), data=bytes(data), message=message)


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


def _written(headers: Mapping[str, str]) -> str:
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
