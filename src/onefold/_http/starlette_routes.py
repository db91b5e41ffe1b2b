"""Starlette and FastAPI: finding the idempotent route of a request before the framework routes it, and its transaction.

The layer sits outside the application's routing, so that replays are served before rate limits, shedding and
dependencies; it therefore reads the application's routes itself, in their order.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any, cast
from urllib.parse import quote

from onefold._kernel.executors import is_async
from onefold._kernel.extras import missing_extra

try:
    from starlette import routing
except ModuleNotFoundError as error:
    raise missing_extra(error, "starlette") from None
from starlette.concurrency import run_in_threadpool
from starlette.convertors import CONVERTOR_TYPES
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import HTTPConnection

from onefold._http.authentication import PlainAsgi, render_http_exception
from onefold._http.condition_errors import ConditionFailed
from onefold._http.conditional import RequestCondition
from onefold._http.decorator import idempotent_handler_of, note_exception, policy_of, refusal_of, served_by
from onefold._http.install_checks import ServedPath
from onefold._http.request import COMPLETING, Request, Response, completing_of, principal_in
from onefold._http.route_policy import METHODS, Policy, Route
from onefold._http.routes import HostPrefix, RouteEntry, RouteTable
from onefold._http.scope_keys import CONDITION, TRANSACTION
from onefold._kernel.transaction import NOT_GIVEN, Transaction
from onefold.errors import ConfigurationError, ProgrammerError


class ApplicationRoutes:
    """The routes of an application, read with its first request and again whenever it has got more of them."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._table = RouteTable(())
        self._read = -1
        self._above: tuple[Any, int] = (None, 0)
        self._host_entries = False

    def resolve(self, request: Request) -> Route | None:
        routes = self._app.routes
        if len(routes) != self._read:
            self._table = _table(routes)
            self._read = len(routes)
            for _, mounted in self.mounted():
                note_exceptions(mounted)
                answer_failed_conditions(mounted)
        route = self._table.resolve(request)
        if route is None:
            return None
        if COMPLETING in request.source and (mark := completing_of(request.source)) is not None:
            return replace(route, mount=mark.mount)  # the completer calls the application itself: no router is above it
        # Below a mount only there is a router around that of the application.
        return replace(route, mount=self.mount_of(request)) if "router" in request.source else route

    def mount_of(self, request: Request) -> str:
        """Where the application is mounted: the hosts above it, and the prefix."""
        router = request.source.get("router")
        if router is None or router is getattr(self._app, "router", None):
            return request.mount
        if self._above != (router, len(router.routes)):
            self._above = router, len(router.routes)
            self._host_entries = _has_hosts(router.routes)
        return (_hosts_above(router, self._app, request) if self._host_entries else "") + request.mount

    def operations(self) -> dict[str, Policy]:
        return _table(self._app.routes).operations()

    def endpoints(self) -> Iterator[ServedPath]:
        return _endpoints(self._app.routes, "")

    def mounted(self) -> Iterator[tuple[str, object]]:
        return _walk_mounted(self._app.routes, "")


def note_exceptions(app: object) -> None:
    """Hear of what is raised around the handlers of an application, before its own middleware does."""
    middleware = getattr(app, "user_middleware", None)
    if not isinstance(middleware, list) or getattr(app, "middleware_stack", None) is not None:
        return  # of another framework, or one that serves already
    if all(added.cls is not _NoteExceptions for added in middleware):
        middleware.append(Middleware(_NoteExceptions, outer=app))  # the last is the innermost


class _NoteExceptions:
    """Directly around Starlette's own middleware for exceptions, and inside of the application's, which may run both in
    a task of their own.

    What one of the application's handlers answers is noted where that is called; the rest rises through here on its way
    to middleware.
    """

    def __init__(self, app: Any, *, outer: Any) -> None:
        self._app = app
        if isinstance(app, ExceptionMiddleware):
            handlers = {HTTPException: app.http_exception, **outer.exception_handlers}
            for kind, handler in handlers.items():
                if kind not in _LAST_RESORT:
                    app.add_exception_handler(kind, _note_and_handle(handler))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            note_exception(error)
            raise


