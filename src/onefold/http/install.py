"""Putting the idempotency layer around an application: what both faces share."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from onefold._kernel.events import Listener
from onefold._kernel.plain import PlainTransaction
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.transaction import Outgoing
from onefold.errors import ConfigurationError
from onefold.http import asgi, wsgi
from onefold.http.exchange import Gate
from onefold.http.marks import mark
from onefold.http.messages import Request
from onefold.http.openapi import describe
from onefold.http.pages import Pages
from onefold.http.policy import Policy, Principal, Route, Settings
from onefold.http.shedding import Shedding, shed_asgi, shed_wsgi
from onefold.idempotency.leased import LeasedStore
from onefold.idempotency.locked import LockedStore
from onefold.idempotency.sealing import Sealer
from onefold.idempotency.store import Store
from onefold.idempotency.unkeyed import UnkeyedStore

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("onefold")


class Routes(Protocol):
    """Whatever knows an application's idempotent routes."""

    def resolve(self, request: Request) -> Route | None: ...
    def operations(self) -> dict[str, Policy]: ...


class Layer:
    """The idempotency layer of one application: its store, its defaults, its gate."""

    def __init__(
        self,
        *,
        dialect: str,
        plain: PlainTransaction,
        outbox: Callable[[], Outgoing],
        principal: Principal | None,
        defaults: Settings | None,
        sealer: Sealer | None,
        listener: Listener | None,
        pages: str | None,
        development: bool,
        shedding: Shedding | None = None,
    ) -> None:
        if pages is not None and not pages.startswith("/"):
            raise ConfigurationError(f"pages={pages!r} must be a path that starts with '/', or None for no pages")
        self._defaults: Settings = {**(defaults or {})}
        if principal is not None:
            self._defaults["principal"] = principal
        self._pages = pages
        self._shedding = shedding
        self.listener = listener
        self.store = _store(dialect)
        self._gate = Gate(
            store=self.store,
            unkeyed=UnkeyedStore(plain),
            outbox=outbox,
            sealer=sealer,
            listener=listener,
            described_by=f"{pages}/specification" if pages is not None else None,
            development=development,
        )

    def policy(self, settings: Settings) -> Policy:
        """The application's defaults, with what a route says for itself."""
        merged: Settings = {**self._defaults, **settings}
        if "principal" not in merged:
            raise ConfigurationError(
                "an idempotent route has no principal: keys belong to someone. Pass principal=... to the route or to "
                "Onefold: a function from the request to the stable id of the account, tenant or user. An application "
                "with one principal only says so with principal=onefold.single_principal"
            )
        return Policy(**merged)

    def marker(self, settings: Settings) -> Callable[[F], F]:
        """The decorator for handlers."""
        policy = self.policy(settings)
        return lambda function: mark(function, policy)

    def around_asgi(
        self, app: asgi.Application, routes: Routes, database: AsyncDatabase[Any], *, marks_entry: bool = False
    ) -> asgi.IdempotencyMiddleware:
        if self._shedding is not None:  # inside: what is stored is replayed before anybody is turned away
            app = shed_asgi(app, self._shedding, listener=self.listener)
        return asgi.IdempotencyMiddleware(app, **self._parts(routes, marks_entry), database=database)

    def around_wsgi(
        self, app: wsgi.Application, routes: Routes, database: Database[Any], *, marks_entry: bool = False
    ) -> wsgi.IdempotencyMiddleware:
        if self._shedding is not None:
            app = shed_wsgi(app, self._shedding, listener=self.listener)
        return wsgi.IdempotencyMiddleware(app, **self._parts(routes, marks_entry), database=database)

    def survive(self, work: Callable[[], object]) -> None:
        """Background work goes on after a failure; the next turn may succeed."""
        try:
            work()
        except Exception:
            _log.exception("background work failed; it will be tried again")

    async def survive_async(self, work: Callable[[], Awaitable[object]]) -> None:
        """The same, awaited."""
        try:
            await work()
        except Exception:
            _log.exception("background work failed; it will be tried again")

    def _parts(self, routes: Routes, marks_entry: bool) -> dict[str, Any]:
        pages = None
        if self._pages is not None:
            pages = Pages(gate=self._gate, operations=routes.operations, base=self._pages)
        return {"gate": self._gate, "resolve": routes.resolve, "pages": pages, "marks_entry": marks_entry}


def install_asgi(app: Any, layer: Layer, database: AsyncDatabase[Any]) -> None:
    """Put the layer around a Starlette or FastAPI application, outside its other middleware added so far."""
    if not hasattr(app, "add_middleware") or not hasattr(app, "routes"):
        raise ConfigurationError(
            f"cannot install into {type(app).__module__}.{type(app).__qualname__}: install() knows FastAPI, Starlette "
            "and (with Onefold) Flask; for anything else wrap it with once.asgi(app, routes) or once.wsgi(app, routes)"
        )
    from onefold.http.starlette import ApplicationRoutes

    routes = ApplicationRoutes(app)

    def around(app: asgi.Application) -> asgi.Application:  # older Starlettes pass it by this name
        return layer.around_asgi(app, routes, database, marks_entry=True)

    app.add_middleware(around)
    if hasattr(app, "openapi"):
        _describe_in_openapi(app, routes)


def install_wsgi(app: Any, layer: Layer, database: Database[Any]) -> bool:
    """Put the layer around a Flask application. False: it is not one."""
    if not hasattr(app, "wsgi_app") or not hasattr(app, "url_map"):
        return False
    from onefold.http.flask import ViewRoutes

    app.wsgi_app = layer.around_wsgi(app.wsgi_app, ViewRoutes(app), database, marks_entry=True)
    return True


def leave_in(app: Any, once: object) -> None:
    """Leave a Onefold in its application, where the framework has a place for such things: see `left_in`."""
    if hasattr(app, "extensions"):
        app.extensions["onefold"] = once
    elif hasattr(app, "state"):
        app.state.onefold = once


def left_in(app: Any) -> object | None:
    """The Onefold that was installed into an application last, if one was."""
    extensions = getattr(app, "extensions", None)
    found: object | None = extensions.get("onefold") if isinstance(extensions, dict) else None
    return found if found is not None else getattr(getattr(app, "state", None), "onefold", None)


def _describe_in_openapi(app: Any, routes: Routes) -> None:
    plain = app.openapi

    def described() -> Any:
        if app.openapi_schema is None:
            document = plain()
            describe(document, routes.operations())
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = described


def _store(dialect: str) -> Store:
    match dialect:
        case "postgres":
            return LockedStore()
        case "sqlite":
            return LeasedStore(fences=lambda: secrets.randbits(63))
        case _:
            raise ConfigurationError(f"dialect {dialect!r} is not supported; onefold knows postgres and sqlite")
