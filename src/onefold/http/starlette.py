"""Starlette and FastAPI: finding the idempotent route of a request before the framework routes it.

The layer sits outside the application's routing, so that replays are served before rate limits, shedding and
dependencies; it therefore reads the application's routes itself, in their order.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

from starlette import routing
from starlette.convertors import CONVERTOR_TYPES

from onefold.http.marks import policy_of
from onefold.http.messages import Request
from onefold.http.policy import METHODS, Policy, Route
from onefold.http.templates import Entry, Host, RouteTable


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


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    """The routes, those of included routers among them, which newer FastAPIs keep nested."""
    # An application of FastAPI's has imported it. For one of Starlette's it stays out: it would double what is loaded.
    flatten = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", iter)
    return cast("Iterable[Any]", flatten(list(routes)))


def _entries(routes: Iterable[Any], prefix: str, host: Host | None = None) -> Iterator[Entry]:
    for route in _flat(routes):
        original = getattr(route, "route", route)
        if isinstance(original, routing.Host):
            yield from _hosted(original, prefix, host)
            continue
        path = getattr(route, "path", None)
        if path is None:
            continue
        if isinstance(original, routing.Mount):
            yield from _entries(original.routes or (), prefix + path, host)
            continue
        endpoint = getattr(route, "endpoint", None)
        methods = getattr(route, "methods", None)
        if inspect.isclass(endpoint):  # an HTTPEndpoint: each of its methods may be marked
            for method in sorted(METHODS & set(methods or METHODS)):
                policy = policy_of(getattr(endpoint, method.lower(), None))
                yield Entry(frozenset({method}), prefix + path, policy, host)
        elif endpoint is not None:
            yield Entry(frozenset(methods) if methods else None, prefix + path, policy_of(endpoint), host)


def _hosted(route: routing.Host, prefix: str, outer: Host | None) -> Iterator[Entry]:
    """The routes below a host, which answers whatever is asked there: later routes are not reached.

    Below a host with parameters, as in `{tenant}.shop.test`, one route is many operations, which must not share their
    keys: none of them is found, and a marked handler refuses to run.
    """

    def holds(request: Request) -> bool:
        return (outer is None or outer.holds(request)) and route.matches(dict(request.source))[0] is routing.Match.FULL

    host = Host(f"//{route.host}", holds)
    if not route.param_convertors:
        yield from _entries(route.routes or (), prefix, host)
    yield Entry(None, prefix + "{below:path}", None, host)