def _note_and_handle(handler: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same exception handler, which notifies the guarded request first."""

    @functools.wraps(handler)
    async def note_and_handle(connection: Any, error: Exception) -> Any:
        note_exception(error)
        if is_async(handler):
            return await handler(connection, error)
        return await run_in_threadpool(handler, connection, error)

    return note_and_handle


def stored_principal(request: HTTPConnection) -> str | None:
    """The principal of a request that the completer makes, which has no credentials: for an application's own
    dependencies and middleware that check them. None for requests of clients."""
    return principal_in(request.scope)


def condition_of(request: HTTPConnection) -> RequestCondition:
    """The condition of the request a Starlette endpoint is serving."""
    found = request.scope.get(CONDITION)
    if isinstance(found, RequestCondition):
        return found
    raise ProgrammerError(
        f"{request.url.path} has no condition: mark its endpoint with @once.conditional(etag=...), below the route's "
        "own decorator, and call once.install(app)"
    )


def answer_failed_conditions(app: Any) -> None:
    """A condition that does not hold is an answer and no failure: middleware and logs see a 412."""

    async def answer(request: HTTPConnection, error: Exception) -> Any:
        from starlette.responses import Response as StarletteResponse

        assert isinstance(error, ConditionFailed)
        found = refusal_of(error)
        response = StarletteResponse(found.body, found.status)
        response.raw_headers = list(found.headers)
        return response

    handlers = getattr(app, "exception_handlers", None)
    if isinstance(handlers, dict):
        handlers.setdefault(ConditionFailed, answer)


def transaction_of(request: HTTPConnection) -> Transaction[Any]:
    """The transaction of the request a Starlette endpoint is serving."""
    return find_transaction(request, "the function itself or the method of its HTTPEndpoint")


def find_transaction(connection: HTTPConnection, mark: str) -> Transaction[Any]:
    """The transaction of a request. `mark` says, for the error where it has none, where the framework's endpoints are
    marked."""
    tx = connection.scope.get(TRANSACTION)
    if isinstance(tx, Transaction):
        return tx
    found = idempotent_handler_of(connection.scope.get("endpoint"))
    if found is not None:
        raise ProgrammerError(
            f"{connection.url.path} has no transaction: its handler {found.name} is marked with @once.idempotent(...) "
            f"of {found.layer.name}, but the request came past it. Call once.install(app) on this application, and let "
            "no middleware inside of it rewrite the path or the method"
        )
    raise ProgrammerError(
        f"{connection.url.path} has no transaction: mark the endpoint with @once.idempotent(...), {mark}, and call "
        "once.install(app)"
    )


class StarletteFramework(PlainAsgi):
    """How an application's `authorize` and `principal` are called: what they raise, its own handlers render."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def answer(self, error: Exception, request: Request) -> Response | None:
        handlers = {kind: handler for kind, handler in self._app.exception_handlers.items() if kind not in _LAST_RESORT}
        sent: list[MutableMapping[str, Any]] = []

        async def raise_error(scope: Any, receive: Any, send: Any) -> None:
            raise error

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        try:
            await ExceptionMiddleware(raise_error, handlers)(dict(request.source), receive, send)
        except Exception as raised:
            if raised is not error:
                raise
            return render_http_exception(error)  # of another framework, or nothing that has an answer
        [start] = [message for message in sent if message["type"] == "http.response.start"]
        headers = tuple((name.lower(), value) for name, value in start.get("headers", ()))
        return Response(start["status"], headers, b"".join(message.get("body", b"") for message in sent))

    def endpoint_of(self, request: Request) -> object | None:
        endpoint = request.source.get("endpoint")
        return served_by(endpoint, endpoint if isinstance(endpoint, type) else None, request.method)


#: Catch-all handlers: they would hide which function failed.
_LAST_RESORT = (500, Exception)


def _table(routes: Iterable[Any]) -> RouteTable:
    return RouteTable(_entries(routes, ""), converter=lambda name: CONVERTOR_TYPES[name].regex)


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    """The routes, those of included routers among them, which newer FastAPIs keep nested."""
    # An application of FastAPI's has imported it. For one of Starlette's it stays out: it would double what is loaded.
    flatten = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", iter)
    return cast("Iterable[Any]", flatten(list(routes)))


def _entries(routes: Iterable[Any], prefix: str, host: HostPrefix | None = None) -> Iterator[RouteEntry]:
    for route in _flat(routes):
        original = getattr(route, "route", route)
        if isinstance(original, routing.Host):
            yield from _host_entries(original, prefix, host)
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
                yield RouteEntry(frozenset({method}), prefix + path, policy, host)
        elif endpoint is not None:
            yield RouteEntry(frozenset(methods) if methods else None, prefix + path, policy_of(endpoint), host)


def _endpoints(routes: Iterable[Any], prefix: str) -> Iterator[ServedPath]:
    """What is served where. Below a host with parameters nothing is."""
    for route in _flat(routes):
        original = getattr(route, "route", route)
        endpoint, path = getattr(route, "endpoint", None), prefix + str(getattr(route, "path", ""))
        if isinstance(original, routing.Host):
            if not original.param_convertors:
                yield from _endpoints(original.routes or (), prefix)
        elif isinstance(original, routing.Mount):
            yield from _endpoints(original.routes or (), path)
        elif inspect.isclass(endpoint):
            methods = (name for name in _CLASS_METHODS if hasattr(endpoint, name.lower()))
            yield from (ServedPath(frozenset({name}), path, getattr(endpoint, name.lower())) for name in methods)
        elif endpoint is not None:
            _check_transaction(original, endpoint)
            yield ServedPath(frozenset(getattr(route, "methods", None) or ()), path, endpoint)


def _check_transaction(route: Any, endpoint: object) -> None:
    """Refuse a `tx` that FastAPI would read from the query, because it does not say what it is."""
    found = idempotent_handler_of(endpoint)
    query_params = getattr(getattr(route, "dependant", None), "query_params", ())
    if found is None or all(field.name != "tx" for field in query_params):
        return
    if inspect.signature(found.function).parameters["tx"].annotation in (inspect.Parameter.empty, Any, "Any"):
        raise ConfigurationError(f"the parameter tx of {found.name} would be read from the query. {NOT_GIVEN}")


_CLASS_METHODS = ("GET", "HEAD", "OPTIONS", *sorted(METHODS))


def _walk_mounted(routes: Iterable[Any], prefix: str) -> Iterator[tuple[str, object]]:
    for route in _flat(routes):
        original = getattr(route, "route", route)
        if isinstance(original, routing.Mount | routing.Host):
            path = prefix + str(getattr(original, "path", ""))
            yield path, original.app
            yield from _walk_mounted(original.routes or (), path)


def _host_entries(route: routing.Host, prefix: str, outer: HostPrefix | None) -> Iterator[RouteEntry]:
    """The routes below a host, which answers all requests to it: later routes are not reached.

    Below a host with parameters, as in `{tenant}.shop.test`, one route is many operations, which must not share their
    keys: none of them is found, and a marked handler refuses to run.
    """

    def holds(request: Request) -> bool:
        return (outer is None or outer.holds(request)) and route.matches(dict(request.source))[0] is routing.Match.FULL

    host = HostPrefix(f"//{route.host}", holds)
    if not route.param_convertors:
        yield from _entries(route.routes or (), prefix, host)
    yield RouteEntry(None, prefix + "{below:path}", None, host)


def _has_hosts(routes: Iterable[Any]) -> bool:
    originals = [getattr(route, "route", route) for route in _flat(routes)]
    nested = (route for route in originals if isinstance(route, routing.Mount | routing.Host))
    return any(isinstance(route, routing.Host) or _has_hosts(route.routes or ()) for route in nested)


def _hosts_above(router: Any, app: Any, request: Request) -> str:
    """The hosts that led a request to an application below a router, as in `//acme.shop.test`.

    The scope does not name them, so the way is gone once more. The values of their parameters are part of the name:
    the application's own routes do not know them.
    """
    scope = dict(request.source)
    scope |= {"root_path": scope.get("app_root_path", scope.get("root_path", "")), "path_params": {}}
    hosts, routes = "", router.routes
    while routes and routes is not app.routes:
        for route in (getattr(route, "route", route) for route in _flat(routes)):
            if isinstance(route, routing.Mount | routing.Host) and route.matches(scope)[0] is routing.Match.FULL:
                break
        else:
            break
        scope |= route.matches(scope)[1]
        if isinstance(route, routing.Host):
            hosts += "//" + quote(route.host_format.format(**scope["path_params"]), safe=":")
        routes = route.routes
    return hosts
