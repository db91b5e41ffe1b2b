"""What the console knows of the application's routes: which one a person means, and how long its answers are kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from onefold._http.request_identity import operations_of
from onefold._http.route_policy import Policy

#: As in the templates of Starlette, `{id}` and `{id:path}`, and of Flask, `<id>` and `<path:id>`.
_PARAMETER: Final = re.compile(r"\{[^{}]*\}|<[^<>]*>")


def match_route(method: str, path: str, known: Mapping[str, Policy]) -> str | None:
    """The operation that is meant by a template, by a name, or by a path as an access log has it (`POST /orders/7`);
    None: no route fits."""
    typed = set(operations_of(method, path, None))
    for operation, policy in known.items():
        if typed & set(_names_of(operation, policy)):
            return operation
    plain = path.partition("?")[0]
    for operation in known:
        verb, _, template = operation.partition(" ")
        if verb == method and re.fullmatch(_pattern(template), plain):
            return operation
    return None


def retentions_of(known: Mapping[str, Policy]) -> dict[str, float]:
    """How long an answer is kept, by each name that its record may have."""
    return {name: policy.retention_s for operation, policy in known.items() for name in _names_of(operation, policy)}


def _names_of(operation: str, policy: Policy) -> tuple[str, ...]:
    method, _, template = operation.partition(" ")
    return operations_of(method, template, policy.operation)


def _pattern(template: str) -> str:
    parts, position = [], 0
    for found in _PARAMETER.finditer(template):
        parts += [re.escape(template[position : found.start()]), ".+" if "path" in found[0] else "[^/]+"]
        position = found.end()
    return "".join([*parts, re.escape(template[position:])])
