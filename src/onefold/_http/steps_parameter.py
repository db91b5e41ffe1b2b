"""Handlers that work in recorded steps: known by a parameter annotated with Steps, which onefold gives.

What cannot work is refused where the handler is marked: steps need a key to be resumed by, and a handler that works in
steps has no transaction of its own beside them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, get_origin

from onefold._http.handler_needs import DEPTH_MAX, GIVES_SESSION, read_parameters
from onefold._http.request import Request, completing_of
from onefold._http.route_policy import Policy, Route
from onefold._kernel.executors import is_async
from onefold._kernel.steps_annotation import is_steps
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._http.stepped_store import RequestWork, SteppedStore

#: Set on the dependencies that give a transaction.
GIVES_TRANSACTION: Final = "__onefold_gives_transaction__"


def find_steps(function: Callable[..., Any]) -> str | None:
    """The parameter for the steps, if a handler has one."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except Exception:  # a name that is not known yet: judged by its text
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return None
    return next((parameter.name for parameter in parameters if is_steps(parameter.annotation)), None)


def without(signature: inspect.Signature, name: str | None) -> inspect.Signature:
    """The signature that a framework sees."""
    return signature.replace(parameters=[each for each in signature.parameters.values() if each.name != name])


def check_steps(function: Callable[..., Any], name: str, policy: Policy, *, asynchronous: bool, by: str) -> None:
    """Refuse a handler that cannot work in steps as it is written."""
    if not policy.required:
        raise ConfigurationError(
            f"{name} works in steps, and its key is optional: a request without one could not be resumed. Write "
            "@once.idempotent(required=True)"
        )
    if policy.store_down == "run":
        raise ConfigurationError(
            f"{name} works in steps and has store_down='run': without the store no step can be recorded. Leave it out"
        )
    if policy.conditional is not None:
        raise ConfigurationError(
            f"{name} works in steps, and is conditional: no transaction lasts from its first step to its last, so that "
            "no row can be kept as it was. Let tx.transition(..., expected_version=...) of a phase refuse late ones"
        )
    if is_async(function) and not asynchronous:
        raise ConfigurationError(
            f"{name} is an async function that works in steps, and {by} is for threads: write a plain def, or use "
            "AsyncOnefold"
        )
    for parameter, through in find_transactions(function, and_sessions=True):
        raise ConfigurationError(
            f"{name} works in steps, and has the parameter {parameter!r}{through}, which is the transaction or a "
            "session of the whole request: there is none. Take it out; the functions of work.phase(...) and "
            "work.finish(...) get their own transaction, and tx.session() in it"
        )


def make_work(
    shared: SteppedStore, request: Request, body: bytes, route: Route, principal: str, context: Mapping[str, str]
) -> RequestWork:
    """The work of a request whose handler works in steps, with what it takes to make the request again, in case that it
    is left. `context` is that of its span, which the next attempt belongs to."""
    from onefold._http.stepped_store import RequestWork  # for those who use it
    from onefold._http.stored_request import write_request

    stored = write_request(request, body, principal, mount=route.mount, context=context)
    is_resumed = completing_of(request.source) is not None
    return RequestWork(shared, stored, is_resumed=is_resumed, isolation=route.policy.isolation)


def find_transactions(
    function: Callable[..., Any], *, and_sessions: bool = False, depth: int = DEPTH_MAX, through: str = ""
) -> Iterator[tuple[str, str]]:
    """The parameters, of a function and of what it depends on, that are the transaction of a request, or a session of
    it; and in which dependency."""
    for parameter in read_parameters(function):
        if parameter.kind is Transaction or get_origin(parameter.kind) is Transaction:
            yield parameter.name, through
        for dependency in parameter.dependencies:
            if getattr(dependency, GIVES_TRANSACTION, False) or (
                # Of a dependency it is a session of its own: it authenticates, perhaps.
                and_sessions and getattr(dependency, GIVES_SESSION, False) and not through
            ):
                yield parameter.name, through
            elif depth:
                inside = f" (in {getattr(dependency, '__qualname__', '?')})"
                yield from find_transactions(dependency, and_sessions=and_sessions, depth=depth - 1, through=inside)
