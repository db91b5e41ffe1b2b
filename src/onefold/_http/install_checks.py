"""What must hold before the first request: every marked handler has a route that its own layer serves.

A handler that onefold does not find runs unprotected, and nothing would show it: so it is looked for when the layer is
installed, as far as routes are there by then, and once more when the application starts (its lifespan, or the first
request where there is none). Each mistake names the handler and the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onefold._http.decorator import IdempotentHandler, Serving, idempotent_handler_of, name_of
from onefold._http.route_policy import METHODS, is_bool
from onefold._http.steps_parameter import find_steps, find_transactions
from onefold._kernel.telemetry import Listener
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._idempotency.cache.cached_store import CachedStores

#: What frameworks add to a route by themselves.
_IMPLIED = frozenset({"HEAD", "OPTIONS"})


class ServedPath(NamedTuple):
    """What an application serves at a path."""

    methods: frozenset[str]
    path: str
    function: object


class Known(Protocol):
    """Whatever knows what an application serves."""

    def endpoints(self) -> Iterable[ServedPath]: ...
    def mounted(self) -> Iterable[tuple[str, object]]:
        """The applications below this one, each with its path."""
        ...


def is_conditional_read(endpoint: ServedPath) -> bool:
    """Whether its answers have an ETag, and are 304 for those who have them."""
    found = idempotent_handler_of(endpoint.function)
    return found is not None and found.policy.conditional is not None and "GET" in endpoint.methods


def leave_in(app: Any, once: object) -> None:
    """Store a Onefold in its application, where the framework has a place for extensions: see `find_installed`."""
    if hasattr(app, "extensions"):
        app.extensions["onefold"] = once
    elif hasattr(app, "state"):
        app.state.onefold = once


def find_installed(app: Any) -> object | None:
    """The Onefold that was installed into an application, if one was."""
    extensions = getattr(app, "extensions", None)
    found: object | None = extensions.get("onefold") if isinstance(extensions, dict) else None
    return found if found is not None else getattr(getattr(app, "state", None), "onefold", None)


def check_free(app: Any, name: str) -> None:
    """Refuse an application that has a layer already."""
    present = getattr(app, "layer_name", None) or ((found := find_installed(app)) is not None and repr(found))
    if present == name:
        raise ConfigurationError(
            f"{name} is installed into this application already: once is enough. Install it where the application is "
            "made, or where it is complete, and mark its routes with the same one"
        )
    if present:
        raise ConfigurationError(
            f"{name} cannot be installed: {present} is installed into this application already, and each request would "
            "pass two layers. One Onefold serves all idempotent routes of an application"
        )


def check_served(known: Known, layer: Serving, marks: Iterable[IdempotentHandler], protocol: str) -> None:
    """Refuse what is wrong with the routes an application has so far."""
    marked = [mark.function for mark in marks]
    for path, app in known.mounted():
        if (other := find_installed(app)) is not None:
            raise ConfigurationError(
                f"{layer.name} is installed into an application, and {other!r} into the one mounted in it at {path}: "
                "each request there would pass two layers. Install the outer one only: it finds the routes of mounted "
                "applications"
            )
    for endpoint in known.endpoints():
        found = idempotent_handler_of(endpoint.function)
        if found is not None:
            _check_marked(endpoint, found, layer)
        if protocol == "wsgi":
            _check_view(endpoint)
        # A handler that was marked above its route's decorator is reported as that, when all routes are there.
        if found is None and all(endpoint.function is not function for function in marked):
            _check_unmarked(endpoint)


def _check_marked(endpoint: ServedPath, found: IdempotentHandler, layer: Serving) -> None:
    if not endpoint.methods:
        raise ConfigurationError(
            f"{found.name} is marked as idempotent and serves the WebSocket {endpoint.path}: no request with a key "
            "comes there, and each connection would fail. Take the mark out; what a message of it writes goes through "
            "once.transaction(), or once.handling(...) if messages have ids of their own"
        )
    others = sorted(endpoint.methods - METHODS - _IMPLIED)
    if found.policy.conditional is not None and "GET" in endpoint.methods:
        _check_read(endpoint, found)
        others = [method for method in others if method != "GET"]
    if others:
        raise ConfigurationError(
            f"{found.name} is marked as idempotent and serves {', '.join(others)} {endpoint.path}: a key means nothing "
            f"there. Mark handlers of {', '.join(sorted(METHODS))} only, and give other methods a function of their own"
        )
    if found.layer is not layer:
        raise ConfigurationError(
            f"{found.name} at {endpoint.path} was marked with {found.layer.name}, but {layer.name} is installed into "
            "its application: mark and install with the same one"
        )


def _check_read(endpoint: ServedPath, found: IdempotentHandler) -> None:
    """A conditional read has no transaction: the first request would fail. Nor is its `authorize` called."""
    authorize = found.policy.authorize
    if authorize is not None and authorize is not found.layer.authorize:
        raise ConfigurationError(
            f"{found.name} serves {_operation(endpoint)} and has authorize={authorize!r:.80}, which is called before "
            "a write is let in, and never for a read. Protect it as your other reads: by a dependency, or in the "
            "handler"
        )
    if endpoint.methods & METHODS:
        raise ConfigurationError(
            f"{found.name} serves {_operation(endpoint)}, which reads and writes: give each a function of its own"
        )
    for name, through in find_transactions(found.function):
        raise ConfigurationError(
            f"{_operation(endpoint)} is served by {found.name}, which has the parameter {name!r}{through}, the "
            "transaction of a request: a read has none. Take it out, and read through your own connection or session"
        )


def _check_unmarked(endpoint: ServedPath) -> None:
    """Its first request would fail."""
    if not callable(endpoint.function):
        return
    wanted = [f"{name!r}{through}, the transaction" for name, through in find_transactions(endpoint.function)]
    if (steps := find_steps(endpoint.function)) is not None:
        wanted.append(f"{steps!r}, the steps")
    if wanted:
        raise ConfigurationError(
            f"{_operation(endpoint)} is served by {name_of(endpoint.function)} ({_place(endpoint.function)}), which "
            f"has the parameter {wanted[0]} of an idempotent request, and is not marked: put @once.idempotent(...) "
            f"directly above the function (a handler of {', '.join(sorted(METHODS))}), or take the parameter out"
        )


def _check_view(endpoint: ServedPath) -> None:
    """Flask gives its views what is in the path, and nothing else."""
    if callable(endpoint.function):
        for name, _ in find_transactions(endpoint.function):
            raise ConfigurationError(
                f"{_operation(endpoint)} is served by {name_of(endpoint.function)} ({_place(endpoint.function)}), "
                f"which has the parameter {name!r}: Flask gives its views no transaction. Take it out, and call "
                "onefold.flask.current_transaction() in the view"
            )


def _operation(endpoint: ServedPath) -> str:
    return f"{', '.join(sorted(endpoint.methods - _IMPLIED))} {endpoint.path}".strip()


def check_complete(marks: Iterable[IdempotentHandler], applications: Iterable[Known]) -> None:
    """Refuse marked handlers that no application serves."""
    served: set[IdempotentHandler] = set()
    unmarked: list[object] = []
    for known in applications:
        for endpoint in known.endpoints():
            found = idempotent_handler_of(endpoint.function)
            if found is not None:
                served.add(found)
            else:
                unmarked.append(endpoint.function)
    missing = sorted((mark for mark in marks if mark not in served), key=lambda mark: mark.name)
    turned = [mark for mark in missing if any(function is mark.function for function in unmarked)]
    if turned:
        raise ConfigurationError(
            f"{_names(turned)}: the route has the function without its mark, and would run it unprotected. The "
            "decorators are in the wrong order: @once.idempotent(...) goes below @app.post(...), directly above the "
            "function"
        )
    if missing:
        raise ConfigurationError(
            f"{_names(missing)}: marked as idempotent, but no application that onefold is installed into has a route "
            "for it. Give it one (include its router), or remove the mark. A route is not found behind other ASGI or "
            "WSGI code, behind a decorator that loses the function's attributes (use functools.wraps), and below a "
            "Host with parameters (there the principal must tell the hosts apart)"
        )


class Readiness:
    """The checks of one application, until they have passed."""

    __slots__ = ("_checks", "passed")

    def __init__(self, *checks: Callable[[], None]) -> None:
        self._checks = checks
        self.passed = not checks

    def check(self) -> None:
        for check in self._checks:
            check()
        self._checks = ()
        self.passed = True


#: For applications whose routes are written down: there is nothing to look for.
READY = Readiness()


def _names(marks: list[IdempotentHandler]) -> str:
    return ", ".join(f"{mark.name} ({_place(mark.function)})" for mark in marks)


def _place(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else type(function).__qualname__


# --- the settings of a layer --------------------------------------------------------------------------------


def are_bools(**switches: object) -> None:
    for name, value in switches.items():
        is_bool(name, value)


def check_parts(pages: object, shedding: object, sealer: object) -> None:
    if pages is not None and not (isinstance(pages, str) and pages.startswith("/")):
        raise ConfigurationError(f"pages={pages!r} must be a path that starts with '/', or None for no pages")
    if shedding is not None:
        _check_shedding(shedding)
    if sealer is not None and not all(callable(getattr(sealer, name, None)) for name in ("seal", "unseal")):
        raise ConfigurationError(
            f"sealer of type {type(sealer).__qualname__} cannot seal and unseal; give a Keyring, as in "
            "sealer=onefold.Keyring({'2026': key}, write='2026')"
        )


def open_cache(cache: object, dialect: str, listener: Listener | None, asynchronous: bool) -> CachedStores | None:
    """The answer cache of an application, if it was given one."""
    if cache is None:
        return None
    from onefold._idempotency.cache.cached_store import CachedStores  # for those who use it

    return CachedStores(cache, dialect, listener, asynchronous=asynchronous)


def _check_shedding(shedding: object) -> None:
    from onefold._http.shedding import Shedding

    if not isinstance(shedding, Shedding):
        meant = "a Shedding, as in shedding=onefold.shedding.Shedding(limit=100), or None"
        raise ConfigurationError(f"shedding={shedding!r} must be {meant}")
