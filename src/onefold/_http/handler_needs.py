"""Handlers that want what cannot be given: refused where they are written, not at the first request.

That is a SQLAlchemy session where there is none, and what only a consumer can take. What a handler wants is read from
its parameters and from those of its dependencies, as FastAPI reads them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, Protocol, get_args, get_origin

from onefold.errors import ConfigurationError

#: Set on the dependencies that give a session.
GIVES_SESSION: Final = "__onefold_gives_session__"

#: Dependencies of dependencies are followed so far.
DEPTH_MAX: Final = 20


class Kind(Protocol):
    """The sessions of an application."""

    @property
    def kind(self) -> str: ...


def check_sessions(function: object, name: str, by: str, has: Kind | None) -> None:
    """Refuse a handler that wants a session of another kind than the application has, or one where it has none."""
    if not callable(function):
        return
    for holder, parameter in _walk(function, DEPTH_MAX):
        wanted = _kind_of(parameter.kind)
        if not any(map(_gives_session, parameter.dependencies)) or (has is not None and has.kind == wanted):
            continue
        engine = "create_async_engine(...)" if wanted == "AsyncSession" else "create_engine(...)"
        offers = "its database is not a SQLAlchemy engine" if has is None else f"it has sessions of type {has.kind}"
        instead = " (AsyncOnefold takes the async one)" if wanted == "AsyncSession" else " (Onefold takes it)"
        raise ConfigurationError(
            f"{_locate(parameter, name, function, holder)} is a session of type {wanted}, which {by} "
            f"cannot give: {offers}. Give it the engine of your sessions, {engine}{instead}, or take the "
            "transaction itself: tx: Tx[...] (onefold.fastapi)"
        )


def check_parameters(function: Callable[..., Any], name: str) -> None:
    """Refuse what a consumer takes and an endpoint cannot: FastAPI would say something else about it, or take it for a
    part of the request."""
    for holder, parameter in _walk(function, DEPTH_MAX):
        where = _locate(parameter, name, function, holder)
        if any(type(mark).__name__ == "Depends" and _is_of(type(mark), "onefold") for mark in parameter.marks):
            raise ConfigurationError(
                f"{where} has onefold.Depends, which is for consumers: in an endpoint write `from fastapi import "
                "Depends`, whose functions take what an endpoint takes"
            )
        # Dependencies are called by FastAPI. The handler itself may be another framework's: see `_BareSession`.
        if holder is not function and (mistake := _describe_bare_session(parameter, where)):
            raise ConfigurationError(mistake)


def refuse_bare_sessions(signature: inspect.Signature, name: str) -> inspect.Signature:
    """The same signature, by which FastAPI refuses a plain `session: Session` in our words."""
    if "fastapi" not in sys.modules:  # nothing else would look at the note
        return signature
    parameters = []
    for each in signature.parameters.values():
        parameter = _read(each)
        mistake = _describe_bare_session(parameter, f"the parameter {parameter.name!r} of {name}")
        annotation = Annotated[each.annotation, _BareSession(mistake)] if mistake else each.annotation
        parameters.append(each.replace(annotation=annotation))
    return signature.replace(parameters=parameters)


@dataclass(frozen=True, slots=True)
class _BareSession:
    """Noted beside the type of a session that FastAPI cannot give, and a decorator around the handler perhaps does.

    Which of the two it will be is not known where the handler is marked. FastAPI shows it: when the route is declared
    it makes a field of each parameter. `install()` would be too late: a route that FastAPI has refused is not there.
    """

    mistake: str

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        raise ConfigurationError(self.mistake)


def _describe_bare_session(parameter: HandlerParameter, where: str) -> str:
    """What is wrong with a session that nothing is noted beside. Empty: it is none."""
    kinds = [kind.__name__ for kind in getattr(parameter.kind, "__mro__", ()) if _is_of(kind, "sqlalchemy")]
    session = next((kind for kind in ("AsyncSession", "Session") if kind in kinds), None)
    if session is None or parameter.marks:
        return ""
    return (
        f"{where} is annotated {session}, which FastAPI cannot give: write `{parameter.name}: {session}Tx`, with `from "
        f"onefold.fastapi import {session}Tx`, for the session of the request's transaction"
    )


def _walk(function: Callable[..., Any], depth: int) -> Iterator[tuple[Callable[..., Any], HandlerParameter]]:
    """The parameters of a function and of its dependencies, each with its function."""
    for parameter in read_parameters(function):
        yield function, parameter
        for dependency in parameter.dependencies if depth else ():
            if not _gives_session(dependency):
                yield from _walk(dependency, depth - 1)


def _gives_session(dependency: Callable[..., Any]) -> bool:
    return getattr(dependency, GIVES_SESSION, False)


def _locate(parameter: HandlerParameter, name: str, function: Callable[..., Any], holder: Callable[..., Any]) -> str:
    """A parameter of a handler, or of the dependency that has it."""
    through = "" if holder is function else f" (in {getattr(holder, '__qualname__', '?')})"
    return f"the parameter {parameter.name!r} of {name}{through}"


def _is_of(kind: type, package: str) -> bool:
    return kind.__module__.partition(".")[0] == package


class HandlerParameter(NamedTuple):
    """A parameter of a handler, or of one of its dependencies."""

    name: str
    kind: Any
    """What it is annotated with."""
    dependencies: list[Callable[..., Any]]
    """The functions that FastAPI calls for it: one, or none."""
    marks: list[object]
    """What is noted beside its type, and its default."""


def read_parameters(function: Callable[..., Any]) -> list[HandlerParameter]:
    """As FastAPI reads them. None where an annotation cannot be looked up yet: the framework finds out."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except Exception:
        return []
    return [_read(parameter) for parameter in parameters]


def _read(parameter: inspect.Parameter) -> HandlerParameter:
    annotated = get_origin(parameter.annotation) is Annotated
    kind, *marks = get_args(parameter.annotation) if annotated else (parameter.annotation,)
    marks += [parameter.default] if parameter.default is not parameter.empty else []
    given = (getattr(mark, "dependency", None) for mark in marks)
    return HandlerParameter(parameter.name, kind, [each for each in given if callable(each)], marks)


def _kind_of(annotation: object) -> str:
    """Session or AsyncSession: also of a class of the application's own."""
    names = [kind.__name__ for kind in getattr(annotation, "__mro__", ())]
    return "AsyncSession" if "AsyncSession" in names else "Session"
