"""Flask: finding the idempotent view of a request with the application's own URL map."""

from __future__ import annotations

from typing import Any

from flask import Flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from onefold._kernel.transaction import Transaction
from onefold.errors import ProgrammerError
from onefold.http.marks import policy_of
from onefold.http.messages import Request
from onefold.http.policy import METHODS, Policy, Route
from onefold.http.wsgi import TRANSACTION


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
            adapter = app.create_url_adapter(app.request_class(dict(request.source)))
            if adapter is None:
                return None
            rule, _ = adapter.match(return_rule=True)
        except (HTTPException, RequestRedirect):
            return None  # Flask answers that itself
        policy = self._policy(rule.endpoint, request.method)
        return Route(rule.rule, policy) if policy is not None else None

    def operations(self) -> dict[str, Policy]:
        return {
            f"{method} {rule.rule}": policy
            for rule in self._app.url_map.iter_rules()
            for method in (rule.methods or METHODS) & METHODS
            if (policy := self._policy(rule.endpoint, method)) is not None
        }

    def _policy(self, endpoint: str, method: str) -> Policy | None:
        view = self._app.view_functions.get(endpoint)
        # A class of views is marked as a whole, or method by method.
        return policy_of(view) or policy_of(getattr(getattr(view, "view_class", None), method.lower(), None))


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
