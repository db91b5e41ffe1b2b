"""Routes written down as `METHOD /path/{parameter}`, for ASGI and WSGI applications without a framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from onefold._http.request import Request
from onefold._http.request_identity import operations_of
from onefold._http.route_policy import METHODS, PARAMETER_GROUP, Policy, Route
from onefold.errors import ConfigurationError


class HostPrefix(NamedTuple):
    """Where some routes are found only, as in `//api.shop.test`: the beginning of their templates."""

    name: str
    holds: Callable[[Request], bool]


class RouteEntry(NamedTuple):
    """Methods (None for all), template, what the route promises, if it does, and the host it is found at only."""

    methods: frozenset[str] | None
    template: str
    policy: Policy | None
    host: HostPrefix | None = None


_OPERATION = re.compile(r"([A-Z]+) (/\S*)")
_PARAMETER = re.compile(r"\{[^{}:]+(?::([^{}]+))?\}")

_SEGMENT = "[^/]+"
_CONVERTERS = {"path": ".*"}


class RouteTable:
    """An ordered list of routes; the first that matches wins. Routes without a policy are not idempotent."""

    def __init__(self, entries: Iterable[RouteEntry], *, converter: Callable[[str], str] | None = None) -> None:
        """`converter` gives the expression for a parameter's type, as in `{id:int}`, where a framework has its own."""
        known = converter or _CONVERTERS.get
        self._entries = [
            (entry.methods, pattern, _route(entry, pattern), entry.host)
            for entry, pattern in ((entry, _pattern(entry.template, known)) for entry in entries)
        ]
        _refuse_shared((methods, route) for methods, _, route, _ in self._entries if route is not None)
        #: Routes without parameters, by method and path, as far as no other comes before them: found without a search.
        self._fixed = {
            (method, route.template): route
            for methods, pattern, route, host in self._entries
            if route is not None and host is None and not pattern.groups
            for method in (methods or METHODS) & METHODS
            if self._first(method, route.template) is route
        }

    def _first(self, method: str, path: str) -> Route | None:
        """The first route that this request may be for, at whatever host."""
        return next(
            route
            for methods, pattern, route, _ in self._entries
            if (methods is None or method in methods) and pattern.fullmatch(path)
        )

    def resolve(self, request: Request) -> Route | None:
        """The idempotent route of a request, if it is one."""
        source = request.source
        if not (source.get("root_path") or source.get("SCRIPT_NAME")):  # neither a root nor a mount
            fixed = self._fixed.get((request.method, request.path))
            if fixed is not None:
                return fixed
        if request.method not in METHODS:
            return None
        path = request.path_below_root
        for methods, pattern, route, host in self._entries:
            if not (methods is None or request.method in methods) or not pattern.fullmatch(path):
                continue
            if host is None or host.holds(request):
                return route if route is None or not (mount := request.mount) else replace(route, mount=mount)
        return None

    def mount_of(self, request: Request) -> str:
        """Where the application is mounted."""
        return request.mount

    def operations(self) -> dict[str, Policy]:
        """Every idempotent operation and its policy."""
        return {
            f"{method} {route.template}": route.policy
            for methods, _, route, _ in self._entries
            if route is not None
            for method in sorted((methods or METHODS) & METHODS)
        }


_ROUTES = "as in {'POST /payments': once.policy(required=True)}"


def routes_of(policies: Mapping[str, Policy]) -> RouteTable:
    """A table from `{"POST /payments/{id}/refunds": policy}`."""
    entries = []
    given: object = policies
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"routes={given!r} must be policies by operation, {_ROUTES}")
    for operation, policy in given.items():
        found = _OPERATION.fullmatch(str(operation))
        if found is None or found[1] not in METHODS:
            raise ConfigurationError(
                f"{operation!r} is not an operation; write a method ({', '.join(sorted(METHODS))}), a space and a "
                "path, as in 'POST /payments/{id}/refunds'"
            )
        if not isinstance(policy, Policy):
            raise ConfigurationError(f"routes has {policy!r} for {operation!r}, which is not a policy: write {_ROUTES}")
        entries.append(RouteEntry(frozenset({found[1]}), found[2], policy))
    return RouteTable(entries)


def _refuse_shared(entries: Iterable[tuple[frozenset[str] | None, Route]]) -> None:
    """A name given to two routes would let them share keys, and one answer with the other's. (Templates may be alike
    but for their parameters' types: then the values in the path distinguish their requests.)"""
    named: dict[str, Route] = {}
    for methods, route in entries:
        for method in sorted((methods or METHODS) & METHODS):
            operation, *_ = operations_of(method, route.template, route.policy.operation)
            other = named.setdefault(operation, route)
            given = route.policy.operation or other.policy.operation
            if given is not None and other.policy is not route.policy:
                raise ConfigurationError(
                    f"'{method} {route.template}' and '{method} {other.template}' both have operation={given!r}: they "
                    "would answer each other's retries. Give each its own; a route that is at two paths for a while "
                    "has one handler, or one policy, for both"
                )


def _route(entry: RouteEntry, pattern: re.Pattern[str]) -> Route | None:
    if entry.policy is None:
        return None
    # Keys belong to a template: the same path at another host is another operation.
    template = (entry.host.name if entry.host else "") + entry.template
    if not pattern.groups:
        return Route(template, entry.policy, values=())
    return Route(template, entry.policy, pattern)


def _pattern(template: str, converter: Callable[[str], str | None]) -> re.Pattern[str]:
    """`{name}` is one segment, `{name:type}` whatever the converter says, else one segment too."""
    parts, position = [], 0
    for number, found in enumerate(_PARAMETER.finditer(template)):
        parts.append(re.escape(template[position : found.start()]))
        parts.append(f"(?P<{PARAMETER_GROUP}{number}>{converter(found[1] or 'str') or _SEGMENT})")
        position = found.end()
    parts.append(re.escape(template[position:]))
    # Starlette's expressions end in `$`, which lets one line feed pass: what reaches the handler must be ours too.
    return re.compile("".join(parts) + r"\n?")
