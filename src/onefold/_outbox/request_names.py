"""Which request an event is of: how its row names it, beside its headers.

It is for people who follow an event back to the request (the console), and stays in the database: relays of this
release take it off. It is among the headers, and not in a column of its own, so that releases beside this one read and
write the same rows; a relay of theirs publishes it as one more header, which no consumer looks at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from onefold._kernel.key_hash import hash_key

_HEADER: Final = "onefold-request"
_NAMES: Final = re.compile(r"([0-9a-f]{32}) ([0-9a-f]{32})")


class RequestName(NamedTuple):
    """The digest of its record, which is not there before its commit, nor after its retention; and the key's hash."""

    digest: str
    key_hash: str


def name_request(headers: Mapping[str, str], digest: bytes, key: str) -> dict[str, str]:
    """The headers of an event of this request, as they are stored."""
    return {**headers, _HEADER: f"{digest.hex()} {hash_key(key)}"}


def read_headers(stored: str) -> tuple[dict[str, str], RequestName | None]:
    """The event's headers, and the request that it is of. Raises ValueError where they were edited by hand."""
    headers: Any = json.loads(stored)
    if not isinstance(headers, dict):
        return headers, None  # as it was: who reads it finds out
    value = headers.pop(_HEADER, None)
    match = _NAMES.fullmatch(value) if isinstance(value, str) else None
    return headers, None if match is None else RequestName(match[1], match[2])
