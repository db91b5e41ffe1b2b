"""The application of the backends, written for a framework: with exception handlers, and work that follows an
answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flask import Flask
from flask import Response as FlaskResponse
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onefold import AsyncOnefold, Onefold
from onefold._http import asgi, wsgi
from onefold._http.route_policy import Settings
from tests.contract.plans import Desk, Plan, driven

if TYPE_CHECKING:
    from tests.contract.backends import Backend


class Rescued(Exception):
    """An exception for which the application has a handler."""

    def __init__(self, answer: Plan) -> None:
        super().__init__("the application has a handler for this")
        self.answer = answer


def starlette_orders(backend: Backend, once: AsyncOnefold, settings: Settings) -> asgi.Application:
    @once.idempotent(**settings)
    async def order(request: Request) -> Response:
        desk = Desk(backend.name, request.scope[asgi.TRANSACTION])
        return _starlette_answer(
            await backend.handle(desk, "POST", request.url.path, request.headers, await request.body())
        )

    async def rescue(request: Request, error: Exception) -> Response:
        assert isinstance(error, Rescued)
        return _starlette_answer(error.answer)

    app: Any = Starlette(routes=[Route("/orders", order, methods=["POST"])], exception_handlers={Rescued: rescue})
    once.install(app)
    application: asgi.Application = app
    return application


def _starlette_answer(plan: Plan) -> Response:
    background = None if plan.follows is None else BackgroundTask(plan.follows)
    return Response(plan.body, plan.status, dict(plan.headers), background=background)


def flask_orders(backend: Backend, once: Onefold, settings: Settings) -> wsgi.Application:
    app = Flask("orders")

    @app.post("/orders")
    @once.idempotent(**settings)
    def order() -> FlaskResponse:
        headers = {name.lower(): value for name, value in flask_request.headers.items()}
        desk = Desk(backend.name, flask_request.environ[wsgi.TRANSACTION])
        return _flask_answer(
            driven(backend.handle(desk, "POST", flask_request.path, headers, flask_request.get_data()))
        )

    @app.errorhandler(Rescued)
    def rescue(error: Rescued) -> FlaskResponse:
        return _flask_answer(error.answer)

    once.install(app)
    return app


def _flask_answer(plan: Plan) -> FlaskResponse:
    response = FlaskResponse(plan.body, plan.status, dict(plan.headers))
    if plan.follows is not None:
        call_on_close: Callable[[Callable[[], object]], object] = response.call_on_close
        call_on_close(plan.follows)
    return response
