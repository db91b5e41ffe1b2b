"""The values that a saga stores: JSON and nothing else, so that every engine keeps it and any process can read it.
Types come from the annotations of the functions that give and take the values: see `_kernel/results.py`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from onefold._kernel.results import annotation_of, decode_result, encode_result

Json: TypeAlias = Any
"""dict, list, str, int, float, bool or None, all the way down."""


def encode(value: object, annotation: object = Any, *, what: str) -> Json:
    """The value as JSON data. Raises ResultNotSerializable, whose text names `what`."""
    return json.loads(encode_result(value, annotation, what=what))


def decode(data: Json, annotation: object = Any, *, what: str) -> Any:
    """The value that was encoded. Raises ResultUnreadable, where the type was changed in between."""
    return decode_result(json.dumps(data).encode(), annotation, what=what)


def parameter_types(function: Callable[..., Any], count: int, *, after: int = 0) -> Sequence[Any]:
    """The annotations of `count` positional parameters after the first `after`; Any for those without one."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return [Any] * count
    types: list[Any] = []
    for parameter in parameters:
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            break
        annotation = annotation_of(function, parameter.name)
        if parameter.kind is parameter.VAR_POSITIONAL:
            types += [annotation] * (count + after)
            break
        types.append(annotation)
    return (types + [Any] * (count + after))[after : after + count]
