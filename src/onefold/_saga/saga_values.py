"""What a saga stores: JSON and nothing else, so that every engine keeps it and any process can read it."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""dict, list, str, int, float, bool or None, all the way down."""


class NotStorable(ValueError):
    """The value is not JSON."""


def encode(value: object) -> Json:
    """The value as JSON data. Tuples become lists."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotStorable(f"{value!r:.200} of type {type(value).__qualname__} is not JSON: {error}") from None


def decode(data: Json, annotation: Any) -> Any:
    """The value that was encoded, as the annotated type."""
    del annotation
    return data
