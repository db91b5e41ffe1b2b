"""Starlette and FastAPI: finding the idempotent route of a request before the framework routes it.

The layer sits outside the application's routing, so that replays are served before rate limits, shedding and
dependencies; it therefore reads the application's routes itself, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from starlette.routing import Mount

from onefold.http.marks import policy_of
from onefold.http.messages import Request
from onefold.http.policy import Policy, Route
from onefold.http.templates import RouteTable

_flat: Callable[[Any], Iterable[Any]]
try:
    from fastapi.routing import iter_route_contexts as _flat  # included routers stay nested there
except ImportError:  # Starlette alone, or a FastAPI that flattens its routes itself
    _flat = iter


class ApplicationRoutes:
    """The routes of an application, read again whenever it has got more of them."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._table = RouteTable(())
        self._read = -1

    def resolve(self, request: Request) -> Route | None:
        return self._current().resolve(request)

    def operations(self) -> dict[str, Policy]:
        return self._current().operations()

    def _current(self) -> RouteTable:
        routes = self._app.routes
        if len(routes) != self._read:
            self._table = RouteTable(_entries(routes, ""))
            self._read = len(routes)
        return self._table


def _entries(routes: Iterable[Any], prefix: str) -> Iterator[tuple[frozenset[str] | None, str, Policy | None]]:
    for route in _flat(list(routes)):
        path = getattr(route, "path", None)
        if path is None:
            continue
        mounted = getattr(route, "route", route)
        if isinstance(mounted, Mount):
            yield from _entries(mounted.routes or (), prefix + path)
            continue
        endpoint = getattr(route, "endpoint", None)
        if endpoint is not None:
            methods = getattr(route, "methods", None)
            yield (frozenset(methods) if methods else None), prefix + path, policy_of(endpoint)
