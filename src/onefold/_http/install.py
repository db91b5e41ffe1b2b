"""Putting the idempotency layer around an application: what both apps share."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from onefold._http import asgi, wsgi
from onefold._http.authentication import PLAIN_ASGI, PLAIN_WSGI, Framework
from onefold._http.bare_header_check import find_bare_header
from onefold._http.decorator import IdempotentHandler, check_markable, idempotent_handler_of, mark, name_of
from onefold._http.earlier_release import ApplicationNaming
from onefold._http.guarded_request import current_request
from onefold._http.handler_needs import check_parameters, check_sessions
from onefold._http.install_checks import (
    READY,
    Known,
    Readiness,
    are_bools,
    check_complete,
    check_free,
    check_parts,
    check_served,
    is_conditional_read,
    open_cache,
)
from onefold._http.installed_app import InstalledApp
from onefold._http.openapi import describe, describe_reads
from onefold._http.reaper import EVERY_S, Reaping
from onefold._http.request import Request
from onefold._http.request_guard import RequestGuard
from onefold._http.route_policy import (
    Authorize,
    Policy,
    Principal,
    Route,
    Settings,
    SteppedPolicy,
    policy_of_settings,
    single_principal,
)
from onefold._http.steps_parameter import check_steps, find_steps
from onefold._idempotency.encryption import Sealer
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.sql import sqlite
from onefold._idempotency.unkeyed import UnkeyedStore
from onefold._kernel.plain_transaction import PlainTransaction
from onefold._kernel.ports import AsyncDatabase, Database, Outgoing, Sessions
from onefold._kernel.telemetry import Listener
from onefold._kernel.tracing import tracer_of
from onefold._policy.quota import Quota
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._http.shedding import Shedding
    from onefold._http.stepped_store import SteppedStore

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("onefold.requests")


class Routes(Protocol):
    """Whatever knows an application's idempotent routes."""

    def resolve(self, request: Request) -> Route | None: ...
    def mount_of(self, request: Request) -> str: ...
    def operations(self) -> dict[str, Policy]: ...


class ApplicationKnown(Routes, Known, Protocol):
    """`Routes` of an application whose handlers can be looked at."""


