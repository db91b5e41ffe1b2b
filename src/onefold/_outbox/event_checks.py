"""What `tx.publish` was given, checked and serialised once, before anything is written.

Invariant: what passes can be written and published as it is. What cannot is refused where the mistake was made, with
the transaction unharmed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final
from uuid import UUID

from onefold._kernel.arguments import name_type
from onefold._kernel.topics import TOPIC, is_pattern
from onefold.errors import ConfigurationError, MessageInvalid

HEADERS_MAX: Final = 32
HEADER_BYTES_MAX: Final = 4096
KEY_LENGTH_MAX: Final = 255

_SOURCE: Final = re.compile(r"[!-~]{1,255}", re.ASCII)
_HEADER_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,99}", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[ -~]*", re.ASCII)
_RESERVED: Final = ("ce-", "ce_", "cloudevents", "content-type", "nats-", "webhook-", "idempotency-key")


def check_source(source: str) -> str:
    given: object = source
    if not isinstance(given, str) or not _SOURCE.fullmatch(source):
        raise ConfigurationError(
            f"source={source!r} must be 1 to 255 printable ASCII characters without spaces: it names the service in "
            "every event it publishes, for example 'orders' or 'https://shop.example/orders'"
        )
    return source


def check_topic(topic: str) -> str:
    given: object = topic
    if isinstance(given, str) and is_pattern(topic):
        raise MessageInvalid(
            f"topic {topic!r} is a pattern, with which consumers subscribe; an event is published to one topic, for "
            "example 'order.placed'"
        )
    if not isinstance(given, str) or not TOPIC.fullmatch(topic):
        raise MessageInvalid(
            f"topic {topic!r} must be letters, digits, '.', '_' and '-', at most 200, for example 'order.placed'"
        )
    return topic


def check_key(topic: str, key: object) -> str | None:
    if key is None:
        return None
    text = str(key) if isinstance(key, str | int | UUID) and not isinstance(key, bool) else ""
    if not 0 < len(text) <= KEY_LENGTH_MAX or not text.isprintable():
        raise MessageInvalid(
            f"the key of an event on {topic!r} is {key!r}; it must be a string, an integer or a UUID: 1 to "
            f"{KEY_LENGTH_MAX} printable characters that name what the event is about"
        )
    return text


def check_headers(topic: str, headers: Mapping[str, str]) -> dict[str, str]:
    """A copy: the application may go on to change its own."""
    if not headers:
        return {}
    given: object = headers
    if not isinstance(given, Mapping):
        raise MessageInvalid(f"headers={headers!r} of an event on {topic!r} must be a mapping of names to texts")
    for name, value in headers.items():
        named: object = name
        if not isinstance(named, str) or not _HEADER_NAME.fullmatch(name) or name.startswith(_RESERVED):
            raise MessageInvalid(
                f"an event on {topic!r} has a header {name!r}; names are lower-case letters, digits, '-' and '_', and "
                f"none of onefold's own ({', '.join(_RESERVED)})"
            )
        text: object = value
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(value):
            raise MessageInvalid(
                f"header {name!r} of an event on {topic!r} is {value!r}; values are printable ASCII text. Put anything "
                "else into the data"
            )
    length = len(write_headers(headers))
    if len(headers) > HEADERS_MAX or length > HEADER_BYTES_MAX:
        raise MessageInvalid(
            f"an event on {topic!r} has {len(headers)} headers with {length} characters; at most {HEADERS_MAX} with "
            f"{HEADER_BYTES_MAX} together. Put more into the data"
        )
    return dict(headers)


def write_headers(headers: Mapping[str, str]) -> str:
    """The headers as they are stored: a JSON object."""
    return _HEADERS.encode(dict(headers)) if headers else "{}"


def serialise(topic: str, data: object, *, bytes_max: int) -> bytes:
    """The event's data as bytes: bytes as they are, a pydantic model by its own means, the rest as JSON."""
    if isinstance(data, bytes):
        body = data
    elif hasattr(data, "model_dump_json"):
        body = data.model_dump_json().encode()
    else:
        try:
            body = _DATA.encode(data).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MessageInvalid(
                f"the data of an event on {topic!r} cannot be written as JSON: {error}. Publish what json.dumps takes "
                "(dates, UUIDs and Decimals are written as text), a pydantic model, or bytes with a content_type"
            ) from error
    if len(body) > bytes_max:
        raise MessageInvalid(
            f"the data of an event on {topic!r} has {len(body)} bytes, at most {bytes_max}: store what is large and "
            "publish where it is, or raise event_bytes_max (and your broker's limit)"
        )
    return body


def check_due_ms(topic: str, not_before: datetime | None, key: str | None) -> int | None:
    """When a delayed event may leave."""
    if not_before is None:
        return None
    given: object = not_before
    if not isinstance(given, datetime):
        raise MessageInvalid(
            f"not_before={given!r} of an event on {topic!r} is not a datetime; write when it may leave, for example "
            "datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    if not_before.tzinfo is None:
        raise MessageInvalid(
            f"not_before={not_before.isoformat()} of an event on {topic!r} has no time zone; use an aware datetime, "
            "for example datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    if key is not None:
        raise MessageInvalid(
            f"an event on {topic!r} has both a key ({key!r}) and not_before: it would hold up every later event of "
            "that key until it is due. Publish it without a key, or when it is due"
        )
    return int(not_before.timestamp() * 1000)


def rfc3339(now_ms: int) -> str:
    moment = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"{value!r} is {name_type(value)}")


# Made once: making an encoder costs more than encoding an event.
_HEADERS: Final = json.JSONEncoder(separators=(",", ":"))
_DATA: Final = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
