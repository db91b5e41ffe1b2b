"""The application's routes for the console: matches the route that an operator types, and knows its retention."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from onefold._http.request_identity import operations_of
from onefold._http.route_policy import Policy

#: As in the templates of Starlette, `{id}` and `{id:path}`, and of Flask, `<id>` and `<path:id>`.
_PARAMETER: Final = re.compile(r"\{[^{}]*\}|<[^<>]*>")


def match_route(method: str, path: str, operations: Mapping[str, Policy]) -> str | None:
    """The operation that is meant by a template, by a name, or by a path as an access log has it (`POST /orders/7`);
    None: no route fits."""
    typed = set(operations_of(method, path, None))
    for operation, policy in operations.items():
        if typed & set(_names_of(operation, policy)):
            return operation
    plain = path.partition("?")[0]
    for operation in operations:
        verb, _, template = operation.partition(" ")
        if verb == method and re.fullmatch(_pattern(template), plain):
            return operation
    return None


def retentions_of(operations: Mapping[str, Policy]) -> dict[str, float]:
    """How long an answer is kept, by each name that its record may have."""
    return {
        name: policy.retention_s for operation, policy in operations.items() for name in _names_of(operation, policy)
    }


def _names_of(operation: str, policy: Policy) -> tuple[str, ...]:
    method, _, template = operation.partition(" ")
    return operations_of(method, template, policy.operation)


def _pattern(template: str) -> str:
    parts, position = [], 0
    for placeholder in _PARAMETER.finditer(template):
        parts += [re.escape(template[position : placeholder.start()]), ".+" if "path" in placeholder[0] else "[^/]+"]
        position = placeholder.end()
    return "".join([*parts, re.escape(template[position:])])
