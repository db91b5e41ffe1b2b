"""The console as an ASGI application: routes, who may use them, and what an error looks like."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from onefold._kernel.extras import missing_extra

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ModuleNotFoundError as error:
    raise missing_extra(error, "console") from None

from onefold._app import AsyncOnefold, Onefold
from onefold._console import csrf
from onefold._console.access import Authorize, TokenAccess, access_of
from onefold._console.headers import ConsoleHeaders
from onefold._console.live import LiveStreams
from onefold._console.pages import SECTIONS
from onefold._console.rendering import make_environment, read_static_files
from onefold._console.sections import ConsoleParts, Page, Visit
from onefold._console.sign_in import SignIn, set_cookie
from onefold._kernel.arguments import name_type
from onefold._saga.engine import SagaEngine
from onefold._steps.unfinished_works import WorkNotFit
from onefold.errors import AuthenticationBroken, ConfigurationError, OnefoldError, SchemaMissing

log = logging.getLogger("onefold.console")

_FORM_BYTES_MAX: Final = 64 * 1024
_FORM_FIELDS_MAX: Final = 100
_FORM_TYPE: Final = "application/x-www-form-urlencoded"

Endpoint = Callable[[Request], Awaitable[Response]]


class Console:
    """An ASGI application, to be mounted or run alone."""

    def __init__(
        self,
        once: AsyncOnefold | Onefold,
        *,
        authorize: Authorize | None = None,
        view_token: str | None = None,
        act_token: str | None = None,
        sagas: Sequence[SagaEngine] = (),
        knows_application: bool = True,
    ) -> None:
        """Access is decided by `authorize`, or by two tokens: `view_token` for role view, `act_token` for role act.
        `sagas` are the engines whose sagas it shows. `knows_application`: whether `once` is that of the application,
        with its keys, or made of an address."""
        if not isinstance(once, AsyncOnefold | Onefold):
            raise ConfigurationError(
                f"console() got {name_type(once)}; its first argument is the AsyncOnefold or Onefold of the application"
            )
        self._parts = ConsoleParts(
            once=once,
            access=access_of(authorize, view_token, act_token),
            templates=make_environment(),
            sections=SECTIONS,
            live=LiveStreams(),
            sagas=_check_engines(sagas),
            knows_application=knows_application,
        )
        self._static = read_static_files()
        routes = [
            Route("/", self._begin, methods=["GET"]),
            Route("/static/{name}", self._serve_static, methods=["GET"]),
            *self._routes_of_sign_in(),
            *(
                Route(page.path, self._endpoint(page), methods=[page.method])
                for section in SECTIONS
                for page in section.pages
            ),
        ]
        handlers: Mapping[Any, Any] = {
            HTTPException: self._show_refusal,
            OnefoldError: self._show_error,
            Exception: self._show_crash,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        # Such a redirect contains the Host header, which a client can choose.
        app.router.redirect_slashes = False
        self._app = ConsoleHeaders(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await self._app(scope, receive, send)

    # Routes

    async def _begin(self, request: Request) -> Response:
        return RedirectResponse(_path(request, SECTIONS[0].path), 303)

    async def _serve_static(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "There is no such file.")
        content, media_type = found
        return Response(content, media_type=media_type)

    def _routes_of_sign_in(self) -> list[Route]:
        access = self._parts.access
        if not isinstance(access, TokenAccess):
            return []
        pages = SignIn(access, self._parts)

        async def sign_in(request: Request) -> Response:
            return await pages.sign_in(request, await _read_genuine_form(request, ""))

        async def sign_out(request: Request) -> Response:
            signed_in = await self._parts.identify(request)
            await _read_genuine_form(request, "" if signed_in is None else signed_in.session)
            return await pages.sign_out(request)

        return [
            Route("/login", pages.show, methods=["GET"]),
            Route("/login", sign_in, methods=["POST"]),
            Route("/logout", sign_out, methods=["POST"]),
        ]

    def _endpoint(self, page: Page) -> Endpoint:
        async def answer(request: Request) -> Response:
            signed_in = await self._parts.identify(request)
            if signed_in is None:
                return _send_to_sign_in(request)
            if not signed_in.operator.role.allows(page.role):
                raise HTTPException(403, "Your role is view: this needs the role act.")
            form: Mapping[str, str] = {}
            if page.method == "POST":
                form = await _read_genuine_form(request, signed_in.session)
            _refuse_nul(request, form)
            existing = csrf.browser_of(request)
            browser = existing or csrf.new_browser()
            token = csrf.token_of(browser, signed_in.session)
            visit = Visit(request=request, parts=self._parts, signed_in=signed_in, csrf=token, form=form)
            response = await page.answer(visit)
            if existing is None:
                set_cookie(response, request, csrf.COOKIE, browser)
            return response

        return answer

    # Errors

    async def _show_refusal(self, request: Request, error: HTTPException) -> Response:
        if error.status_code in (204, 304) or 300 <= error.status_code < 400:
            return Response(status_code=error.status_code, headers=error.headers)
        return self._error_page(request, error.status_code, str(error.detail), error.headers)

    async def _show_error(self, request: Request, error: OnefoldError) -> Response:
        """Show an error of onefold's to the operator: it names the thing and the way out."""
        if isinstance(error, WorkNotFit):
            return self._error_page(request, 409, str(error))
        if isinstance(error, ConfigurationError):  # about the request, and not about the console's set-up
            return self._error_page(request, 400, str(error))
        if isinstance(error, AuthenticationBroken):
            log.error("console: %s %s refused: %s", request.method, request.url.path, error)
            return self._error_page(request, 500, "The application could not identify the operator. Its log says why.")
        if isinstance(error, SchemaMissing):  # it names the way out
            return self._error_page(request, 503, str(error))
        log.error("console: %s %s failed: %s", request.method, request.url.path, error)
        return self._error_page(request, 503, str(error))

    async def _show_crash(self, request: Request, error: Exception) -> Response:
        return self._error_page(request, 500, "The console failed to make this page. Its log says why.")

    def _error_page(
        self, request: Request, status: int, text: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        values = {"root": str(request.scope.get("root_path", "")), "status": status, "text": text}
        return HTMLResponse(self._parts.render("error.html", values), status, headers)


def console(
    once: AsyncOnefold | Onefold,
    *,
    authorize: Authorize | None = None,
    view_token: str | None = None,
    act_token: str | None = None,
    sagas: Sequence[SagaEngine] = (),
) -> Console:
    """The console of an application: `app.mount("/console", console(once, authorize=...))`.

    `authorize` is a function of Starlette's request, sync or async, that returns `Role.VIEW`, `Role.ACT`, an `Operator`
    (a role, and the name for the audit), or None to refuse; it may raise the framework's HTTPException. Without it,
    people sign in with `view_token` or `act_token`. One of these is needed: the console is never open. `sagas` are the
    engines whose sagas it shows; they are open while the application runs.
    """
    return Console(once, authorize=authorize, view_token=view_token, act_token=act_token, sagas=sagas)


def _check_engines(sagas: Sequence[object]) -> tuple[SagaEngine, ...]:
    engines = tuple(each for each in sagas if isinstance(each, SagaEngine))
    if len(engines) < len(sagas):
        raise ConfigurationError(f"sagas={sagas!r} of console() must be a list of engines, as Dbos(...) is one")
    return engines


def _path(request: Request, path: str) -> str:
    return quote(f"{request.scope.get('root_path', '')}{path}")


def _send_to_sign_in(request: Request) -> Response:
    if request.method not in ("GET", "HEAD"):
        raise HTTPException(401, "Your session has ended, and nothing was done. Sign in and try again.")
    if "text/event-stream" in request.headers.get("accept", ""):
        raise HTTPException(401, "Your session has ended.")
    below = request.url.path.removeprefix(request.scope.get("root_path", ""))
    target = below + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{_path(request, '/login')}?next={quote(target, safe='')}", 303)


async def _read_genuine_form(request: Request, session: str) -> dict[str, str]:
    """The fields of a form of one of our pages, made for this browser and session."""
    if not csrf.is_from_here(request):
        raise HTTPException(403, "This form was sent from another site, and nothing was done.")
    form = await _read_form(request)
    if not csrf.is_genuine(form.get(csrf.FIELD, ""), csrf.browser_of(request), session):
        raise HTTPException(403, "This form is not of your session, and nothing was done. Open its page again.")
    return form


def _refuse_nul(request: Request, form: Mapping[str, str]) -> None:
    """Refuse NUL characters, which would fail in the database. The reason is checked by the page that reads it."""
    named = (text for name, text in form.items() if name != "reason")
    texts = (*map(str, request.path_params.values()), *request.query_params.values(), *named)
    if any("\0" in text for text in texts):
        raise HTTPException(400, "The request has a NUL character: no name has one.")


async def _read_form(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise HTTPException(415, f"A form must be {_FORM_TYPE}.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES_MAX:
            raise HTTPException(413, f"A form has at most {_FORM_BYTES_MAX} bytes.")
    try:
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX)
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    return dict(reversed(fields))
