"""Entity tags and the preconditions of a request (RFC 9110, 8.8.3 and 13): read, and judged without any I/O.

Invariant: `If-Match` compares strongly. A weak tag, on either side, never stands for "the very state that I have seen".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from onefold._http.condition_errors import ConditionMalformed
from onefold._http.request import READS
from onefold.errors import ProgrammerError

Verdict: TypeAlias = Literal["holds", "failed", "not modified"]

#: So much of a header is read, and so many tags.
BYTES_MAX: Final = 8192
TAGS_MAX: Final = 100

_OPAQUE = r"[!\x23-\x7e\x80-\xff]*"
_TAG = re.compile(rf'(W/)?"({_OPAQUE})"')
_VERSION = re.compile(_OPAQUE)

#: What a description says of If-Match and If-None-Match: narrower than what is read, and never wider.
TAGS_PATTERN: Final = r'^(?:\*|(?:W/)?"[!#-~]*"(?:, *(?:W/)?"[!#-~]*"){0,99})$'


class EntityTag(NamedTuple):
    """`"opaque"`, or `W/"opaque"`."""

    opaque: str
    weak: bool = False

    def __str__(self) -> str:
        return f'{"W/" if self.weak else ""}"{self.opaque}"'


@dataclass(frozen=True, slots=True)
class TagList:
    """What a header names: these tags, or with `any` whatever there is (`*`)."""

    tags: tuple[EntityTag, ...] = ()
    any: bool = False

    def holds(self, current: EntityTag | None, *, strong: bool) -> bool:
        """Whether the current state is among them. None: there is none, and nothing stands for that."""
        if current is None:
            return False
        if self.any:
            return True
        if strong:
            return not current.weak and current in self.tags
        return any(tag.opaque == current.opaque for tag in self.tags)


class Preconditions(NamedTuple):
    """What a request is to depend on. None: the header is not there."""

    if_match: TagList | None = None
    if_none_match: TagList | None = None

    @property
    def given(self) -> bool:
        return self.if_match is not None or self.if_none_match is not None


def judge(preconditions: Preconditions, current: EntityTag | None, method: str) -> Verdict:
    """In the order of RFC 9110, 13.2.2: If-Match first, and If-None-Match only where that holds."""
    if preconditions.if_match is not None and not preconditions.if_match.holds(current, strong=True):
        return "failed"
    if preconditions.if_none_match is not None and preconditions.if_none_match.holds(current, strong=False):
        return "not modified" if method in READS else "failed"
    return "holds"


def read_preconditions(if_match: list[bytes], if_none_match: list[bytes]) -> Preconditions:
    """The lines of both headers. Raises ConditionMalformed."""
    return Preconditions(_read_list("If-Match", if_match), _read_list("If-None-Match", if_none_match))


def read_tag(line: bytes) -> EntityTag | None:
    """The value of an ETag header. None: it is no entity tag."""
    found = _TAG.fullmatch(line.decode("latin-1"))
    return None if found is None else EntityTag(found[2], weak=found[1] is not None)


def _read_list(name: str, lines: list[bytes]) -> TagList | None:
    if not lines:
        return None
    text = ",".join(line.decode("latin-1") for line in lines).strip(" \t")
    if len(text) > BYTES_MAX:
        raise ConditionMalformed(f"{name} has {len(text)} characters; at most {BYTES_MAX} are read.")
    if text == "*":
        return TagList(any=True)
    tags: list[EntityTag] = []
    position, wants = 0, True
    while position < len(text):
        if text[position] in " \t":
            position += 1
        elif text[position] == ",":
            position, wants = position + 1, True
        elif wants and (found := _TAG.match(text, position)) is not None:
            tags.append(EntityTag(found[2], weak=found[1] is not None))
            position, wants = found.end(), False
        else:
            raise ConditionMalformed(
                f"{name} is not a list of entity tags: write each in double quotes, as it came in the ETag header "
                f'({name}: "3"), with commas between, or * alone.'
            )
    if not 0 < len(tags) <= TAGS_MAX:
        raise ConditionMalformed(f"{name} names {len(tags)} entity tags; it has to name 1 to {TAGS_MAX}, or *.")
    return TagList(tuple(tags))


def make_tag(version: object, whose: str) -> EntityTag:
    """The strong tag of a version: a number, a text, a time, a UUID or bytes."""
    match version:
        case bool():
            text = None
        case int() | UUID():
            text = str(version)
        case datetime() if version.tzinfo is not None:  # drivers give the same time in the zone of their session
            text = version.astimezone(UTC).isoformat()
        case date():  # and datetime
            text = version.isoformat()
        case bytes():
            text = version.hex()
        case str():
            text = version
        case _:
            text = None
    if text is None or not text or _VERSION.fullmatch(text) is None:
        raise ProgrammerError(
            # Without the value, and so below: the caller reads this.
            f"{whose}: a version of type {type(version).__qualname__} cannot be an ETag as it is. `etag` names what "
            "changes with each write, a number, a text without quotes and blanks, a time or a UUID; without such a "
            "column use etag=onefold.policies.content_tag"
        )
    return EntityTag(text)


def content_tag(value: object) -> str:
    """For `etag=`: a hash of a whole value. What is checked and what is answered must have the same form."""
    plain = value if isinstance(value, list | tuple | str | int | float) else _to_plain(value)
    written = json.dumps(plain, sort_keys=True, separators=(",", ":"), default=_to_plain)
    return sha256(written.encode()).hexdigest()[:32]


def _to_plain(value: Any) -> object:
    """A value that JSON cannot write, as one that it can. A form that loses anything would keep its tag when the value
    changes."""
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    match value:
        case Mapping():
            return dict(value)
        case Enum():
            return value.value
        case set() | frozenset():
            return sorted(json.dumps(each, sort_keys=True, default=_to_plain) for each in value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat()
        case date() | time():
            return value.isoformat()
        case Decimal() | UUID() | timedelta():
            return str(value)
        case _:
            pass
    if hasattr(value, "keys"):  # rows of sqlite3 and asyncpg
        return dict(zip(value.keys(), value, strict=True))
    raise ProgrammerError(
        f"content_tag cannot read an object of type {type(value).__qualname__}: it takes dicts, rows, lists, "
        "dataclasses, pydantic models and plain values. Of another object say what counts, as in "
        "etag=lambda order: content_tag({'item': order.item})"
    )