class Layer:
    """The idempotency layer of one application: its store, its defaults, its guard."""

    def __init__(
        self,
        *,
        name: str,
        dialect: str,
        plain: PlainTransaction,
        make_stepped: Callable[[LockedStore], SteppedStore],
        outbox: Callable[[], Outgoing],
        sessions: Sessions | None,
        principal: Principal | None,
        authorize: Authorize | None,
        defaults: Settings | None,
        sealer: Sealer | None,
        listener: Listener | None,
        pages: str | None,
        development: bool,
        asynchronous: bool,
        shedding: Shedding | None = None,
        quota: Quota | None = None,
        cache: object = None,
        earlier_records: bool | None = None,
        unsealed_answers: bool = False,
        reap_every_s: float | None = EVERY_S,
    ) -> None:
        check_parts(pages, shedding, sealer)
        are_bools(development=development)
        self.name = name
        """What the Onefold of this layer is called in errors."""
        self._marks: WeakSet[IdempotentHandler] = WeakSet()
        #: As long as the layer lasts: frameworks cache the handlers of applications that are gone, which had a route.
        self.applications: list[ApplicationKnown] = []
        self._defaults: Settings = _merge_defaults(defaults, principal, authorize, quota)
        self._named: dict[str, str] = {}
        self._looked_at: list[Callable[..., Any]] = []
        self._asynchronous, self._pages, self._shedding = asynchronous, pages, shedding
        # Made now, so that mistakes in the defaults are raised where they are written.
        known: Settings = {"principal": single_principal, **self._defaults}
        whole = policy_of_settings(known)
        self._check_asked(whole)
        self._others = whole if "principal" in self._defaults else None
        self.listener, self.reaping = listener, Reaping(reap_every_s)
        self.installed: list[InstalledApp] = []
        self.store, self.cached = _store(dialect), open_cache(cache, dialect, listener, asynchronous)
        naming = ApplicationNaming(dialect, earlier_records, sealer, unsealed_answers)
        self.reading = naming.reading
        #: For handlers that work in steps; made when it is first used.
        self.stepped = functools.cache(functools.partial(make_stepped, self.store))
        self._guard = RequestGuard(
            store=self.store,
            unkeyed=UnkeyedStore(plain),
            stepped=self.stepped,
            cached=self.cached,
            outbox=outbox,
            sessions=sessions,
            listener=listener,
            tracer=tracer_of(listener),
            described_by=f"{pages}/specification" if pages is not None else None,
            development=development,
            naming=naming,
        )

    @property
    def authorize(self) -> Authorize | None:
        """Of its routes that set no other."""
        return self._defaults.get("authorize")

    def policy(self, settings: Settings) -> Policy:
        """The application's defaults, with a route's own settings."""
        merged: Settings = {**self._defaults, **settings}
        if "principal" not in merged:
            raise ConfigurationError(
                "an idempotent route has no principal: each key belongs to one. Pass principal=... to the route or to "
                "Onefold: a function from the request to the stable id of the account, tenant or user. An application "
                "with one principal only says so with principal=onefold.single_principal"
            )
        policy = policy_of_settings(merged)
        self._check_asked(policy)
        return policy

    def _check_asked(self, policy: Policy) -> None:
        if self._asynchronous:
            _check_forms(policy, "asgi", "AsyncOnefold")

    def marker(self, settings: Settings) -> Callable[[F], F]:
        """The decorator for handlers."""
        policy = self.policy(settings)

        def decorate(function: F) -> F:
            check_markable(function, self._asynchronous)
            check_parameters(function, name_of(function))
            check_sessions(function, name_of(function), self.name, self._guard.sessions)
            own = policy
            if find_steps(function) is not None:
                asynchronous, name = self._asynchronous, name_of(function)
                check_steps(function, name, policy, asynchronous=asynchronous, by=self.name)
                own = SteppedPolicy.of(policy)
            self._reserve(policy.operation, function)
            self._guard.conditional.used |= own.conditional is not None
            found = mark(function, own, self)
            handler = idempotent_handler_of(found)
            assert handler is not None
            self._marks.add(handler)
            return found

        return decorate

    def check_app(self, app: object) -> None:
        """Refuse an application that has a layer already."""
        check_free(app, self.name)

    def ready(self, routes: ApplicationKnown, protocol: str) -> Readiness:
        """What must hold before the first request; what can be seen of it now is checked now."""

        def check() -> None:
            check_served(routes, self, self._marks, protocol)
            for endpoint in routes.endpoints():
                check_sessions(endpoint.function, name_of(endpoint.function), self.name, self._guard.sessions)
            self._check_operations(routes, protocol)

        check()
        self.applications.append(routes)
        return Readiness(check, lambda: check_complete(self._marks, self.applications))

    def _check_operations(self, routes: Routes, protocol: str) -> None:
        for policy in (*routes.operations().values(), *((self._others,) if self._others else ())):
            _check_forms(policy, protocol, f"an {protocol.upper()} application")
            self._warn_of_bare_header(policy)

    def _warn_of_bare_header(self, policy: Policy) -> None:
        """Once for each function. An application that has `authorize` may have authenticated its caller there."""
        callee = policy.principal_function
        if policy.authorize is not None or callee.function in self._looked_at:
            return
        self._looked_at.append(callee.function)
        if (header := find_bare_header(callee)) is not None:
            _log.warning(
                "%s: the %s takes the header %r as it came. A caller who writes that header gets the stored answers of "
                "the account that it names: authenticate the caller (`onefold docs principals` shows API keys, JWT and "
                "sessions), or say that only your gateway can write it: principal=onefold.policies.trusted_header(%r)",
                self.name, callee.name, header, header,
            )  # fmt: skip

    def _reserve(self, operation: str | None, function: Callable[..., Any]) -> None:
        """Reserve an operation for one handler: two would answer each other's retries."""
        if operation is None:
            return
        # By name, not by identity: an application factory defines the same function again.
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
        other = self._named.setdefault(operation, name)
        if other != name:
            raise ConfigurationError(
                f"operation={operation!r} is given to {name} and was given to {other}: they would answer each other's "
                "retries. Give each its own"
            )

    def around_asgi(
        self,
        app: asgi.Application,
        routes: Routes,
        database: AsyncDatabase[Any],
        *,
        framework: Framework = PLAIN_ASGI,
        ready: Readiness | None = None,
    ) -> asgi.IdempotencyMiddleware:
        if ready is None:
            self.check_app(app)
        if self._shedding is not None:  # inside: what is stored is replayed before a request is shed
            from onefold._http.shedding import shed_asgi

            app = shed_asgi(app, self._shedding, listener=self.listener)
        return asgi.IdempotencyMiddleware(app, **self._parts(routes, framework, ready), database=database)

    def around_wsgi(
        self,
        app: wsgi.Application,
        routes: Routes,
        database: Database[Any],
        *,
        framework: Framework = PLAIN_WSGI,
        ready: Readiness | None = None,
    ) -> wsgi.IdempotencyMiddleware:
        if ready is None:
            self.check_app(app)
        if self._shedding is not None:
            from onefold._http.shedding import shed_wsgi

            app = shed_wsgi(app, self._shedding, listener=self.listener)
        return wsgi.IdempotencyMiddleware(app, **self._parts(routes, framework, ready), database=database)

    def operation_inside(self) -> str | None:
        """The operation of this application whose handler runs here and must write through its own transaction."""
        guarded = current_request.get()
        if guarded is None or guarded.over or guarded.shared.store is not self.store or not guarded.policy.writes:
            return None
        return guarded.operation

    def _parts(self, routes: Routes, framework: Framework, ready: Readiness | None) -> dict[str, Any]:
        if ready is None:  # routes that are written down
            self._check_operations(routes, framework.protocol)
        guard = replace(self._guard, framework=framework, decorated=ready is not None)
        pages = None
        if self._pages is not None:
            from onefold._http.status_pages import Pages

            pages = Pages(
                guard=guard,
                operations=routes.operations,
                mount_of=routes.mount_of,
                base=self._pages,
                others=self._others,
            )
        return {
            "guard": guard,
            "resolve": routes.resolve,
            "pages": pages,
            "ready": READY if ready is None else ready,
            "layer_name": self.name,
            "reaping": self.reaping,
        }


