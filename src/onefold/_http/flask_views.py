"""Flask: finding the idempotent view of a request with the application's own URL map."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import quote
from uuid import UUID

from onefold._kernel.extras import missing_extra

try:
    from flask import Flask
except ModuleNotFoundError as error:
    raise missing_extra(error, "flask") from None
from flask import Response as FlaskResponse
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect, Rule

from onefold._http.authentication import of_werkzeug, with_body
from onefold._http.condition_errors import ConditionFailed
from onefold._http.conditional import RequestCondition
from onefold._http.decorator import note_exception, policy_of, refusal_of, served_by
from onefold._http.guarded_request import current_request
from onefold._http.install_checks import ServedPath
from onefold._http.request import Request, Response, principal_in
from onefold._http.route_policy import METHODS, Policy, Route
from onefold._http.scope_keys import CONDITION, SESSIONS, TRANSACTION, is_between_steps
from onefold._kernel.transaction import Transaction
from onefold.errors import ProgrammerError

_OWN = "onefold_session"

#: `<name>`, `<type:name>`, `<type(arguments):name>`.
_PARAMETER = re.compile(r"<(?:[A-Za-z_]\w*(?:\(.*?\))?:)?([A-Za-z_]\w*)>")


class ViewRoutes:
    """The views of a Flask application."""

    def __init__(self, app: Flask) -> None:
        self._app = app

    def resolve(self, request: Request) -> Route | None:
        if request.method not in METHODS:
            return None
        app = self._app
        try:
            # As Flask itself does it, with its subdomains and trusted hosts.
            flask_request = app.request_class(dict(request.source))
            adapter = app.create_url_adapter(flask_request)
            if adapter is None:
                return None
            rule, given = adapter.match(return_rule=True)
        except (HTTPException, RequestRedirect):
            return None  # Flask answers that itself
        policy = self._policy(rule.endpoint, request.method)
        if policy is None:
            return None
        host, values = _host(rule, app), _values(rule, given, app)
        if values is None and "<" in host:  # the path stands for its own values, not for those of the host
            host = f"//{quote(flask_request.host)}"
        earlier = rule.rule if host else None
        return Route(host + rule.rule, policy, values=values, mount=request.mount, earlier=earlier)

    def mount_of(self, request: Request) -> str:
        """Where the application is mounted."""
        return request.mount

    def operations(self) -> dict[str, Policy]:
        return {
            f"{method} {_host(rule, self._app)}{rule.rule}": policy
            for rule in self._app.url_map.iter_rules()
            for method in (rule.methods or METHODS) & METHODS
            if (policy := self._policy(rule.endpoint, method)) is not None
        }

    def endpoints(self) -> Iterator[ServedPath]:
        for rule in self._app.url_map.iter_rules():
            view = self._app.view_functions.get(rule.endpoint)
            yield ServedPath(frozenset(rule.methods or ()), rule.rule, view)
            kind = getattr(view, "view_class", None)
            for method in rule.methods or () if kind is not None else ():
                yield ServedPath(frozenset({method}), rule.rule, getattr(kind, method.lower(), None))

    def mounted(self) -> Iterator[tuple[str, object]]:
        """Flask mounts nothing; blueprints are its own."""
        return iter(())

    def _policy(self, endpoint: str, method: str) -> Policy | None:
        view = self._app.view_functions.get(endpoint)
        # A class of views is marked as a whole, or method by method.
        return policy_of(view) or policy_of(getattr(getattr(view, "view_class", None), method.lower(), None))


def hold_back_closing(response: FlaskResponse) -> FlaskResponse:
    """For `after_request`: what a response does when it is closed follows its own answer, and no other.

    Where another goes out in its place, what the response is made of is closed all the same.
    """
    guarded = current_request.get()
    if guarded is None or guarded.over:
        return response
    close = response.close

    def close_after_answer() -> None:
        del response.close  # and with it the circle of the response, this function and the response
        if guarded.sent == 0:
            getattr(response.response, "close", _do_nothing)()
        else:
            close()

    vars(response)["close"] = close_after_answer
    return response


def _do_nothing() -> None: ...


def note_exceptions(app: Flask) -> None:
    """Hear of what is raised around a view (by a decorator, `after_request`, a view that returns no response): Flask
    hands it to these two, whatever handler of the application then answers."""
    for name in ("handle_user_exception", "handle_exception"):
        setattr(app, name, _note_and_handle(getattr(app, name)))


def _note_and_handle(handle: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handle)
    def note_and_handle(*args: Any, **kwargs: Any) -> Any:
        for given in (*args, *kwargs.values()):  # newer Flasks hand their context over, too
            if isinstance(given, Exception):
                note_exception(given)
        return handle(*args, **kwargs)

    return note_and_handle


class FlaskFramework:
    """How an application's `authorize` and `principal` are called: inside a request of Flask, with its session."""

    protocol: Literal["wsgi"] = "wsgi"

    def __init__(self, app: Flask) -> None:
        self._app = app

    @contextmanager
    def within(self, request: Request, body: bytes) -> Iterator[Mapping[str, Any]]:
        environ = with_body(request.source, body)
        with self._app.request_context(environ):
            yield environ

    def answer(self, error: Exception, request: Request) -> Response | None:
        app = self._app
        if not isinstance(error, HTTPException):
            # A handler of the application's own for this error answers; one for everything would hide what failed.
            handled = app.error_handler_spec[None][None]
            if not any(kind in handled for kind in type(error).__mro__ if kind is not Exception):
                return None
        return of_werkzeug(app.make_response(app.handle_user_exception(error)))

    def endpoint_of(self, request: Request) -> object | None:
        from flask import request as served

        view = self._app.view_functions.get(served.endpoint or "")
        return served_by(view, getattr(view, "view_class", None), request.method)


