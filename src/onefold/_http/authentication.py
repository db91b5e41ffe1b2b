"""Who asks, and whether it may: the application's `authorize` and `principal`.

Invariant: both have spoken before anything stored is looked at. What one of them raises is answered the way the
application's framework answers its own exceptions, and nothing else of the request happens.

Each function says by its parameter how it wants to see the request: as onefold's own, as a request of Starlette or
FastAPI, as one of Flask or Werkzeug, or not at all. The classes are recognised by their names, never imported here.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from typing import Annotated, Any, Literal, Protocol, TypeAlias, cast, get_args, get_origin

from onefold._http.request import COMPLETING, Request, Response, completing_of
from onefold._kernel.effects import Call
from onefold.errors import (
    AuthenticationBroken,
    ConfigurationError,
    NotAuthorized,
    OnefoldError,
    PrincipalMissing,
)

_log = logging.getLogger("onefold.requests")

#: How a function wants to see the request.
Form: TypeAlias = Literal["onefold", "nothing", "starlette", "werkzeug"]

#: What a function that only passes the question on is named after, in errors.
NAMED = "__onefold_named__"

#: Where a function finds the template of the route in an ASGI scope; None on the status page.
TEMPLATE = "onefold.template"


class ApplicationRefusal(Exception):
    """The application refused the request itself: this is its answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class Framework(Protocol):
    """What the framework of an application does for a function that is asked about a request."""

    @property
    def protocol(self) -> Literal["asgi", "wsgi"]: ...

    @property
    def within(self) -> Callable[[Request, bytes], AbstractContextManager[Mapping[str, Any]]] | None:
        """Around the function: whatever the framework offers inside a request. Gives the environ. None: nothing, and
        the scope is as it came."""
        ...

    def answer(self, error: Exception, request: Request) -> Awaitable[Response | None] | Response | None:
        """The framework's answer to an exception of its own, or of one the application has a handler for."""
        ...

    def endpoint_of(self, request: Request) -> object | None:
        """The function that serves a request, as far as its router has told."""
        ...


class PlainAsgi:
    """No framework, or none that is known."""

    protocol: Literal["asgi"] = "asgi"
    within: None = None

    def answer(self, error: Exception, request: Request) -> Awaitable[Response | None] | Response | None:
        return render_http_exception(error)

    def endpoint_of(self, request: Request) -> object | None:
        return None


PLAIN_ASGI = PlainAsgi()


class PlainWsgi:
    """No framework, or none that is known, on threads."""

    protocol: Literal["wsgi"] = "wsgi"

    def within(self, request: Request, body: bytes) -> AbstractContextManager[Mapping[str, Any]]:
        return nullcontext(with_body(request.source, body))

    def answer(self, error: Exception, request: Request) -> Response | None:
        return render_http_exception(error)

    def endpoint_of(self, request: Request) -> object | None:
        return None


PLAIN_WSGI = PlainWsgi()


@dataclass(frozen=True, slots=True)
class Question:
    """A function of the application that is asked about requests."""

    setting: str
    function: Callable[..., Any]
    form: Form
    wanted: type | None = None

    @property
    def name(self) -> str:
        return f"{self.setting} function {_name(self.function)}"

    def put(self, request: Request, source: Mapping[str, Any], body: bytes, template: str | None = None) -> Any:
        """Call it with the request in its form."""
        match self.form:
            case "onefold":
                return self.function(request)
            case "nothing":
                return self.function()
            case "starlette":
                assert self.wanted is not None
                cast("MutableMapping[str, Any]", source)[TEMPLATE] = template
                reads_bodies = any(_is(kind, "starlette", "Request") for kind in self.wanted.__mro__)
                return self.function(self.wanted(source, *((_make_receive(body),) if reads_bodies else ())))
            case "werkzeug":
                assert self.wanted is not None
                return self.function(self.wanted(source))

    def check_form(self, protocol: str, by: str) -> None:
        """Refuse a function whose form this protocol cannot give."""
        for form, has, other in (("starlette", "asgi", "starlette"), ("werkzeug", "wsgi", "flask")):
            if self.form == form and protocol != has:
                raise ConfigurationError(
                    f"the {self.name} wants a request of {other}, which {by} does not have; let it take onefold's own "
                    "(onefold.Request), or no parameter"
                )


