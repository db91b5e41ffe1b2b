"""Starlette and FastAPI: finding the idempotent route of a request before the framework routes it.

The layer sits outside the application's routing, so that replays are served before rate limits, shedding and
dependencies; it therefore reads the application's routes itself, in their order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from starlette.convertors import CONVERTOR_TYPES
from starlette.routing import Mount

from onefold.http.marks import policy_of
from onefold.http.messages import Request
from onefold.http.policy import METHODS, Policy, Route
from onefold.http.templates import Entry, RouteTable

_flat: Callable[[Any], Iterable[Any]]
try:
    from fastapi.routing import iter_route_contexts as _flat  # included routers stay nested there
except ImportError:  # Starlette alone, or a FastAPI that flattens its routes itself
    _flat = iter


class ApplicationRoutes:
    """The routes of an application, read with its first request and again whenever it has got more of them."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._table = RouteTable(())
        self._read = -1

    def resolve(self, request: Request) -> Route | None:
        routes = self._app.routes
        if len(routes) != self._read:
            self._table = _table(routes)
            self._read = len(routes)
        return self._table.resolve(request)

    def operations(self) -> dict[str, Policy]:
        return _table(self._app.routes).operations()


def _table(routes: Iterable[Any]) -> RouteTable:
    return RouteTable(_entries(routes, ""), converter=lambda name: CONVERTOR_TYPES[name].regex)


def _entries(routes: Iterable[Any], prefix: str) -> Iterator[Entry]:
    for route in _flat(list(routes)):
        path = getattr(route, "path", None)
        if path is None:
            continue
        mounted = getattr(route, "route", route)
        if isinstance(mounted, Mount):
            yield from _entries(mounted.routes or (), prefix + path)
            continue
        endpoint = getattr(route, "endpoint", None)
        methods = getattr(route, "methods", None)
        if inspect.isclass(endpoint):  # an HTTPEndpoint: each of its methods may be marked
            for method in sorted(METHODS & set(methods or METHODS)):
                yield frozenset({method}), prefix + path, policy_of(getattr(endpoint, method.lower(), None))
        elif endpoint is not None:
            yield (frozenset(methods) if methods else None), prefix + path, policy_of(endpoint)