def _host(rule: Rule, app: Flask) -> str:
    """Where a view is found only: `//shop.test`, or below any name of the server, `//<tenant>.*`."""
    if app.url_map.host_matching:
        return f"//{rule.host}" if rule.host else ""
    return f"//{rule.subdomain}.*" if rule.subdomain else ""


def _values(rule: Rule, given: Mapping[str, object], app: Flask) -> tuple[str, ...] | None:
    """The values in host and path, in their order. None where a converter of the application's own made something of
    them that cannot be written down: the path stands for them then."""
    names = [found[1] for found in _PARAMETER.finditer(_host(rule, app) + rule.rule)]
    if not all(isinstance(given.get(name), str | int | float | UUID) for name in names):
        return None
    return tuple([str(given[name]) for name in names])


def stored_principal() -> str | None:
    """The principal of a request that the completer makes, which has no credentials: for an application's own checks
    of them. None for requests of clients."""
    from flask import request

    return principal_in(request.environ)


def current_transaction() -> Transaction[Any]:
    """The transaction of the request a Flask view is serving."""
    from flask import request

    tx = request.environ.get(TRANSACTION)
    if isinstance(tx, Transaction):
        return tx
    raise ProgrammerError(
        f"{request.method} {request.path} has no transaction: mark the view with @once.idempotent(...), below "
        "@app.post(...), and call once.install(app)"
    )


def current_condition() -> RequestCondition:
    """The condition of the request a Flask view is serving."""
    from flask import request

    found = request.environ.get(CONDITION)
    if isinstance(found, RequestCondition):
        return found
    raise ProgrammerError(
        f"{request.method} {request.path} has no condition: mark the view with @once.conditional(etag=...), below "
        "@app.put(...), and call once.install(app)"
    )


def answer_failed_conditions(app: Flask) -> None:
    """A condition that does not hold is an answer and no failure: logs see a 412."""

    def answer(error: ConditionFailed) -> FlaskResponse:
        found = refusal_of(error)
        headers = [(name.decode("latin-1").title(), value.decode("latin-1")) for name, value in found.headers]
        return FlaskResponse(found.body, found.status, headers)

    if ConditionFailed not in app.error_handler_spec[None][None]:
        app.register_error_handler(ConditionFailed, answer)


def current_session() -> Any:
    """The application's SQLAlchemy session for the request a Flask view is serving: in its transaction, or where it has
    none (a GET) of its own, which the view commits and Flask's teardown closes."""
    from flask import g, request

    tx = request.environ.get(TRANSACTION)
    if isinstance(tx, Transaction) and not is_between_steps(request.environ):
        return tx.session()
    if _OWN not in g:
        sessions = request.environ.get(SESSIONS)
        if sessions is None:
            raise ProgrammerError(
                f"{request.method} {request.path} has no session: give Onefold a SQLAlchemy engine, and call "
                "once.install(app)"
            )
        setattr(g, _OWN, sessions.own())
    return getattr(g, _OWN)


def close_own_session(_: BaseException | None) -> None:
    """For Flask's teardown: let go of a session that `current_session` opened."""
    from flask import g

    session = g.pop(_OWN, None)
    if session is not None:
        session.close()
