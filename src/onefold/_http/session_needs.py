"""Handlers that want a SQLAlchemy session where there is none: refused where they are marked, not at the first request.

What a handler wants is read from its parameters and from those of its dependencies, as FastAPI reads them.
"""

from __future__ import annotations

import inspect
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


class HandlerParameter(NamedTuple):
    """A parameter of a handler, or of one of its dependencies."""

    name: str
    kind: Any
    """What it is annotated with."""
    dependencies: list[Callable[..., Any]]
    """The functions that FastAPI calls for it: one, or none."""


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
        given = (getattr(mark, "dependency", None) for mark in (*marks, parameter.default))
        found.append(HandlerParameter(parameter.name, kind, [each for each in given if callable(each)]))
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
