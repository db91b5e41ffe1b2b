"""The pages without an operator: sign in with a token, and sign out."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from onefold._console import csrf
from onefold._console.access import SESSION_S, TokenAccess, cookie_of
from onefold._console.roles import Operator, Role
from onefold._console.sections import ConsoleParts
from onefold._kernel.readable import harmless
from onefold.errors import ConfigurationError

log = logging.getLogger("onefold.console")

#: A path below the console. Not `//host`, not a backslash that a browser takes for a slash, no scheme.
_LOCAL: Final = re.compile(r"/(?![/\\])[A-Za-z0-9/_.~%?=&+:@,-]{0,1000}")


class SignIn:
    """`/login` and `/logout`."""

    def __init__(self, access: TokenAccess, parts: ConsoleParts) -> None:
        self._access = access
        self._parts = parts
        self._throttle = parts.throttle

    async def show(self, request: Request) -> Response:
        """The form. A token in the address is filled in, and not yet used: a GET changes nothing."""
        return self._form(request, token=request.query_params.get("token", ""))

    async def sign_in(self, request: Request, form: Mapping[str, str]) -> Response:
        address = request.client.host if request.client else "unknown"
        if self._throttle.is_full(address):
            log.warning("console: sign-in from %s turned away: too many have failed just now", harmless(address))
            problem_text = "Too many sign-ins have failed just now. Wait a few seconds and try again."
            response = self._form(request, problem=problem_text, status=429)
            response.headers["Retry-After"] = "5"
            return response
        role = self._access.role_of(form.get("token", "").strip())
        if role is None:
            log.warning("console: sign-in from %s failed: the token is not one of this console's", harmless(address))
            await self._throttle.punish(address)
            return self._form(request, problem="This token is not one of this console's.", status=401)
        try:
            operator = Operator(role=role, name=form.get("name", "").strip() or _default_name(role))
        except ConfigurationError:
            problem_text = "The name must have at most 255 printable characters."
            return self._form(request, problem=problem_text, status=400)
        log.info("console: %s signed in from %s with role %s", operator.name, harmless(address), role.value)
        response = RedirectResponse(_root(request) + _below(request), 303)
        cookie = self._access.begin(operator, self._parts.now())
        set_cookie(response, request, cookie_of(request), cookie, max_age=SESSION_S)
        return response

    async def sign_out(self, request: Request) -> Response:
        cookie, now = request.cookies.get(cookie_of(request), ""), self._parts.now()
        if (signed_in := self._access.read(cookie, now)) is not None:
            self._access.end(cookie, now)
            await self._parts.note_sign_out(signed_in)
        response = RedirectResponse(f"{_root(request)}/login", 303)
        set_cookie(response, request, cookie_of(request), "", max_age=0)
        return response

    def _form(self, request: Request, *, token: str = "", problem: str = "", status: int = 200) -> Response:
        browser = csrf.browser_of(request) or csrf.new_browser()
        values = {
            "root": _root(request),
            "csrf": csrf.token_of(browser, ""),
            "token": token,
            "next": _below(request),
            "problem": problem,
        }
        response = HTMLResponse(self._parts.render("login.html", values), status)
        set_cookie(response, request, csrf.COOKIE, browser)
        return response


def set_cookie(response: Response, request: Request, name: str, value: str, *, max_age: int | None = None) -> None:
    """A cookie that no script reads, that goes to this console only, and not along with links from other sites."""
    response.set_cookie(
        name,
        value,
        max_age=max_age,
        path=_root(request) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _default_name(role: Role) -> str:
    return f"console ({role.value} token)"


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _below(request: Request) -> str:
    """Where to go after signing in: a page of this console, or its beginning."""
    target = request.query_params.get("next", "")
    return target if _LOCAL.fullmatch(target) else "/"
