"""Handlers that want what cannot be given: refused where they are marked, not at the first request.

That is a SQLAlchemy session where there is none, and what only a consumer can take. What a handler wants is read from
its parameters and from those of its dependencies, as FastAPI reads them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
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


class _Need(NamedTuple):
    function: Callable[..., Any]
    parameter: str
    kind: str


def check_sessions(function: object, name: str, by: str, has: Kind | None) -> None:
    """Refuse a handler that wants a session of another kind than the application has, or one where it has none."""
    if not callable(function):
        return
    for need in _needs(function, DEPTH_MAX):
        if has is None or has.kind != need.kind:
            engine = "create_async_engine(...)" if need.kind == "AsyncSession" else "create_engine(...)"
            through = "" if need.function is function else f" (in {getattr(need.function, '__qualname__', '?')})"
            offers = "its database is not a SQLAlchemy engine" if has is None else f"it has sessions of type {has.kind}"
            instead = " (AsyncOnefold takes the async one)" if need.kind == "AsyncSession" else " (Onefold takes it)"
            raise ConfigurationError(
                f"the parameter {need.parameter!r} of {name}{through} is a session of type {need.kind}, which {by} "
                f"cannot give: {offers}. Give it the engine of your sessions, {engine}{instead}, or take the "
                "transaction itself: tx: Tx[...] (onefold.fastapi)"
            )


def check_parameters(function: Callable[..., Any], name: str) -> None:
    """Refuse what a consumer takes and an endpoint cannot: FastAPI would say something else about it, or take it for a
    part of the request."""
    for holder, parameter, depends in _walk(function, DEPTH_MAX):
        through = "" if holder is function else f" (in {getattr(holder, '__qualname__', '?')})"
        whose = f"the parameter {parameter.name!r} of {name}{through}"
        if depends:
            raise ConfigurationError(
                f"{whose} has onefold.Depends, which is for consumers: in an endpoint write `from fastapi import "
                "Depends`, whose functions take what an endpoint takes"
            )
        kinds = [kind.__name__ for kind in getattr(parameter.kind, "__mro__", ()) if _is_of(kind, "sqlalchemy")]
        session = next((kind for kind in ("AsyncSession", "Session") if kind in kinds), None)
        # In other frameworks a decorator around the handler may give it.
        if session is not None and not parameter.marks and "fastapi" in sys.modules:
            raise ConfigurationError(
                f"{whose} is annotated {session}, which FastAPI cannot give: write `{parameter.name}: {session}Tx`, "
                f"with `from onefold.fastapi import {session}Tx`, for the session of the request's transaction"
            )


def _walk(function: Callable[..., Any], depth: int) -> Iterator[tuple[Callable[..., Any], HandlerParameter, bool]]:
    """The parameters of a function and of its dependencies, each with its function, and whether it has the Depends of
    consumers."""
    for parameter in read_parameters(function):
        depends = any(type(mark).__name__ == "Depends" and _is_of(type(mark), "onefold") for mark in parameter.marks)
        yield function, parameter, depends
        for dependency in parameter.dependencies if depth else ():
            yield from _walk(dependency, depth - 1)


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
    found = []
    for parameter in parameters:
        annotated = get_origin(parameter.annotation) is Annotated
        kind, *marks = get_args(parameter.annotation) if annotated else (parameter.annotation,)
        marks += [parameter.default] if parameter.default is not parameter.empty else []
        given = (getattr(mark, "dependency", None) for mark in marks)
        found.append(HandlerParameter(parameter.name, kind, [each for each in given if callable(each)], marks))
    return found


def _needs(function: Callable[..., Any], depth: int) -> Iterator[_Need]:
    for parameter in read_parameters(function):
        for dependency in parameter.dependencies:
            if getattr(dependency, GIVES_SESSION, False):
                yield _Need(function, parameter.name, _kind_of(parameter.kind))
            elif depth:
                yield from _needs(dependency, depth - 1)


def _kind_of(annotation: object) -> str:
    """Session or AsyncSession: also of a class of the application's own."""
    names = [kind.__name__ for kind in getattr(annotation, "__mro__", ())]
    return "AsyncSession" if "AsyncSession" in names else "Session"
