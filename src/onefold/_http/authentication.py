"""Authentication by the application: its functions `authorize` and `principal`.

Invariant: both have returned before anything stored is looked at. What one of them raises is answered the way the
application's framework answers its own exceptions, and nothing else of the request happens.

Each function declares by its parameter how it takes the request: as onefold's own, as a request of Starlette or
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
from onefold._kernel.arguments import name_type
from onefold._kernel.effects import Call
from onefold.errors import (
    AuthenticationBroken,
    ConfigurationError,
    NotAuthorized,
    OnefoldError,
    PrincipalMissing,
)

_log = logging.getLogger("onefold.requests")

#: How a function takes the request.
Form: TypeAlias = Literal["onefold", "nothing", "starlette", "werkzeug"]

#: The attribute of a wrapper with the function that errors name instead.
NAMED = "__onefold_named__"

#: Where a function finds the template of the route in an ASGI scope; None on the status page.
TEMPLATE = "onefold.template"


class ApplicationRefusal(Exception):
    """The application refused the request itself: this is its answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class Framework(Protocol):
    """What the framework of an application does for a function that is called with a request."""

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
        """The function that serves a request, where its router has noted it."""
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
class RequestFunction:
    """A function of the application that is called with requests: its `authorize`, or its `principal`."""

    setting: str
    function: Callable[..., Any]
    form: Form
    wanted: type | None = None

    @property
    def name(self) -> str:
        return f"{self.setting} function {_name(self.function)}"

    def call(self, request: Request, source: Mapping[str, Any], body: bytes, template: str | None = None) -> Any:
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


def read_request_function(setting: str, function: object) -> RequestFunction:
    """Read from its signature how a function takes the request."""
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
    except (TypeError, ValueError):  # a builtin without a signature
        return RequestFunction(setting, function, "onefold")
    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in signature.parameters.values() if p.default is p.empty and p.kind not in _COLLECTING]
    if len(required) > 1 or (required and required[0] not in places):
        raise ConfigurationError(
            f"the {setting} function {_name(function)} takes {len(required)} parameters without defaults; it is called "
            f"with the request only. A dependency of FastAPI goes through onefold.fastapi.{setting}_from(...)"
        )
    if not places and not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return RequestFunction(setting, function, "nothing")
    annotation = places[0].annotation if places else inspect.Parameter.empty
    return _read_annotation(setting, function, annotation)


_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _read_annotation(setting: str, function: Callable[..., Any], annotation: Any) -> RequestFunction:
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if kind in (inspect.Parameter.empty, Any, object, Request):
        return RequestFunction(setting, function, "onefold")
    kinds = kind.__mro__ if isinstance(kind, type) else ()
    if any(_is(kind, "starlette", "HTTPConnection") for kind in kinds):
        return RequestFunction(setting, function, "starlette", kind)
    if any(_is(kind, "werkzeug", "Request") for kind in kinds):
        return RequestFunction(setting, function, "werkzeug", kind)
    raise ConfigurationError(
        f"the parameter of the {setting} function {_name(function)} is annotated {annotation!r}; it gets the request: "
        "onefold.Request, starlette.requests.Request or flask.Request. A dependency of FastAPI goes through "
        f"{setting}=onefold.fastapi.{setting}_from({_name(function)})"
    )


async def authenticate(
    framework: Framework,
    authorizing: RequestFunction | None,
    identifying: RequestFunction,
    request: Request,
    body: bytes,
    template: str,
) -> str:
    """The principal of the request, if it is authorized. A request of the completer has no client to authenticate: its
    principal is the one that began it. Raises OnefoldError, ApplicationRefusal."""
    if COMPLETING in request.source and (completing := completing_of(request.source)) is not None:
        return completing.principal
    if authorizing is not None:
        await authorize(framework, authorizing, request, body, template)
    return await find_principal(framework, identifying, request, body, template)


async def authorize(
    framework: Framework, callee: RequestFunction | None, request: Request, body: bytes, template: str | None
) -> None:
    """Let the application refuse. Returns where it does not."""
    if callee is None:
        return
    answer = await _call_function(framework, callee, request, body, template)
    if answer is False:
        raise NotAuthorized("The application does not allow this request.")
    if answer is not None and answer is not True:
        # A user, or a coroutine of its own: whether that allows the request is not guessed.
        raise AuthenticationBroken(
            f"the {callee.name} returned {name_type(answer)}; let it return None or True to let the request "
            "pass, and False, or raise an HTTPException, to refuse it"
        )


