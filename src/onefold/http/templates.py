"""Routes written down as `METHOD /path/{parameter}`, for ASGI and WSGI applications without a framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from onefold.errors import ConfigurationError
from onefold.http.messages import Request
from onefold.http.policy import METHODS, Policy, Route


class Host(NamedTuple):
    """Where some routes are found only, as in `//api.shop.test`: the beginning of their templates."""

    name: str
    holds: Callable[[Request], bool]


class Entry(NamedTuple):
    """Methods (None for all), template, what the route promises, if it does, and the host it is found at only."""

    methods: frozenset[str] | None
    template: str
    policy: Policy | None
    host: Host | None = None


_OPERATION = re.compile(r"([A-Z]+) (/\S*)")
_PARAMETER = re.compile(r"\{[^{}:]+(?::([^{}]+))?\}")

_SEGMENT = "[^/]+"
_CONVERTERS = {"path": ".*"}


class RouteTable:
    """An ordered list of routes; the first that matches wins. Routes without a policy are not idempotent."""

    def __init__(self, entries: Iterable[Entry], *, converter: Callable[[str], str] | None = None) -> None:
        """`converter` gives the expression for a parameter's type, as in `{id:int}`, where a framework has its own."""
        self._entries = [
            (entry.methods, _pattern(entry.template, converter or _CONVERTERS.get), _route(entry), entry.host)
            for entry in entries
        ]

    def resolve(self, request: Request) -> Route | None:
        """The idempotent route of a request, if it is one."""
        if request.method not in METHODS:
            return None
        path = request.path_below_root
        for methods, pattern, route, host in self._entries:
            if not (methods is None or request.method in methods) or not pattern.fullmatch(path):
                continue
            if host is None or host.holds(request):
                return route
        return None

    def operations(self) -> dict[str, Policy]:
        """Every idempotent operation and its policy."""
        return {
            f"{method} {route.template}": route.policy
            for methods, _, route, _ in self._entries
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
        entries.append(Entry(frozenset({found[1]}), found[2], policy))
    return RouteTable(entries)


def _route(entry: Entry) -> Route | None:
    if entry.policy is None:
        return None
    # Keys belong to a template: the same path at another host is another operation.
    return Route((entry.host.name if entry.host else "") + entry.template, entry.policy)


def _pattern(template: str, converter: Callable[[str], str | None]) -> re.Pattern[str]:
    """`{name}` is one segment, `{name:type}` whatever the converter says, else one segment too."""
    parts, position = [], 0
    for found in _PARAMETER.finditer(template):
        parts.append(re.escape(template[position : found.start()]))
        parts.append(f"(?:{converter(found[1] or 'str') or _SEGMENT})")
        position = found.end()
    parts.append(re.escape(template[position:]))
    # Starlette's expressions end in `$`, which lets one line feed pass: what reaches the handler must be ours too.
    return re.compile("".join(parts) + r"\n?")