def _merge_defaults(
    defaults: Settings | None, principal: Principal | None, authorize: Authorize | None, quota: Quota | None
) -> Settings:
    given: object = defaults or {}
    if not isinstance(given, dict):
        raise ConfigurationError(f"defaults={given!r} is not a dictionary of settings, as in defaults={{'wait_s': 5}}")
    if "operation" in given:
        raise ConfigurationError("operation= names one route: it cannot stand in the defaults of all")
    merged: Settings = {**(defaults or {})}
    policy_of_settings({"principal": single_principal, **merged})  # also what is about to be replaced
    if principal is not None:
        merged["principal"] = principal
    if authorize is not None:
        merged["authorize"] = authorize
    if quota is not None:
        merged["quota"] = quota
    return merged


def _check_forms(policy: Policy, protocol: str, by: str) -> None:
    """Refuse a policy whose functions want a request that this protocol cannot give."""
    for callee in (policy.authorize_function, policy.principal_function):
        if callee is not None:
            callee.check_form(protocol, by)


def install_asgi(app: Any, layer: Layer, database: AsyncDatabase[Any]) -> None:
    """Put the layer around a Starlette or FastAPI application, outside its other middleware added so far."""
    if isinstance(app, type) or not hasattr(app, "add_middleware") or not hasattr(app, "routes"):
        raise ConfigurationError(
            f"cannot install into {_kind_of(app)}: install() knows FastAPI and "
            "Starlette, and that of Onefold Flask as well (AsyncOnefold is for asyncio). Wrap anything else with "
            "once.asgi(app, routes) or, with Onefold, once.wsgi(app, routes)"
        )
    from onefold._http.starlette_routes import (
        ApplicationRoutes,
        StarletteFramework,
        answer_failed_conditions,
        note_exceptions,
    )

    layer.check_app(app)
    routes, framework = ApplicationRoutes(app), StarletteFramework(app)
    ready = layer.ready(routes, "asgi")
    layer.installed.append(installed := InstalledApp("asgi", app, routes.resolve))

    def around(app: asgi.Application) -> asgi.Application:  # older Starlettes pass it by this name
        return installed.share_state(layer.around_asgi(app, routes, database, framework=framework, ready=ready))

    app.add_middleware(around)
    note_exceptions(app)
    answer_failed_conditions(app)
    if hasattr(app, "openapi"):
        _describe_in_openapi(app, routes)


def _kind_of(app: object) -> str:
    if isinstance(app, type):
        return f"the class {app.__module__}.{app.__qualname__} (give the application, which it makes)"
    return f"{type(app).__module__}.{type(app).__qualname__}"


def install_wsgi(app: Any, layer: Layer, database: Database[Any]) -> bool:
    """Put the layer around a Flask application. False: it is not one."""
    if not hasattr(app, "wsgi_app") or not hasattr(app, "url_map"):
        return False
    from onefold._http import flask_views

    layer.check_app(app)
    routes, framework = flask_views.ViewRoutes(app), flask_views.FlaskFramework(app)
    ready = layer.ready(routes, "wsgi")
    layer.installed.append(InstalledApp("wsgi", app, routes.resolve))
    app.after_request(flask_views.hold_back_closing)
    flask_views.note_exceptions(app)
    flask_views.answer_failed_conditions(app)
    app.wsgi_app = layer.around_wsgi(app.wsgi_app, routes, database, framework=framework, ready=ready)
    app.teardown_appcontext(flask_views.close_own_session)
    return True


def _describe_in_openapi(app: Any, routes: ApplicationKnown) -> None:
    plain = app.openapi

    def describe_once() -> Any:
        if app.openapi_schema is None:
            document = plain()
            describe(document, routes.operations())
            describe_reads(document, [each.path for each in routes.endpoints() if is_conditional_read(each)])
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = describe_once


def _store(dialect: str) -> LockedStore:
    if dialect not in ("postgres", "sqlite"):
        raise ConfigurationError(f"dialect {dialect!r} is not supported; onefold knows postgres and sqlite")
    return LockedStore() if dialect == "postgres" else LockedStore(sqlite)
