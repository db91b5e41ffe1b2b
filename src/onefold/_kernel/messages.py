"""What travels between services: an event in its CloudEvents envelope, and how it reads as headers.

Invariant: `read(write(message)) == message`, and what cannot be read says why instead of losing anything.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from onefold.errors import BrokerUnavailable, MessageRefused, MessageUnreadable

#: The prefix of CloudEvents attributes among other headers, where a transport's binding does not say otherwise.
PREFIX: Final = "ce-"

#: Where an event's trace is: as headers, or, of other producers, as the CloudEvents extension for distributed tracing.
TRACE: Final = ("traceparent", "tracestate")

#: Headers that follow a request or a message into the events it causes.
CARRIED: Final = (*TRACE, "correlation-id")

#: Foreign producers may write anything: what is longer, or not printable, has no place in a database's keys.
ATTRIBUTE_LENGTH_MAX: Final = 512

STRUCTURED: Final = "application/cloudevents+json"
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_ALL_SAFE: Final = re.compile(f"[{re.escape(_SAFE)}]*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)

#: The outcome of publishing one message. None: the broker has it for good.
Confirm: TypeAlias = MessageRefused | BrokerUnavailable | None


class NotSent(BrokerUnavailable):
    """The broker has not sent this message now, or has no answer yet: that is no attempt at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One event. `id` is its identity on every send, unique for its `source`, the application that it comes from;
    `topic` is what happened, `data` what is known of it, as bytes of a `content_type`, and `time` when, as RFC 3339.
    `version` counts without gaps per (source, topic, `key`)."""

    id: str
    source: str
    topic: str
    data: bytes
    content_type: str = "application/json"
    time: str | None = None
    key: str | None = None
    epoch: int | None = None
    """Which count of versions this is: greater after the counter had to start over."""
    version: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """The application's own, and what is carried along: trace and correlation."""
    endpoint: str | None = None
    """On its way out only: the one endpoint that this copy of a webhook goes to."""

    @property
    def stream(self) -> bytes | None:
        """The name of its count of versions. None: it has no key, and no order to keep."""
        return None if self.key is None else stream_of(self.source, self.topic, self.key)

    def json(self) -> Any:
        """The data, read as JSON."""
        return json.loads(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a message lay, in its broker's own words: what is known of one that has no envelope."""

    broker: str = ""
    subject: str = ""
    """What it was sent to: a NATS subject, a topic of Kafka, the key of a Redis stream, a routing key."""
    topic: str = ""
    """What it was sent to, as consumers call it."""
    id: str | None = None
    """What its producer called it in the broker's own way (`Nats-Msg-Id`, AMQP's `message_id`), else where it lies
    (sequence, partition and offset, entry): the same whenever it is delivered. None where the broker has neither."""
    key: str | None = None
    """Kafka's record key."""
    prefix: str = PREFIX
    """How its transport marks CloudEvents attributes, and whether it takes ASCII only."""
    percent: bool = True

    @property
    def source(self) -> str:
        """For a message that names none."""
        return f"{self.broker or 'foreign'}:{self.subject or self.topic}"


#: Where nothing is known.
NOWHERE: Final = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a broker handed over, as it came: `data`, `headers`, and where it lay (`origin`). Exactly one of `message`,
    as it is read, and `problem`, why it cannot be, is there."""

    data: bytes
    headers: Mapping[str, str]
    message: Message | None = None
    problem: str | None = None
    origin: Origin = NOWHERE
    tag: str | None = None
    """Names this one handing over, where the broker has no id for the message."""
    redelivered: bool = False
    """The broker gave it out before, or cannot say that it did not."""
    receipt: Any = None
    """What the adapter needs to settle it."""

    def json(self) -> Any:
        """The data of a message without an envelope, read as JSON."""
        return json.loads(self.data)


def stream_of(source: str, topic: str, key: str) -> bytes:
    """16 bytes that name a stream, one count of versions. Neither source nor topic can contain the separator. A key
    that is not a valid text has a name too: sorting deliveries by it must not fail on one that came in."""
    return blake2b(f"{source}\n{topic}\n{key}".encode(errors="surrogatepass"), digest_size=16).digest()


def pick_carried(found: Mapping[str, str | None]) -> dict[str, str]:
    """Of these headers, those that follow a request or a message into its events. What cannot be carried is left out:
    an odd header must not fail the request or message it came with."""
    return {
        name: value
        for name in CARRIED
        if (value := found.get(name)) and len(value) <= 512 and value.isascii() and value.isprintable()
    }


def attributes(message: Message) -> dict[str, str]:
    """The CloudEvents attributes, unprefixed. Key and version travel in the registered extensions for them."""
    found = {"specversion": "1.0", "id": message.id, "source": message.source, "type": message.topic}
    if message.time is not None:
        found["time"] = message.time
    if message.key is not None:
        found["partitionkey"] = message.key
    if message.version is not None:
        found["sequence"] = str(message.version)
    if message.epoch is not None:
        found["sequenceepoch"] = str(message.epoch)
    return found


def write(message: Message, *, prefix: str = PREFIX, percent: bool = True) -> dict[str, str]:
    """A message's headers in binary mode. `percent` escapes attributes for transports that take ASCII only."""
    headers = dict(message.headers)
    headers["content-type"] = message.content_type
    for name, value in attributes(message).items():
        headers[prefix + name] = ascii_only(value) if percent else value
    return headers


def ascii_only(value: str) -> str:
    """An attribute for transports that take ASCII only."""
    # Looking first is four times as fast as quoting, and nearly all values are safe.
    return value if _ALL_SAFE.fullmatch(value) else quote(value, safe=_SAFE)


def write_structured(message: Message) -> tuple[dict[str, str], bytes]:
    """A message's headers and body in structured mode: its attributes are part of the body. Data that would not come
    back byte for byte as a member of the document travels in base64."""
    document: dict[str, Any] = {**attributes(message), "datacontenttype": message.content_type}
    document |= {name: message.headers[name] for name in TRACE if name in message.headers}
    try:
        document["data"] = json.loads(message.data) if "json" in message.content_type else message.data.decode()
    except (ValueError, RecursionError):
        document["data"] = None
    if _member_bytes(document["data"], message.content_type) != message.data:
        del document["data"]
        document["data_base64"] = base64.b64encode(message.data).decode()
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return {**message.headers, "content-type": STRUCTURED}, body


def read(headers: Mapping[str, str], data: bytes, *, prefix: str = PREFIX, percent: bool = True) -> Message:
    """The message in what was received, in binary or structured mode. Raises MessageUnreadable, and nothing else: what
    a foreign producer wrote must not stop who reads it."""
    return _read_guarded(headers, data, Origin(prefix=prefix, percent=percent), {}, {})


def read_delivery(
    headers: Mapping[str, str],
    data: bytes,
    *,
    redelivered: bool,
    receipt: Any,
    origin: Origin = NOWHERE,
    tag: str | None = None,
) -> Delivery:
    """A delivery, whether or not its envelope can be read."""
    message, problem = _read_outcome(headers, data, origin, None)
    return Delivery(
        data=data,
        headers=headers,
        message=message,
        problem=problem,
        origin=origin,
        tag=tag,
        redelivered=redelivered,
        receipt=receipt,
    )


def read_again(delivery: Delivery, named: str | None = None) -> Delivery:
    """The delivery, read anew. With an id that was found elsewhere it needs no envelope: what its attributes do not
    say, its origin does."""
    message, problem = _read_outcome(delivery.headers, delivery.data, delivery.origin, named)
    return replace(delivery, message=message, problem=problem)


def _read_outcome(
    headers: Mapping[str, str], data: bytes, origin: Origin, named: str | None
) -> tuple[Message | None, str | None]:
    forced = {} if named is None else {"id": named}
    assumed = {} if named is None else {"source": origin.source, "type": origin.topic}
    if origin.key is not None:
        assumed["partitionkey"] = origin.key
    try:
        return _read_guarded(headers, data, origin, forced, assumed), None
    except MessageUnreadable as error:
        return None, str(error)


def _read_guarded(
    headers: Mapping[str, str], data: bytes, origin: Origin, forced: Mapping[str, str], assumed: Mapping[str, str]
) -> Message:
    try:
        return _read(headers, data, origin, forced, assumed)
    except MessageUnreadable:
        raise
    except Exception as error:  # half characters, brackets a hundred thousand deep, and what else there may be
        raise MessageUnreadable(f"the message cannot be read: {type(error).__name__}: {error}") from error


def _read(
    headers: Mapping[str, str], data: bytes, origin: Origin, forced: Mapping[str, str], assumed: Mapping[str, str]
) -> Message:
    prefix = origin.prefix
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() == STRUCTURED:
        found, own, data, content_type = _read_structured(headers, data)
    else:
        found, own = {}, {}
        for name, value in headers.items():
            if name.startswith(prefix):
                found[name[len(prefix) :]] = unquote(value) if origin.percent and "%" in value else value
            elif name != "content-type":
                own[name] = value
    found |= {name: value for name, value in assumed.items() if not found.get(name)} | dict(forced)
    own = {name: found[name] for name in TRACE if name in found} | own
    _check(found, headers, prefix)
    return Message(
        id=found["id"],
        source=found["source"],
        topic=found["type"],
        data=data,
        content_type=content_type or "application/octet-stream",
        time=found.get("time"),
        key=found.get("partitionkey"),
        epoch=_number(found, "sequenceepoch"),
        version=_number(found, "sequence"),
        headers=own,
    )


def _check(found: Mapping[str, str], headers: Mapping[str, str], prefix: str) -> None:
    for name in ("id", "source", "type"):
        if not found.get(name):
            raise MessageUnreadable(
                f"the message has no CloudEvents attribute {name!r} (looked for the header {prefix + name!r}); "
                f"its headers are {sorted(headers)}"
            )
    for name in ("id", "source", "type", "time", "partitionkey"):
        value = found.get(name, "")
        if len(value) > ATTRIBUTE_LENGTH_MAX or not value.isprintable():
            raise MessageUnreadable(
                f"the message's CloudEvents attribute {name!r} is {value[:50]!r}, {len(value)} characters; it must be "
                f"printable and have at most {ATTRIBUTE_LENGTH_MAX}"
            )


def name_apart(message_id: str, source: str) -> str:
    """An id that differs from those of other sources with the same id. It is little longer than the id."""
    return f"{message_id}@{blake2b(source.encode(errors='surrogatepass'), digest_size=8).hexdigest()}"


def key_text(raw: bytes) -> str:
    """A record's key as text: itself where that is printable, else its bytes in hexadecimal, or a digest of many."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() and len(text) <= ATTRIBUTE_LENGTH_MAX:
        return text
    return raw.hex() if len(raw) <= ATTRIBUTE_LENGTH_MAX // 2 else blake2b(raw, digest_size=16).hexdigest()


def _read_structured(headers: Mapping[str, str], data: bytes) -> tuple[dict[str, str], dict[str, str], bytes, str]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MessageUnreadable(f"the message says {STRUCTURED} but is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MessageUnreadable(f"the message says {STRUCTURED} but is a JSON {type(document).__name__}")
    found = {name: str(value) for name, value in document.items() if isinstance(value, str | int)}
    own = {name: value for name, value in headers.items() if name != "content-type"}
    content_type = str(document.get("datacontenttype", "application/json"))
    if "data_base64" in document:
        try:
            body = _decode(document["data_base64"])
        except ValueError as error:
            raise MessageUnreadable(f"the message's data_base64 is not base64: {error}") from error
    else:
        body = _member_bytes(document.get("data"), content_type)
    return found, own, body, content_type


def _member_bytes(data: object, content_type: str) -> bytes:
    """The data that a member of the document stands for."""
    if isinstance(data, str) and "json" not in content_type:
        return data.encode()
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _decode(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"it is {text!r}")
    return base64.b64decode(text, validate=True)


def _number(found: Mapping[str, str], name: str) -> int | None:
    """A foreign producer's sequence may be any text: what is not a number is not a version."""
    text = found.get(name, "")
    number = int(text) if _NUMBER.fullmatch(text) else None
    return None if number is None or abs(number) >= 1 << 63 else number