def read_question(setting: str, function: object) -> Question:
    """Read from its signature how a function wants to be asked."""
    if not callable(function):
        raise ConfigurationError(
            f"{setting}={function!r} is not a function; write one that takes the request, as in "
            f"{setting}=lambda request: ... (an application with one principal only: onefold.single_principal)"
        )
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise ConfigurationError(
            f"the {setting} function {_name(function)} has an annotation that cannot be looked up ({error}): import "
            "the class of its parameter at run time, not only under TYPE_CHECKING"
        ) from error
    except (TypeError, ValueError):  # a builtin that does not tell
        return Question(setting, function, "onefold")
    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in signature.parameters.values() if p.default is p.empty and p.kind not in _COLLECTING]
    if len(required) > 1 or (required and required[0] not in places):
        raise ConfigurationError(
            f"the {setting} function {_name(function)} takes {len(required)} parameters without defaults; it is called "
            f"with the request only. A dependency of FastAPI goes through onefold.fastapi.{setting}_from(...)"
        )
    if not places and not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return Question(setting, function, "nothing")
    annotation = places[0].annotation if places else inspect.Parameter.empty
    return _read_annotation(setting, function, annotation)


_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _read_annotation(setting: str, function: Callable[..., Any], annotation: Any) -> Question:
    told = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if told in (inspect.Parameter.empty, Any, object, Request):
        return Question(setting, function, "onefold")
    kinds = told.__mro__ if isinstance(told, type) else ()
    if any(_is(kind, "starlette", "HTTPConnection") for kind in kinds):
        return Question(setting, function, "starlette", told)
    if any(_is(kind, "werkzeug", "Request") for kind in kinds):
        return Question(setting, function, "werkzeug", told)
    raise ConfigurationError(
        f"the parameter of the {setting} function {_name(function)} is annotated {annotation!r}; it gets the request: "
        "onefold.Request, starlette.requests.Request or flask.Request. A dependency of FastAPI goes through "
        f"{setting}=onefold.fastapi.{setting}_from({_name(function)})"
    )


async def authenticate(
    framework: Framework, may: Question | None, whose: Question, request: Request, body: bytes, template: str
) -> str:
    """On whose behalf the request is made, if it may be. A request of the completer has no client that could be asked:
    it is made on behalf of the principal that began it. Raises OnefoldError, ApplicationRefusal."""
    if COMPLETING in request.source and (completing := completing_of(request.source)) is not None:
        return completing.principal
    if may is not None:
        await authorize(framework, may, request, body, template)
    return _read_principal(whose, await _ask(framework, whose, request, body, template), request, template)


async def authorize(
    framework: Framework, asked: Question | None, request: Request, body: bytes, template: str | None
) -> None:
    """Let the application refuse. Returns where it does not."""
    if asked is None:
        return
    found = await _ask(framework, asked, request, body, template)
    if found is False:
        raise NotAuthorized("The application does not allow this request.")
    if found is not None and found is not True:
        # A user, or a coroutine of its own: whether that means yes or no is not for us to guess.
        raise AuthenticationBroken(
            f"the {asked.name} returned a {type(found).__qualname__}; let it return None or True to let the request "
            "pass, and False, or raise an HTTPException, to refuse it"
        )


async def identify(framework: Framework, asked: Question, request: Request, body: bytes, template: str | None) -> str:
    """The principal: on whose behalf the request is made, as the application finds it."""
    return _read_principal(asked, await _ask(framework, asked, request, body, template), request, template)


def _read_principal(asked: Question, found: Any, request: Request, template: str | None) -> str:
    if isinstance(found, str) and found:
        return found
    if found is None or found == "":
        # The same words on every route: an unauthenticated caller learns nothing about routes. The log says more.
        _log.info(
            "%s %s got 401: the %s found no principal in it", request.method, template or request.path, asked.name
        )
        raise PrincipalMissing(
            "The application found no principal in this request, and each key belongs to one. Authenticate and retry."
        )
    raise AuthenticationBroken(
        f"the {asked.name} returned a value of type {type(found).__qualname__}; it must return a string that stays the "
        "same for the same account, tenant or user (for a number str(user.id)), or None for a request without one"
    )


