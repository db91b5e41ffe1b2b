"""Routes written down as `METHOD /path/{parameter}`, for ASGI and WSGI applications without a framework."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from onefold.errors import ConfigurationError
from onefold.http.messages import Request
from onefold.http.policy import METHODS, Policy, Route

_OPERATION = re.compile(r"([A-Z]+) (/\S*)")


class RouteTable:
    """An ordered list of routes; the first that matches wins. Routes without a policy are not idempotent."""

    def __init__(self, entries: Iterable[tuple[frozenset[str] | None, str, Policy | None]]) -> None:
        self._entries = [
            (methods, _pattern(template), Route(template, policy) if policy else None)
            for methods, template, policy in entries
        ]

    def resolve(self, request: Request) -> Route | None:
        """The idempotent route of a request, if it is one."""
        if request.method not in METHODS:
            return None
        path = path_below_root(request)
        for methods, pattern, route in self._entries:
            if (methods is None or request.method in methods) and pattern.fullmatch(path):
                return route
        return None

    def operations(self) -> dict[str, Policy]:
        """Every idempotent operation and its policy."""
        return {
            f"{method} {route.template}": route.policy
            for methods, _, route in self._entries
            if route is not None
            for method in sorted((methods or METHODS) & METHODS)
        }


def routes_of(policies: Mapping[str, Policy]) -> RouteTable:
    """A table from `{"POST /payments/{id}/refunds": policy}`."""
    entries = []
    for operation, policy in policies.items():
        found = _OPERATION.fullmatch(operation)
        if found is None or found[1] not in METHODS:
            raise ConfigurationError(
                f"{operation!r} is not an operation; write a method ({', '.join(sorted(METHODS))}), a space and a "
                "path, as in 'POST /payments/{id}/refunds'"
            )
        entries.append((frozenset({found[1]}), found[2], policy))
    return RouteTable(entries)


def path_below_root(request: Request) -> str:
    """The path as the application sees it, without the prefix a server or proxy put before it."""
    root = request.source.get("root_path", "")
    return request.path.removeprefix(root) if root else request.path


def _pattern(template: str) -> re.Pattern[str]:
    """`{name}` is one segment, `{name:path}` any number; frameworks' other converters are one segment here."""
    parts, position = [], 0
    for found in re.finditer(r"\{[^{}]+\}", template):
        parameter = found[0]
        parts.append(re.escape(template[position : found.start()]))
        parts.append(".*" if parameter.endswith(":path}") else "[^/]+")
        position = found.end()
    parts.append(re.escape(template[position:]))
    return re.compile("".join(parts))
