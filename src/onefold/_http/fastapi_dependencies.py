"""FastAPI: the request's transaction as a dependency, and a dependency as the request's principal.

@app.post("/payments", status_code=201)
@once.idempotent(required=True)
async def pay(body: Payment, tx: Tx[asyncpg.Connection]) -> Receipt: ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from onefold._kernel.extras import missing_extra

try:
    from fastapi import Depends, FastAPI, Request
except ModuleNotFoundError as error:
    raise missing_extra(error, "fastapi") from None
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from onefold._http.authentication import NAMED, TEMPLATE
from onefold._http.conditional import RequestCondition
from onefold._http.route_policy import METHODS
from onefold._http.starlette_routes import condition_of, find_transaction
from onefold._http.steps_parameter import GIVES_TRANSACTION
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError

H = TypeVar("H")


async def transaction_of(connection: HTTPConnection) -> Transaction[Any]:
    """The transaction of the request, for `Depends`. Async, so that FastAPI spends no thread on it."""
    return find_transaction(connection, "below @app.post(...)")


setattr(transaction_of, GIVES_TRANSACTION, True)

Tx: TypeAlias = Annotated[Transaction[H], Depends(transaction_of)]
"""The request's transaction: `Tx[asyncpg.Connection]`, `Tx[sqlite3.Connection]`, ..."""


async def request_condition(connection: HTTPConnection) -> RequestCondition:
    """The condition of the request, for `Depends`."""
    return condition_of(connection)


Condition: TypeAlias = Annotated[RequestCondition, Depends(request_condition)]
"""What the request depends on (If-Match, If-None-Match), for handlers that are marked with @once.conditional(...)."""


def principal_from(
    dependency: Callable[..., Any], name: Callable[[Any], str | None] | None = None
) -> Callable[[Request], Awaitable[str | None]]:
    """The principal that a dependency finds: `principal=principal_from(current_user, lambda user: user.id)`.

    The dependency runs as FastAPI runs it, with its own dependencies, `yield`, overrides and validation, before the
    request is looked up and once more for the endpoint, if that depends on it too. What it raises is the answer.
    """
    run = _DependencyRunner(_check_function("principal_from", dependency))
    if name is not None and not callable(name):
        raise ConfigurationError(
            f"principal_from: name={name!r:.80} is not a function of what the dependency returns; write one, as in "
            "lambda user: user.id"
        )

    async def principal(request: Request) -> str | None:
        value = await run(request)
        principal: str | None = value if name is None else name(value)
        return principal

    setattr(principal, NAMED, dependency)
    return principal


def authorize_from(dependency: Callable[..., Any]) -> Callable[[Request], Awaitable[None]]:
    """`authorize` by a dependency: it refuses by raising, whatever it returns."""
    run = _DependencyRunner(_check_function("authorize_from", dependency))

    async def authorize(request: Request) -> None:
        await run(request)

    setattr(authorize, NAMED, dependency)
    return authorize


def _check_function(caller: str, dependency: Any) -> Callable[..., Any]:
    """Refuse what FastAPI would fail to call with each request."""
    if callable(dependency):
        function: Callable[..., Any] = dependency
        return function
    name = getattr(getattr(dependency, "dependency", None), "__name__", "current_user")
    raise ConfigurationError(
        f"{caller}: {dependency!r:.200} is not a dependency's function; give the function itself, without Depends: "
        f"{caller}({name})"
    )


class _DependencyResult:
    """What a dependency returned, or raised."""

    def __init__(self, outer: Any) -> None:
        self.outer = outer
        self.value: Any = None
        self.error: Exception | None = None


_RESULT = "onefold.result"


class _DependencyRunner:
    """Runs a dependency for a request outside of its endpoint: for an endpoint of its own, in a small application."""

    def __init__(self, dependency: Callable[..., Any]) -> None:
        self._dependency = dependency
        self._applications: WeakKeyDictionary[Any, dict[str, FastAPI]] = WeakKeyDictionary()

    async def __call__(self, request: Request) -> Any:
        outer = request.scope.get("app")
        template = _below_host(request.scope.get(TEMPLATE)) or "/{onefold_path:path}"
        applications: dict[str, FastAPI] = {} if outer is None else self._applications.setdefault(outer, {})
        app = applications.get(template)
        if app is None:
            app = applications[template] = self._application(template)
        app.dependency_overrides = getattr(outer, "dependency_overrides", {})
        result = _DependencyResult(outer)
        await app({**request.scope, _RESULT: result}, request.receive, _discard)
        if result.error is not None:
            raise result.error
        return result.value

    def _application(self, template: str) -> FastAPI:
        """Its route has the template of the request's, so that the dependency finds its parameters."""

        async def endpoint(request: Request, value: Any = Depends(self._dependency)) -> Response:
            request.scope[_RESULT].value = value
            return Response()

        async def keep(request: Request, error: Exception) -> Response:
            request.scope[_RESULT].error = error
            return Response()

        app = FastAPI(
            openapi_url=None,
            redirect_slashes=False,
            exception_handlers={HTTPException: keep, RequestValidationError: keep},
        )
        app.add_api_route(template, endpoint, methods=[*METHODS, "GET"])
        app.add_middleware(_AsOuter)
        return app


class _AsOuter:
    """Inside, the application is the one that the request was sent to: `request.app.state` is its state."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await self._app({**scope, "app": scope[_RESULT].outer}, receive, send)


def _below_host(template: str | None) -> str | None:
    """`//shop.test/orders` is `/orders` to a router that is at that host already."""
    if template is not None and template.startswith("//"):
        return "/" + template[2:].partition("/")[2]
    return template


async def _discard(message: MutableMapping[str, Any]) -> None:
    """The endpoint's answer means nothing."""