async def _ask(
    framework: Framework,
    asked: Question,
    request: Request,
    body: bytes,
    template: str | None,
    source: Mapping[str, Any] | None = None,
) -> Any:
    """What the function says of a request. `source` is the environ inside of the framework's own context."""
    if source is None:
        if framework.within is not None:
            with framework.within(request, body) as inner:
                return await _ask(framework, asked, request, body, template, inner)
        source = request.source
    try:
        found = asked.put(request, source, body, template)
        if not isinstance(found, str) and inspect.isawaitable(found):
            found = await _await_answer(framework, asked, found)
    except OnefoldError:
        raise
    except Exception as error:
        answer = await _render_with(framework, error, request)
        if answer is not None:
            raise ApplicationRefusal(answer) from error
        raise AuthenticationBroken(
            f"the {asked.name} raised {type(error).__qualname__}; nothing was looked up and nothing was done. The "
            "log has its traceback. To refuse a request let it raise the framework's HTTPException"
        ) from error
    return found


async def render_with_application(
    framework: Framework, error: Exception, request: Request, body: bytes
) -> Response | None:
    """The application's answer to what its own constraint raised, where it has a handler for that.

    COMMIT speaks after the handler has answered, so the exception cannot rise through the framework any more. What
    rises here is the vendor's own, which is what an application has handlers for.
    """
    vendor: BaseException | None = error
    while isinstance(vendor, OnefoldError):
        vendor = vendor.__cause__
    if not isinstance(vendor, Exception):
        return None
    with nullcontext() if framework.within is None else framework.within(request, body):
        return await _render_with(framework, vendor, request)


async def _render_with(framework: Framework, error: Exception, request: Request) -> Response | None:
    answer = framework.answer(error, request)
    if inspect.isawaitable(answer):
        answer = await Call(functools.partial(_same, answer))
    return cast("Response | None", answer)


async def _await_answer(framework: Framework, asked: Question, found: Awaitable[Any]) -> Any:
    if framework.protocol == "wsgi":
        if inspect.iscoroutine(found):
            found.close()
        raise AuthenticationBroken(f"the {asked.name} is async, but a WSGI application runs on threads; write a def")
    return await Call(functools.partial(_same, found))


def render_http_exception(error: Exception) -> Response | None:
    """An HTTPException of Starlette, FastAPI or Werkzeug as a response, where no framework is there to render it."""
    kinds = type(error).__mro__
    told: Any = error
    if any(_is(kind, "starlette", "HTTPException") for kind in kinds):
        status = int(told.status_code)
        headers = {str(name).lower(): str(value) for name, value in (told.headers or {}).items()}
        body = b"" if status in (204, 304) else str(told.detail or HTTPStatus(status).phrase).encode()
        headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body))} | headers
        return Response(status, tuple((n.encode("latin-1"), v.encode("latin-1")) for n, v in headers.items()), body)
    if any(_is(kind, "werkzeug", "HTTPException") for kind in kinds):
        return of_werkzeug(told.get_response())
    return None


def of_werkzeug(response: Any) -> Response:
    """A whole response of Werkzeug or Flask as ours."""
    body: bytes = response.get_data()
    headers = tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers)
    return Response(int(response.status_code), headers, body)


def with_body(environ: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    """An environ whose body, which we have read, can be read again. A copy: the handler sees nothing cached in it."""
    return {**environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}


def _make_receive(body: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    left = [body]

    async def receive() -> dict[str, Any]:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(), "more_body": False}

    return receive


def _is(kind: type, package: str, name: str) -> bool:
    return kind.__name__ == name and kind.__module__.partition(".")[0] == package


def _name(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named = getattr(function, NAMED, function)
    return f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _same(awaitable: Awaitable[Any]) -> Awaitable[Any]:
    return awaitable
