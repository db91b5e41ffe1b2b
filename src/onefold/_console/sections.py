"""Pages of the console, and the `Visit` that each gets.

A module of `pages/` has a `SECTION`, and stands in the list in `pages/__init__.py`: that is all it takes to be in the
navigation and to be served. By the time a page's function runs, the operator is known, the role is enough and, for a
POST, the form is genuine.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from onefold._app import AsyncOnefold, Onefold
from onefold._app.base_app import run_flow
from onefold._console.access import Access, SignedIn, session_id
from onefold._console.roles import Operator, Role
from onefold._console.throttle import SignInThrottle
from onefold._kernel.audit import find_audit, write_audit
from onefold._kernel.effects import Flow
from onefold._saga.engine import SagaEngine
from onefold.errors import OnefoldError

if TYPE_CHECKING:
    from jinja2 import Environment

    from onefold._console.live import LiveStreams

T = TypeVar("T")

REASON_CHARS_MAX: Final = 500

#: Of the audit.
SIGN_OUT: Final = "console sign out"

#: Where the text of an exception begins: behind the name of its class. The text before is onefold's.
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*:|\b[A-Za-z_][A-Za-z0-9_.]*(Error|Exception|Exit|Interrupt):")

log = logging.getLogger("onefold.console")

#: The error of a form without a reason.
ASK_WHY: Final = f"Say why, in at most {REASON_CHARS_MAX} characters."


@dataclass(slots=True, kw_only=True)
class ConsoleParts:
    """The parts that all visits share."""

    once: AsyncOnefold | Onefold
    """Whose tables these are."""
    access: Access
    templates: Environment
    sections: tuple[Section, ...]
    live: LiveStreams
    throttle: SignInThrottle = field(default_factory=SignInThrottle)
    now: Callable[[], float] = time.time
    """Seconds since 1970, for sessions."""

    sagas: tuple[SagaEngine, ...] = ()
    """The engines whose sagas are shown."""
    knows_application: bool = True
    """Whether `once` is that of the application, or made of the address of its database."""

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        return self.templates.get_template(template).render({"sections": self.sections, **values})

    async def identify(self, request: Request) -> SignedIn | None:
        """The operator of a request; None: a sign-in is needed. Raises HTTPException where it is refused."""
        signed_in = await self.access.identify(request, self.now())
        if signed_in is not None and signed_in.ends_at is not None and await self._is_signed_out(signed_in.session):
            return None
        return signed_in

    async def note_sign_out(self, signed_in: SignedIn) -> None:
        """Record in the audit, which all processes read, that this session has ended."""
        details = {"session": session_id(signed_in.session)}
        actor = signed_in.operator.name
        try:
            await run_flow(self.once, partial(write_audit, actor=actor, action=SIGN_OUT, details=details))
        except OnefoldError as error:
            log.warning(
                "console: %s signed out of this process only, and the audit has no entry of it: %s", actor, error
            )

    async def _is_signed_out(self, session: str) -> bool:
        about = {"session": session_id(session)}
        try:
            return await run_flow(self.once, partial(find_audit, action=SIGN_OUT, about=about)) is not None
        except OnefoldError:  # the page itself shows the error of the database
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request for a page, by an operator who may see it."""

    request: Request
    parts: ConsoleParts
    signed_in: SignedIn
    csrf: str
    """The value of the hidden field in this page's forms."""
    form: Mapping[str, str]
    """Of a POST: its fields. Of each name the first."""

    @property
    def once(self) -> AsyncOnefold | Onefold:
        """Whose tables these are."""
        return self.parts.once

    @property
    def operator(self) -> Operator:
        return self.signed_in.operator

    @property
    def may_act(self) -> bool:
        return self.operator.role is Role.ACT

    def error(self, text: str | None) -> str:
        """The text of a failure. The text of an exception is for role act only, because it may have personal data in
        it. Others see its class."""
        exception = None if self.may_act else _EXCEPTION.search(text or "")
        return (
            text or ""
            if exception is None
            else f"{exception.string[: exception.end() - 1]} (its text is for the role act)"
        )

    async def run(self, make_flow: Callable[[str], Flow[T]]) -> T:
        """Run a flow, made by a function of the dialect: `await visit.run(list_works)`."""
        return await run_flow(self.once, make_flow)

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the address."""
        return self.request.query_params.get(name, default)

    def param(self, name: str) -> str:
        """A part of the path: `{id}`."""
        return str(self.request.path_params[name])

    def is_in(self, section: str) -> bool:
        """Whether this is the page of a section, or one below it."""
        below = self.request.url.path.removeprefix(self.request.scope.get("root_path", ""))
        return below == section or below.startswith(f"{section}/")

    def url(self, path: str, **query: object) -> str:
        """The address of a page of this console, wherever it is mounted. Parameters that are None or empty are left
        out."""
        chosen = {name: str(value) for name, value in query.items() if value is not None and value != ""}
        return quote(self.request.scope.get("root_path", "") + path) + (f"?{urlencode(chosen)}" if chosen else "")

    def render(self, template: str, /, *, problem: str = "", **values: Any) -> Response:
        """A page. `problem`: why the operator's action was not done."""
        context = {"visit": self, "url": self.url, "root": self.url(""), "problem": problem, **values}
        return HTMLResponse(self.parts.render(template, context), 400 if problem else 200)

    def redirect(self, path: str, **query: object) -> Response:
        """To a page of this console, after a POST."""
        return RedirectResponse(self.url(path, **query), 303)

    async def is_over(self) -> bool:
        """Whether the operator has lost access: a stream ends then."""
        try:
            signed_in = await self.parts.identify(self.request)
        except HTTPException:
            return True
        return signed_in is None or signed_in.session != self.signed_in.session

    def reason(self) -> str | None:
        """The reason in the form; None: it is missing, or too long."""
        reason = " ".join(self.form.get("reason", "").split())
        return reason if 0 < len(reason) <= REASON_CHARS_MAX and reason.isprintable() else None


Answer: TypeAlias = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A path below the console, and the function that answers it. A GET changes nothing."""

    path: str
    answer: Answer
    method: Literal["GET", "POST"] = "GET"
    role: Role = Role.VIEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """An entry of the navigation and the pages behind it."""

    title: str
    path: str
    """Where the entry leads to. It is marked on this page and on all below it."""
    pages: tuple[Page, ...]


def missing(what: str) -> HTTPException:
    """The error of a page for a missing thing: `raise missing(f"There is no work {id}.")`."""
    return HTTPException(404, what)