async def find_principal(
    framework: Framework, callee: RequestFunction, request: Request, body: bytes, template: str | None
) -> str:
    """The principal of the request, by the application's function."""
    return _read_principal(callee, await _call_function(framework, callee, request, body, template), request, template)


def _read_principal(callee: RequestFunction, principal: Any, request: Request, template: str | None) -> str:
    if isinstance(principal, str) and principal:
        return principal
    if principal is None or principal == "":
        # The same text on every route: an unauthenticated caller learns nothing about routes. The log says more.
        _log.info(
            "%s %s got 401: the %s found no principal in it", request.method, template or request.path, callee.name
        )
        raise PrincipalMissing(
            "The application found no principal in this request, and each key belongs to one. Authenticate and retry."
        )
    raise AuthenticationBroken(
        f"the {callee.name} returned a value of type {type(principal).__qualname__}; it must return a string that "
        "stays the same for the same account, tenant or user (for a number str(user.id)), or None for a request "
        "without one"
    )


async def _call_function(
    framework: Framework,
    callee: RequestFunction,
    request: Request,
    body: bytes,
    template: str | None,
    source: Mapping[str, Any] | None = None,
) -> Any:
    """What the function returns for a request. `source` is the environ inside of the framework's own context."""
    if source is None:
        if framework.within is not None:
            with framework.within(request, body) as inner:
                return await _call_function(framework, callee, request, body, template, inner)
        source = request.source
    try:
        returned = callee.call(request, source, body, template)
        if not isinstance(returned, str) and inspect.isawaitable(returned):
            returned = await _await_answer(framework, callee, returned)
    except OnefoldError:
        raise
    except Exception as error:
        answer = await _render_with(framework, error, request)
        if answer is not None:
            raise ApplicationRefusal(answer) from error
        raise AuthenticationBroken(
            f"the {callee.name} raised {type(error).__qualname__}; nothing was looked up and nothing was done. The "
            f"log has its traceback. {_way_out(error)}"
        ) from error
    return returned


def _way_out(error: Exception) -> str:
    """Of a function that raised. Starlette asserts that the middleware a request's session or user comes from was
    reached, whatever was installed."""
    name, _, rest = str(error).partition(" ")
    if isinstance(error, AssertionError) and rest.startswith("must be installed") and name.endswith("Middleware"):
        return (
            f"The request had not passed {name}. The middleware that is added last is outermost, and has to be outside "
            f"of onefold's: call `once.install(app)` before `app.add_middleware({name}, ...)`"
        )
    return "To refuse a request let it raise the framework's HTTPException"


async def render_with_application(
    framework: Framework, error: Exception, request: Request, body: bytes
) -> Response | None:
    """The application's answer to what its own constraint raised, where it has a handler for that.

    COMMIT fails after the handler has answered, so the exception cannot rise through the framework any more. What
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


async def _await_answer(framework: Framework, callee: RequestFunction, found: Awaitable[Any]) -> Any:
    if framework.protocol == "wsgi":
        if inspect.iscoroutine(found):
            found.close()
        raise AuthenticationBroken(f"the {callee.name} is async, but a WSGI application runs on threads; write a def")
    return await Call(functools.partial(_same, found))


def render_http_exception(error: Exception) -> Response | None:
    """An HTTPException of Starlette, FastAPI or Werkzeug as a response, where no framework is there to render it."""
    kinds = type(error).__mro__
    exception: Any = error
    if any(_is(kind, "starlette", "HTTPException") for kind in kinds):
        status = int(exception.status_code)
        headers = {str(name).lower(): str(value) for name, value in (exception.headers or {}).items()}
        body = b"" if status in (204, 304) else str(exception.detail or HTTPStatus(status).phrase).encode()
        headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body))} | headers
        return Response(status, tuple((n.encode("latin-1"), v.encode("latin-1")) for n, v in headers.items()), body)
    if any(_is(kind, "werkzeug", "HTTPException") for kind in kinds):
        return of_werkzeug(exception.get_response())
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
