"""From `module:attribute` to the Onefold that it means. Whatever is wrong with it is told in one line."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

from onefold._kernel.effects import Flow
from onefold.errors import ConfigurationError, OnefoldError, SchemaMissing, StoreError
from onefold.face import AsyncOnefold, Onefold
from onefold.http.install import left_in

AnyOnefold: TypeAlias = AsyncOnefold | Onefold

_GIVE = "give an Onefold, an AsyncOnefold, an application it is installed in, or a function that returns one of them"


def loaded(target: str) -> object:
    """Import what a target names. Before the loop starts: a module may run one of its own while it is imported."""
    name, separator, path = target.partition(":")
    if not separator or not name or not path:
        raise ConfigurationError(f"target {target!r} must be module:attribute, for example shop.app:once")
    module = _imported(name)
    value: object = module
    for step in path.split("."):
        try:
            value = getattr(value, step)
        except AttributeError:
            raise ConfigurationError(f"{name!r} has no {path!r}{_suggestion(module)}") from None
    return value


async def opened(target: str, value: object) -> AnyOnefold:
    """The Onefold in what was loaded. A function is called on the loop that it will be used on."""
    if inspect.isroutine(value):
        needed = [
            parameter.name
            for parameter in inspect.signature(value).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if needed:
            raise ConfigurationError(f"{target!r} is a function that needs {', '.join(needed)}; {_GIVE}")
        with _in_one_line(f"calling {target!r} failed"):
            value = value()
            if inspect.isawaitable(value):
                value = await value
    if isinstance(value, AsyncOnefold | Onefold):
        return value
    found = left_in(value)
    if isinstance(found, AsyncOnefold | Onefold):
        return found
    if hasattr(value, "add_middleware") or hasattr(value, "wsgi_app"):
        raise ConfigurationError(f"{target!r} is an application without onefold: call once.install(app) in its module")
    raise ConfigurationError(f"{target!r} is a {type(value).__qualname__}; {_GIVE}")


async def refuse_missing_tables(once: AnyOnefold, *questions: Callable[[str], Flow[Any]]) -> None:
    """Workers wait for a database that is away; for tables that nobody made they would wait in vain."""
    try:
        for question in questions:
            await once.ask(question)
    except SchemaMissing:
        raise
    except StoreError:
        pass


async def closed(once: AnyOnefold) -> None:
    """Close what a command has opened."""
    closing: Any = once.close()
    if inspect.isawaitable(closing):
        await closing


def _imported(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with _in_one_line(f"importing {name!r} failed"):
            return import_module(name)
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise ConfigurationError(f"there is no module {cause.name!r}, neither here nor on sys.path") from cause
        raise


def _suggestion(module: ModuleType) -> str:
    fit = [
        name
        for name, value in vars(module).items()
        if isinstance(value, AsyncOnefold | Onefold) or isinstance(left_in(value), AsyncOnefold | Onefold)
    ]
    return f"; it has {', '.join(sorted(fit))}" if fit else ""


@contextmanager
def _in_one_line(what: str) -> Iterator[None]:
    """Whatever the application raises, with the place where it did."""
    try:
        yield
    except OnefoldError:
        raise  # says what to do
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigurationError(f"{what}: {text} ({place.filename}, line {place.lineno})") from error
